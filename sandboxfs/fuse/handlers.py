"""Request handlers, one for each opcode: bodies parsed, the filesystem asked, answers packed.

A handler gets the inode, the request and the caller. It returns the body of the answer, or None where the
kernel expects none. It raises OSError to refuse, and `Deferred` where a worker thread has to work first. The
bytes of the request are valid until the handler returns. No handler decides anything: the filesystem does.

An opcode without a handler is refused with ENOSYS; the kernel does without it, most often from then on:

- FLUSH: written data is not held back, so there is nothing to do at close;
- ACCESS: with default_permissions the kernel judges by attributes that it had to look up;
- READDIR: the kernel asks for listings with attributes, by READDIRPLUS;
- POLL: a file is always ready;
- GETLK, SETLK, SETLKW: the kernel keeps locks itself;
- BMAP, FALLOCATE, LSEEK, COPY_FILE_RANGE, SYNCFS, TMPFILE, STATX: programs, or the kernel, fall back.

Directories are not opened either. The kernel asks for the entries of a directory after a position, and a
position means the same to every reader (see `overlay/readdir`). So one listing for each directory is enough
for all its readers, and a listing that was closed can be opened again at any position. The first request
opens the listing, and the last one releases it; of the listings that nobody reads to the end, some are kept.
"""

import errno
import os
import stat
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from sandboxfs.fuse import protocol
from sandboxfs.fuse.protocol import BODY, Opcode
from sandboxfs.overlay.filesystem import AttributeChange, Caller, Deferred, Entry, Filesystem, OpenedFile

MOST_STREAMS = 64
"""The most listings under way at once; one more closes the listing that was used longest ago."""

# Seconds for which the kernel must not cache a directory that several programs read at once: one of them may
# have received a part of the listing, and the kernel may not have stored that part yet.
_MIXED = 10.0


class Streams:
    """The open listings of one filesystem, in order of use, the last used last."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._fs = filesystem
        self._handles: dict[int, int] = {}
        # Until when another reader may have received a part of a listing that the kernel puts together.
        self._mixed: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def at(self, ino: int, start: int, caller: Caller) -> int:
        """The handle of the listing that gives a directory's entries from position *start* on."""
        handle = self._handles.pop(ino, None)
        if handle is not None and start == 0:
            # A reading from the beginning gets a new decision and the present entries.
            self._fs.releasedir(handle)
            self._mixed[ino] = time.monotonic() + _MIXED
            handle = None
        if handle is None:
            handle = self._fs.opendir(ino, caller)
            if start:
                self._mixed[ino] = time.monotonic() + _MIXED
            if len(self._handles) >= MOST_STREAMS:
                self.end(next(iter(self._handles)))
        self._handles[ino] = handle
        return handle

    def lasts(self, ino: int) -> bool:
        """Whether a listing that was read to its end may stay cached until the kernel is notified.

        Not where another reader received a part of the listing: that part may reach the kernel's cache only
        after a notification that the listing is stale.
        """
        if ino in self._mixed:
            if time.monotonic() < self._mixed[ino]:
                return False
            del self._mixed[ino]
        return self._fs.listing_lasts(self._handles[ino])

    def end(self, ino: int) -> None:
        """Close the listing of a directory; further reading opens it again."""
        handle = self._handles.pop(ino, None)
        if handle is not None:
            self._fs.releasedir(handle)

    def forget(self, ino: int) -> None:
        """Drop everything about a directory that the kernel forgot: another directory may get its number."""
        self.end(ino)
        self._mixed.pop(ino, None)


Body = bytes | memoryview
Handler = Callable[[int, memoryview, Caller], Body | None]


class NotifierLike(Protocol):
    """The notifications that handlers send."""

    def give(self, ino: int, content: bytes) -> bool:
        """Give the kernel the content of a file that nobody has open; whether the kernel stored it."""

    def forget_attributes(self, ino: int) -> None:
        """Make the kernel ask for the attributes of an inode again."""

    def forget_listing(self, ino: int) -> None:
        """Make the kernel drop its cached listing of a directory. May wait: not for the serving thread."""


# Parts of the bodies of requests.
_numbers_2 = struct.Struct("=QQ").unpack_from
_number = struct.Struct("=Q").unpack_from
_half = struct.Struct("=I").unpack_from
_halves_2 = struct.Struct("=II").unpack_from
_halves_3 = struct.Struct("=III").unpack_from
_place = struct.Struct("=QQI").unpack_from
_write_in = struct.Struct("=QQII8xI").unpack_from
_setattr_in = struct.Struct("=I4xQQ8xqq8xII4xI4xII").unpack_from
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME, _HANDLE = (1 << bit for bit in range(7))
_A_SECOND = 10**9
# The position of the data of a WRITE.
_DATA = BODY + 40
_DATASYNC = 1
_DOTS = b".", b".."


class RequestHandlers:
    """Handlers for the requests to one filesystem."""

    def __init__(self, filesystem: Filesystem, notifier: NotifierLike, *, every_listing: bool) -> None:
        """With *every_listing* the kernel asks at each opening and reading of a directory, for the record."""
        self._fs = filesystem
        self._notifier = notifier
        self._streams = Streams(filesystem)
        self._every_listing = every_listing
        # Handles whose writes go around the kernel's pages: after such a write with O_SYNC or O_DSYNC, the
        # daemon has to sync the data. After any other write with them the kernel sends FSYNC by itself.
        self._direct: set[int] = set()

    def by_opcode(self) -> dict[int, Handler]:
        """The handler of each opcode that is not refused with ENOSYS."""
        return {
            Opcode.LOOKUP: self._lookup,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget_many,
            Opcode.GETATTR: self._getattr,
            Opcode.SETATTR: self._setattr,
            Opcode.READLINK: self._readlink,
            Opcode.SYMLINK: self._symlink,
            Opcode.MKNOD: self._mknod,
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
            # There is no device to control, but many programs ask each file whether it is a terminal.
            Opcode.IOCTL: _refusing(errno.ENOTTY),
            # The dispatcher knows which requests wait, and has a handler of its own.
            Opcode.INTERRUPT: _say_nothing,
            # The kernel sends it with content that the daemon asked for; the daemon never asks.
            Opcode.NOTIFY_REPLY: _say_nothing,
            # libfuse has answered INIT, which comes once.
            Opcode.INIT: _refusing(errno.EIO),
            # Unmounting does the remaining work.
            Opcode.DESTROY: _agree,
        }

    # Looking

    def _lookup(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        entry = self._fs.lookup(ino, request[BODY:-1].tobytes(), caller)
        if entry is not None:
            return protocol.found(entry)
        return protocol.ABSENT_FOR_LONG if self._fs.absence_lasts(ino) else protocol.ABSENT

    def _forget(self, ino: int, request: memoryview, caller: Caller) -> None:
        if self._fs.forget(ino, _number(request, BODY)[0]):
            self._streams.forget(ino)

    def _forget_many(self, ino: int, request: memoryview, caller: Caller) -> None:
        for number in range(_half(request, BODY)[0]):
            ino, count = _numbers_2(request, BODY + 8 + 16 * number)
            if self._fs.forget(ino, count):
                self._streams.forget(ino)

    def _getattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        return protocol.attributes(self._fs.getattr(ino, caller))

    def _readlink(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        return self._fs.readlink(ino, caller)

    def _getxattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        value = self._fs.getxattr(ino, request[BODY + 8 : -1].tobytes(), caller)
        return _as_much_as_fits(value, _half(request, BODY)[0])

    def _listxattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        names = b"".join(name + b"\0" for name in self._fs.listxattr(ino, caller))
        return _as_much_as_fits(names, _half(request, BODY)[0])

    def _statfs(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        return protocol.statistics(self._fs.statfs())

    # Changing

    def _setattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        valid, handle, size, atime, mtime, atime_ns, mtime_ns, mode, uid, gid = _setattr_in(request, BODY)
        change = AttributeChange(
            mode if valid & _MODE else None,
            uid if valid & _UID else None,
            gid if valid & _GID else None,
            size if valid & _SIZE else None,
            # For times set to now, the kernel sends the time of its clock for files. Another clock may be
            # ahead of that one, and would make a file look older than one that was written before.
            atime * _A_SECOND + atime_ns if valid & _ATIME else None,
            mtime * _A_SECOND + mtime_ns if valid & _MTIME else None,
        )
        entry = self._fs.setattr(ino, change, handle if valid & _HANDLE else None, caller)
        if valid & protocol.SETATTR_KILLS_SET_ID and caller.uid == 0:
            entry = _cleared(self._fs, entry, caller)
        return protocol.attributes(entry)

    def _setxattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        name, value, flags, more = protocol.attribute_to_set(request)
        self._fs.setxattr(ino, name, value, flags, caller)
        if more & protocol.KILL_SET_GID:
            _clear_set_gid(self._fs, ino, caller)
        return b""

    def _removexattr(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        self._fs.removexattr(ino, request[BODY:-1].tobytes(), caller)
        return b""

    # Names

    def _symlink(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        name, target, _ = request[BODY:].tobytes().split(b"\0")
        return protocol.found(self._fs.symlink(ino, name, target, caller))

    def _link(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        to = request[BODY + 8 : -1].tobytes()
        return protocol.found(self._fs.link(_number(request, BODY)[0], ino, to, caller))

    def _mknod(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        mode, device, umask = _halves_3(request, BODY)
        name = request[BODY + 16 : -1].tobytes()
        return protocol.found(self._fs.mknod(ino, name, mode, device, caller, umask=umask))

    def _mkdir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        mode, umask = _halves_2(request, BODY)
        return protocol.found(
            self._fs.mkdir(ino, request[BODY + 8 : -1].tobytes(), mode, caller, umask=umask)
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
        flags, kill = _halves_2(request, BODY)
        opened = self._fs.open(ino, flags, caller)
        if kill & protocol.OPEN_KILLS_SET_ID and caller.uid == 0:
            _clear_set_id(self._fs, ino, caller)
            self._notifier.forget_attributes(ino)
        flags = self._around_pages(opened)
        if opened.keep_cache or (opened.content is not None and self._notifier.give(ino, opened.content)):
            flags |= protocol.KEEP_CACHE
        return protocol.opened(opened.handle, flags)

    def _create(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        flags, mode, umask = _halves_3(request, BODY)
        name = request[BODY + 16 : -1].tobytes()
        opened, entry = self._fs.create(ino, name, mode, flags, caller, umask=umask)
        flags = self._around_pages(opened)
        if opened.keep_cache:
            flags |= protocol.KEEP_CACHE
        return protocol.found(entry) + protocol.opened(opened.handle, flags)

    def _around_pages(self, opened: OpenedFile) -> int:
        if not opened.direct:
            return 0
        self._direct.add(opened.handle)
        return protocol.DIRECT_IO

    def _read(self, ino: int, request: memoryview, caller: Caller) -> Body:
        return self._fs.read(*_place(request, BODY))

    def _write(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        handle, offset, size, kill, flags = _write_in(request, BODY)
        strip = bool(kill & protocol.WRITE_KILLS_SET_ID)
        written = protocol.written(self._fs.write(handle, offset, request[_DATA : _DATA + size], strip=strip))
        if flags & os.O_DSYNC and handle in self._direct:
            try:
                self._fs.fsync(handle, flags & os.O_SYNC != os.O_SYNC)
            except Deferred as sync:
                raise Deferred(_answering(written, sync.work), answers=True) from None
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
            # From then on the kernel opens directories by itself, and caches listings.
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return protocol.opened(self._fs.opendir(ino, caller), 0)

    def _readdir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        opened, start, room = _place(request, BODY)
        fs = self._fs
        handle = opened or self._streams.at(ino, start, caller)
        parts: list[bytes] = []
        for name, entry, position in fs.readdir(handle, start, brief=fs.familiar(handle, start)):
            part = protocol.listed(name, entry, position)
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
                raise Deferred(partial(self._notifier.forget_listing, ino), answers=True)
        return b"".join(parts)

    def _releasedir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        self._fs.releasedir(_number(request, BODY)[0])
        return b""

    def _fsyncdir(self, ino: int, request: memoryview, caller: Caller) -> bytes:
        self._fs.fsyncdir(ino, bool(_half(request, BODY + 8)[0] & _DATASYNC))
        return b""


def _refusing(number: int) -> Handler:
    def refuse(ino: int, request: memoryview, caller: Caller) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def _say_nothing(ino: int, request: memoryview, caller: Caller) -> None:
    """The kernel expects no answer."""


def _agree(ino: int, request: memoryview, caller: Caller) -> bytes:
    return b""


def _cleared(fs: Filesystem, entry: Entry, caller: Caller) -> Entry:
    """Clear set-id bits after a change by root without privileges, which only the kernel knows of.

    For other callers, the filesystem decides by the user id.
    """
    mode = entry.stat.st_mode
    kept = mode & ~stat.S_ISUID
    if mode & stat.S_IXGRP:
        kept &= ~stat.S_ISGID
    if kept == mode or not stat.S_ISREG(mode):
        return entry
    return fs.setattr(entry.ino, AttributeChange(mode=stat.S_IMODE(kept)), None, caller)


def _clear_set_id(fs: Filesystem, ino: int, caller: Caller) -> None:
    _cleared(fs, fs.getattr(ino, caller), caller)


def _clear_set_gid(fs: Filesystem, ino: int, caller: Caller) -> None:
    """Clear the bit: as only the kernel knows, the caller that set an access list is not in the group."""
    mode = fs.getattr(ino, caller).stat.st_mode
    if mode & stat.S_ISGID:
        fs.setattr(ino, AttributeChange(mode=stat.S_IMODE(mode) & ~stat.S_ISGID), None, caller)


def _answering(body: bytes, work: Callable[[], object]) -> Callable[[], bytes]:
    """The same work, with *body* as its answer."""

    def done() -> bytes:
        work()
        return body

    return done


def _as_much_as_fits(value: bytes, room: int) -> bytes:
    """The answer for a caller with *room* for *value*; without room, the size that is needed."""
    if room == 0:
        return protocol.written(len(value))
    if len(value) > room:
        raise OSError(errno.ERANGE, os.strerror(errno.ERANGE))
    return value
