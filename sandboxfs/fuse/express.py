"""Which requests are answered without pyfuse3?

Those that programs wait for most. A processor that waits for an answer goes to sleep after some microseconds,
and waking it takes longer than most answers do: what is saved before that moment is saved twice. So these are
read from the device and answered on it, without the objects and coroutines that pyfuse3 makes for each. They
also say what pyfuse3 cannot: that the kernel may remember a listing, and that it knows an entry already.

Each handler is told the inode, the request and the caller, asks the filesystem, and gives the body of the
answer, or None where there is none. The bytes of the request are good until it returns.
"""

import errno
import logging
import os
import struct
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

import trio

from sandboxfs.fuse import wire
from sandboxfs.fuse.later import DoBeside, finish
from sandboxfs.fuse.passage import unsent
from sandboxfs.fuse.streams import Streams
from sandboxfs.fuse.threads import Threads
from sandboxfs.fuse.waiting import Spawn
from sandboxfs.fuse.wire import BODY, Opcode
from sandboxfs.overlay.filesystem import AttributeChange, Caller, Filesystem, Opened, Somebody
from sandboxfs.overlay.later import Later

log = logging.getLogger(__name__)

Body = bytes | memoryview
Handler = Callable[[int, memoryview, Caller], Body | None]


class Tells(Protocol):
    """What the kernel is told besides."""

    def give(self, ino: int, content: bytes) -> bool:
        """Let it have the content of a file that nobody has open; whether it has it then."""

    def forget_listing(self, ino: int) -> None:
        """Have a directory read again by whoever reads it next. May wait: not for the serving thread."""


class Owed(Protocol):
    """What is done after an answer, because nobody needs to wait for it; as long as there is any."""

    def __len__(self) -> int: ...
    def settle(self) -> None: ...


# Parts of the bodies of requests.
_numbers_2 = struct.Struct("=QQ").unpack_from
_number = struct.Struct("=Q").unpack_from
_half = struct.Struct("=I").unpack_from
_halves_2 = struct.Struct("=II").unpack_from
_place = struct.Struct("=QQI").unpack_from
_write_in = struct.Struct("=QQI12xI").unpack_from
_setattr_in = struct.Struct("=I4xQQ8xqq8xII4xI4xII").unpack_from
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME, _HANDLE = (1 << bit for bit in range(7))
_A_SECOND = 10**9
# Where the data of a WRITE is.
_DATA = BODY + 40
_DATASYNC = 1
_DOTS = b".", b".."
_head = wire.HEADER.pack
# The kernel takes no answer with such an error, which some filesystems have for themselves.
_NO_ERRNO = 512
# So many of those who asked are remembered.
_ACQUAINTANCES = 256
# Larger answers are not put together in memory first.
_LARGE = 1 << 14


class Express:
    """Answers what is asked most of one filesystem, on one device."""

    def __init__(
        self,
        filesystem: Filesystem,
        device: int,
        beside: DoBeside,
        spawn: Spawn,
        telling: Tells,
        owed: Owed,
        *,
        every_listing: bool = False,
    ) -> None:
        """What is *owed* is settled after each answer. With *every_listing* the kernel is to ask whenever a
        directory is opened and read, because all of that is recorded.
        """
        self._fs = filesystem
        self._device = device
        self._beside = beside
        self._spawn = spawn
        self._telling = telling
        self._owed = owed
        self._threads = Threads()
        self._streams = Streams(filesystem)
        self._every_listing = every_listing
        # Handles that are written around the kernel's pages: after such a write it leaves it to us that the
        # data is on the disk where that is wanted. After any other it asks for that by itself.
        self._direct: set[int] = set()
        # Those who asked lately: several often take turns.
        self._callers: dict[tuple[int, int, int], Caller] = {}
        self._handlers: dict[int, Handler] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget_many,
            Opcode.GETATTR: self._getattr,
            Opcode.SETATTR: self._setattr,
            Opcode.READLINK: self._readlink,
            Opcode.SYMLINK: self._symlink,
            Opcode.MKDIR: self._mkdir,
            Opcode.UNLINK: self._unlink,
            Opcode.RMDIR: self._rmdir,
            Opcode.RENAME: partial(self._rename, names=BODY + 8),
            Opcode.RENAME2: partial(self._rename, names=BODY + 16),
            Opcode.LINK: self._link,
            Opcode.OPEN: self._open,
            Opcode.CREATE: self._create,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.STATFS: self._statfs,
            Opcode.RELEASE: self._release,
            Opcode.FSYNC: self._fsync,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIRPLUS: self._readdir,
            Opcode.RELEASEDIR: self._releasedir,
            Opcode.FSYNCDIR: self._fsyncdir,
            Opcode.SETXATTR: self._setxattr,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.REMOVEXATTR: self._removexattr,
            Opcode.IOCTL: _no_device,
            # Nothing that waits can be given up; who was interrupted gets the answer when it comes.
            Opcode.INTERRUPT: lambda _ino, _request, _caller: None,
        }

    def answer(self, request: memoryview) -> bool:
        """Answer a request, if it is one of these; whether it is."""
        _, opcode, unique, ino, uid, gid, pid = wire.header_of(request)
        handler = self._handlers.get(opcode)
        if handler is None:
            return False
        who = uid, gid, pid
        caller = self._callers.get(who) or self._met(who)
        try:
            body = handler(ino, request, caller)
        except Later as later:
            if later.answers and self._threads.take():
                work = partial(self._answer_from_thread, unique, opcode, later.work)
                try:
                    trio.lowlevel.start_thread_soon(work, _take_it_as_done)
                except RuntimeError:
                    # The system has no thread for us: then everybody waits.
                    work()
                return True
            # The request is in memory that the next one takes.
            again = partial(handler, ino, memoryview(bytes(request)), caller)
            self._spawn(partial(self._answer_later, unique, opcode, later, again))
            return True
        except OSError as error:
            self._refuse(unique, error.errno or errno.EIO)
        except Exception as bug:
            self._give_up(unique, opcode, bug)
        else:
            if body is not None:
                self._reply(unique, body)
        if self._owed:
            self.settle()
        return True

    def settle(self) -> None:
        """Do what is owed."""
        try:
            self._owed.settle()
        except Exception:
            log.exception("bug after an answer; nobody is told")

    def _met(self, who: tuple[int, int, int]) -> Caller:
        if len(self._callers) >= _ACQUAINTANCES:
            self._callers.clear()
        caller = self._callers[who] = Somebody(*who)
        return caller

    async def _answer_later(
        self, unique: int, opcode: int, later: Later, again: Callable[[], Body | None]
    ) -> None:
        try:
            body = await finish(self._beside, later, again)
        except OSError as error:
            self._refuse(unique, error.errno or errno.EIO)
        except Exception as bug:
            self._give_up(unique, opcode, bug)
        else:
            self._reply(unique, b"" if body is None else body)
        self.settle()

    def _answer_from_thread(self, unique: int, opcode: int, work: Callable[[], object]) -> None:
        """Answer with what *work* gives, in the thread that does it: no task has to wait for its turn."""
        try:
            body = cast(Body | None, work())
            answer = partial(self._reply, unique, b"" if body is None else body)
        except OSError as error:
            answer = partial(self._refuse, unique, error.errno or errno.EIO)
        except Exception as bug:
            answer = partial(self._give_up, unique, opcode, bug)
        with self._threads.given_back() as serving:
            if serving:
                answer()

    def close(self) -> None:
        """Answer nothing any more: what answers are written to is about to be closed."""
        self._threads.end()

    def _give_up(self, unique: int, opcode: int, bug: BaseException | None) -> None:
        log.error("bug in %s; the kernel gets EIO", Opcode(opcode).name.lower(), exc_info=bug)
        if opcode not in (Opcode.FORGET, Opcode.BATCH_FORGET):
            self._refuse(unique, errno.EIO)

    def _reply(self, unique: int, body: Body) -> None:
        size = len(body)
        head = _head(16 + size, 0, unique)
        try:
            if size < _LARGE:
                os.write(self._device, head + body)
            else:
                os.writev(self._device, (head, body))
        except OSError as error:
            unsent(error)

    def _refuse(self, unique: int, number: int) -> None:
        try:
            os.write(self._device, _head(16, -number if 0 < number < _NO_ERRNO else -errno.EIO, unique))
        except OSError as error:
            unsent(error)

    # Looking

    def _lookup(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        entry = self._fs.lookup(ino, request[BODY:-1].tobytes(), caller)
        if entry is not None:
            return wire.found(entry)
        return wire.ABSENT_FOR_LONG if self._fs.absence_lasts(ino) else wire.ABSENT

    def _forget(self, ino: int, request: memoryview, caller: Caller) -> None:
        if self._fs.forget(ino, _number(request, BODY)[0]):
            self._streams.forget(ino)

    def _forget_many(self, ino: int, request: memoryview, caller: Caller) -> None:
        for number in range(_half(request, BODY)[0]):
            ino, count = _numbers_2(request, BODY + 8 + 16 * number)
            if self._fs.forget(ino, count):
                self._streams.forget(ino)

    def _getattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        return wire.attributes(self._fs.getattr(ino, caller))

    def _readlink(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        return self._fs.readlink(ino, caller)

    def _getxattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        value = self._fs.getxattr(ino, request[BODY + 8 : -1].tobytes(), caller)
        return _as_much_as_fits(value, _half(request, BODY)[0])

    def _listxattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        names = b"".join(name + b"\0" for name in self._fs.listxattr(ino, caller))
        return _as_much_as_fits(names, _half(request, BODY)[0])

    def _statfs(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        return wire.statistics(self._fs.statfs())

    # Changing

    def _setattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        valid, handle, size, atime, mtime, atime_ns, mtime_ns, mode, uid, gid = _setattr_in(request, BODY)
        change = AttributeChange(
            mode if valid & _MODE else None,
            uid if valid & _UID else None,
            gid if valid & _GID else None,
            size if valid & _SIZE else None,
            # Where they are set to what it is now, the kernel says what that is, by the clock that it has for
            # files: another one may be ahead of it, and make a file older than one that was written before.
            atime * _A_SECOND + atime_ns if valid & _ATIME else None,
            mtime * _A_SECOND + mtime_ns if valid & _MTIME else None,
        )
        return wire.attributes(self._fs.setattr(ino, change, handle if valid & _HANDLE else None, caller))

    def _setxattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        size, flags = _halves_2(request, BODY)
        name, _, rest = request[BODY + 8 :].tobytes().partition(b"\0")
        self._fs.setxattr(ino, name, rest[:size], flags, caller)
        return b""

    def _removexattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        self._fs.removexattr(ino, request[BODY:-1].tobytes(), caller)
        return b""

    # Names

    def _symlink(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        name, target, _ = request[BODY:].tobytes().split(b"\0")
        return wire.found(self._fs.symlink(ino, name, target, caller))

    def _link(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        to = request[BODY + 8 : -1].tobytes()
        return wire.found(self._fs.link(_number(request, BODY)[0], ino, to, caller))

    def _mkdir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        return wire.found(
            self._fs.mkdir(ino, request[BODY + 8 : -1].tobytes(), _half(request, BODY)[0], caller)
        )

    def _unlink(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        self._fs.unlink(ino, request[BODY:-1].tobytes(), caller)
        return b""

    def _rmdir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        self._fs.rmdir(ino, request[BODY:-1].tobytes(), caller)
        return b""

    def _rename(self, ino: int, request: memoryview, caller: Caller, *, names: int) -> bytes:
        to = _number(request, BODY)[0]
        flags = _half(request, BODY + 8)[0] if names > BODY + 8 else 0
        old, new, _ = request[names:].tobytes().split(b"\0")
        self._fs.rename(ino, old, to, new, flags, caller)
        return b""

    # Files

    def _open(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        opened = self._fs.open(ino, _half(request, BODY)[0], caller)
        flags = self._around_pages(opened)
        if opened.keep_cache or (opened.content is not None and self._telling.give(ino, opened.content)):
            flags |= wire.KEEP_CACHE
        return wire.opened(opened.handle, flags)

    def _create(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        flags, mode = _halves_2(request, BODY)
        opened, entry = self._fs.create(ino, request[BODY + 16 : -1].tobytes(), mode, flags, caller)
        flags = self._around_pages(opened)
        if opened.keep_cache:
            flags |= wire.KEEP_CACHE
        return wire.found(entry) + wire.opened(opened.handle, flags)

    def _around_pages(self, opened: Opened) -> int:
        if not opened.direct:
            return 0
        self._direct.add(opened.handle)
        return wire.DIRECT_IO

    def _read(self, ino: int, request: memoryview, caller: Caller) -> Body:
        return self._fs.read(*_place(request, BODY))

    def _write(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        handle, offset, size, flags = _write_in(request, BODY)
        written = wire.written(self._fs.write(handle, offset, request[_DATA : _DATA + size]))
        if flags & os.O_DSYNC and handle in self._direct:
            try:
                self._fs.fsync(handle, flags & os.O_SYNC != os.O_SYNC)
            except Later as sync:
                raise Later(_answering(written, sync.work), answers=True) from None
        return written

    def _release(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        handle = _number(request, BODY)[0]
        self._direct.discard(handle)
        self._fs.release(handle)
        return b""

    def _fsync(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        handle, flags = _number(request, BODY)[0], _half(request, BODY + 8)[0]
        self._fs.fsync(handle, bool(flags & _DATASYNC))
        return b""

    # Directories

    def _opendir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        if not self._every_listing:
            # From then on the kernel opens directories by itself, and remembers what is listed.
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return wire.opened(self._fs.opendir(ino, caller), 0)

    def _readdir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        opened, start, room = _place(request, BODY)
        fs = self._fs
        handle = opened or self._streams.at(ino, start, caller)
        parts: list[bytes] = []
        for name, entry, position in fs.readdir(handle, start, brief=fs.familiar(handle, start)):
            part = wire.listed(name, entry, position)
            room -= len(part)
            if room < 0:
                fs.forget(entry.ino, 0)
                break
            parts.append(part)
            if not entry.mentioned and name not in _DOTS:
                fs.remember(entry.ino)
        if not parts and not opened:
            lasts = self._streams.lasts(ino)
            self._streams.end(ino)
            if not lasts:
                raise Later(partial(self._telling.forget_listing, ino), answers=True)
        return b"".join(parts)

    def _releasedir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        self._fs.releasedir(_number(request, BODY)[0])
        return b""

    def _fsyncdir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        self._fs.fsyncdir(ino, bool(_half(request, BODY + 8)[0] & _DATASYNC))
        return b""


def _no_device(ino: int, request: memoryview, caller: Caller) -> None:
    """Refuse an ioctl: many programs ask each file whether it is a terminal, and the kernel passes it on."""
    raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))


def _answering(body: bytes, work: Callable[[], object]) -> Callable[[], bytes]:
    """The same work, with another answer."""

    def done() -> bytes:
        work()
        return body

    return done


def _take_it_as_done(_: object) -> None:
    """For a thread that tells by itself how its work ended."""


def _as_much_as_fits(value: bytes, room: int) -> bytes:
    """What is answered when there is so much room for *value*; with none, how much there would have to be."""
    if room == 0:
        return wire.written(len(value))
    if len(value) > room:
        raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
    return value
