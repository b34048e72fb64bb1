"""Attribute calls under Landlock: seccomp notification, and the calls done for the program inside its fence.

Each call is taken apart into what it is about (a path from a directory, or a descriptor of the caller) and
the change, which is made through a descriptor of ours. Paths and values are read from the caller's memory
once.

Landlock is not asked about modes, owners, times and extended attributes, and a seccomp filter sees no paths.
So the filter hands these calls over: the calling thread waits while the attendant, a thread of the process
that minds the program, reads the path once, opens what it leads to, looks where that lies, and makes the
change through the descriptor. What the program does to its memory or to names meanwhile changes nothing. The
attendant has no capabilities: it makes no change that the program's user may not make.
"""

import ctypes
import errno
import fcntl
import os
import re
import select
import signal
import socket
import stat
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sandboxfs.confine import kernel_calls
from sandboxfs.confine.seccomp import ATTENDED, MACHINES, build_filter, known

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = 0x100, 0x1000
_LONGEST_PATH, _LONGEST_NAME, _LARGEST_VALUE = 4096, 256, 65536
_PAGE = os.sysconf("SC_PAGESIZE")
# A descriptor of the caller in the form of a path, and perhaps a path from there: tar says it so.
_OWN_DESCRIPTOR = re.compile(rb"(?:/proc/(?:self|thread-self|(\d+))|/dev)/fd/(\d+)(/.*)?", re.DOTALL)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@dataclass(frozen=True)
class Call:
    """One call that a thread waits for: its name, and its arguments as the kernel has them.

    *wide*: long numbers in memory have 64 bits.
    """

    thread: int
    name: str
    arguments: Sequence[int]
    wide: bool

    def signed(self, position: int) -> int:
        return ctypes.c_int(self.arguments[position]).value

    def unsigned(self, position: int) -> int:
        return ctypes.c_uint(self.arguments[position]).value


@dataclass(frozen=True)
class Target:
    """What a call is about: the address of a path from *directory*; without one, the descriptor itself."""

    directory: int
    path: int
    flags: int = 0


class WaitingThread:
    """The memory and the descriptors of a thread that waits."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._memory)

    def read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self._memory, size, address)
        except (OSError, OverflowError):
            data = b""
        if len(data) < size:
            raise _error(errno.EFAULT)
        return data

    def text(self, address: int, longest: int, error: int) -> bytes:
        """Read what ends with a zero byte; only the pages that it is on need be there."""
        found = b""
        while b"\0" not in found:
            if len(found) >= longest:
                raise _error(error)
            at = address + len(found)
            found += self.read(at, min(_PAGE - at % _PAGE, longest - len(found)))
        return found[: found.index(b"\0")]

    def hold(self, target: Target) -> int:
        """Open what a call is about, as the caller would find it, and only to change its attributes."""
        if not target.path:
            return self._descriptor(target.directory)
        path = self.text(target.path, _LONGEST_PATH, errno.ENAMETOOLONG)
        if not path and target.flags & _AT_EMPTY_PATH:
            return self._descriptor(target.directory)
        own = _OWN_DESCRIPTOR.fullmatch(path)
        start = target.directory
        if own is not None and int(own[1] or self._thread) in (self._thread, self._process()):
            if own[3] is None:
                return self._descriptor(int(own[2]))
            start, path = int(own[2]), own[3].lstrip(b"/") or b"."
        follow = not target.flags & _AT_SYMLINK_NOFOLLOW
        if path.startswith(b"/"):
            return kernel_calls.hold(_AT_FDCWD, path, follow=follow)
        directory = self._descriptor(start)
        try:
            return kernel_calls.hold(directory, path, follow=follow)
        finally:
            os.close(directory)

    def _descriptor(self, number: int) -> int:
        place = "cwd" if number == _AT_FDCWD else f"fd/{number}"
        try:
            return os.open(f"/proc/{self._thread}/{place}", os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _error(errno.EBADF) from None

    def _process(self) -> int:
        status = Path(f"/proc/{self._thread}/status").read_bytes()
        return int(status.partition(b"\nTgid:")[2].split(maxsplit=1)[0])


Apply = Callable[[int, WaitingThread], None]
"""Makes a change to what is held open, with what else the caller has in memory."""
_Targeted = Callable[[Call], Target]
_Change = Callable[[Call], tuple[Target, Apply]]


def _named(call: Call) -> Target:
    # No address is no path, not a descriptor.
    return Target(_AT_FDCWD, call.arguments[0] or 1)


def _named_itself(call: Call) -> Target:
    return Target(_AT_FDCWD, call.arguments[0] or 1, _AT_SYMLINK_NOFOLLOW)


def _opened(call: Call) -> Target:
    return Target(call.signed(0), 0)


def _at(call: Call) -> Target:
    return Target(call.signed(0), call.arguments[1])


def _flagged(position: int) -> _Targeted:
    def target(call: Call) -> Target:
        flags = call.unsigned(position)
        if flags & ~(_AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH):
            raise _error(errno.EINVAL)
        return Target(call.signed(0), call.arguments[1], flags)

    return target


def _mode(target: _Targeted, position: int) -> _Change:
    def change(call: Call) -> tuple[Target, Apply]:
        mode = call.arguments[position] & 0o7777

        def apply(held: int, _: WaitingThread) -> None:
            # Another user who could run it would become this one. A directory only hands its group on.
            is_directory = stat.S_ISDIR(os.fstat(held).st_mode)
            if mode & (stat.S_ISUID | (0 if is_directory else stat.S_ISGID)):
                raise _error(errno.EPERM)
            Path(f"/proc/self/fd/{held}").chmod(mode)

        return target(call), apply

    return change


def _owner(target: _Targeted, position: int) -> _Change:
    def change(call: Call) -> tuple[Target, Apply]:
        user, group = call.unsigned(position), call.unsigned(position + 1)
        return target(call), lambda held, _: kernel_calls.change_owner(held, user, group)

    return change


def _times(target: _Targeted, position: int, unit: int, *, whole: bool = False) -> _Change:
    """Changes both times: *whole* seconds, or each with a part that is counted in *unit* nanoseconds."""

    def change(call: Call) -> tuple[Target, Apply]:
        address = call.arguments[position]
        word = "q" if call.wide or call.name == "utimensat_time64" else "i"
        layout = struct.Struct("=" + (2 if whole else 4) * word)

        def apply(held: int, caller: WaitingThread) -> None:
            if not address:
                kernel_calls.change_times(held, None)
                return
            numbers = layout.unpack(caller.read(address, layout.size))
            seconds = numbers if whole else numbers[::2]
            parts = (0, 0) if whole else numbers[1::2]
            made = [struct.pack("=qq", *one) for one in zip(seconds, (p * unit for p in parts), strict=True)]
            kernel_calls.change_times(held, b"".join(made))

        return target(call), apply

    return change


def _attribute(target: _Targeted, position: int, *, packed: bool = False) -> _Change:
    """Sets the attribute whose name is at *position*: value, size and flags follow, or are *packed* there."""

    def change(call: Call) -> tuple[Target, Apply]:
        def apply(held: int, caller: WaitingThread) -> None:
            name = caller.text(call.arguments[position], _LONGEST_NAME, errno.ERANGE)
            address, size, flags = call.arguments[position + 1 : position + 4]
            if packed:
                address, size, flags = struct.unpack("=QII", caller.read(address, 16))
            if size > _LARGEST_VALUE:
                raise _error(errno.E2BIG)
            value = caller.read(address, size) if size else b""
            os.setxattr(f"/proc/self/fd/{held}", name, value, flags & 0xFFFFFFFF)

        return target(call), apply

    return change


def _no_attribute(target: _Targeted, position: int) -> _Change:
    def change(call: Call) -> tuple[Target, Apply]:
        def apply(held: int, caller: WaitingThread) -> None:
            name = caller.text(call.arguments[position], _LONGEST_NAME, errno.ERANGE)
            os.removexattr(f"/proc/self/fd/{held}", name)

        return target(call), apply

    return change


CHANGES: dict[str, _Change] = {
    "chmod": _mode(_named, 1),
    "fchmod": _mode(_opened, 1),
    "fchmodat": _mode(_at, 2),
    "fchmodat2": _mode(_flagged(3), 2),
    "chown": _owner(_named, 1),
    "lchown": _owner(_named_itself, 1),
    "fchown": _owner(_opened, 1),
    "fchownat": _owner(_flagged(4), 2),
    "utime": _times(_named, 1, 1, whole=True),
    "utimes": _times(_named, 1, 1000),
    "futimesat": _times(_at, 2, 1000),
    "utimensat": _times(_flagged(3), 2, 1),
    "utimensat_time64": _times(_flagged(3), 2, 1),
    "setxattr": _attribute(_named, 1),
    "lsetxattr": _attribute(_named_itself, 1),
    "fsetxattr": _attribute(_opened, 1),
    "setxattrat": _attribute(_flagged(2), 3, packed=True),
    "removexattr": _no_attribute(_named, 1),
    "lremovexattr": _no_attribute(_named_itself, 1),
    "fremovexattr": _no_attribute(_opened, 1),
    "removexattrat": _no_attribute(_flagged(2), 3),
}

# struct seccomp_notif and struct seccomp_notif_resp, and the requests that take them.
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102


class Attendant:
    """Attends to one program, which may change what lies at or below *places*."""

    def __init__(self, places: Sequence[Path], program: bytes) -> None:
        """Prepare for the filter *program*."""
        self._places = [os.path.realpath(place) for place in places]
        self._program = program
        self._near, self._far = socket.socketpair()
        # The machine's own architecture comes first; the other is its one of 32 bits.
        self._names = {
            (calls.audit, number): (name, wide)
            for wide, calls in zip((True, False), MACHINES[os.uname().machine], strict=True)
            for name in ATTENDED
            for number in calls.having(name)
        }

    def begin(self) -> None:
        """In the program's process: install the filter, and hand over the descriptor on which it tells."""
        listener = kernel_calls.install_attended_filter(self._program)
        socket.send_fds(self._far, [b"."], [listener])
        os.close(listener)

    def attend(self) -> None:
        """In the process that minds the program: answer its calls from now on, in a thread."""
        self._far.close()
        with self._near:
            (listener,) = socket.recv_fds(self._near, 1, 1)[1]
        threading.Thread(target=self._answer_all, args=(listener,), name="attendant", daemon=True).start()

    def _answer_all(self, listener: int) -> None:
        try:
            # Both of this thread alone. A signal would interrupt an answer, and its caller waited for ever.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            kernel_calls.give_up_capabilities()
            self._answer_each(listener)
        finally:
            # From then on the kernel answers that there is no such call.
            os.close(listener)

    def _answer_each(self, listener: int) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        # Until nobody is left who could call.
        while all(event & select.POLLIN for _, event in poll.poll()):
            told = bytearray(_NOTIFICATION.size)
            # Who was killed meanwhile needs no answer.
            with suppress(OSError):
                fcntl.ioctl(listener, _RECEIVE, told)
                identity, thread, _, number, architecture, _, *arguments = _NOTIFICATION.unpack(told)
                name, wide = self._names[architecture, number]
                error = self._answer(Call(thread, name, arguments, wide), _Waiting(listener, identity))
                fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(identity, 0, -error, 0)))

    def _answer(self, call: Call, check: Callable[[], None]) -> int:
        """Do what is asked; the error to answer with, 0 for none."""
        try:
            self._change(call, check)
        except OSError as error:
            return error.errno or errno.EIO
        except Exception:
            # A bug must neither leave the program waiting nor end the attendant.
            return errno.EIO
        return 0

    def _change(self, call: Call, check: Callable[[], None]) -> None:
        change = CHANGES.get(call.name)
        if change is None:
            # An older call for owners with numbers of 16 bits: no program needs it.
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        target, apply = change(call)
        caller = WaitingThread(call.thread)
        try:
            check()
            held = caller.hold(target)
            try:
                self._check_place(held)
                apply(held, caller)
            finally:
                os.close(held)
        finally:
            caller.close()

    def _check_place(self, held: int) -> None:
        where = str(Path(f"/proc/self/fd/{held}").readlink())
        # What is in no directory is the program's own: pipes, sockets, files in memory.
        nameless = not where.startswith("/") or where.startswith("/memfd:")
        if not nameless and not any(f"{where}/".startswith(f"{place}/") for place in self._places):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


class _Waiting:
    """Raises unless the thread still waits: its number is then its own, and so is the memory opened by it."""

    def __init__(self, listener: int, identity: int) -> None:
        self._listener = listener
        self._identity = identity

    def __call__(self) -> None:
        fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", self._identity))


def possible() -> bool:
    """Find out by trying whether this machine lets a program be attended to.

    It may be attended to already, by a manager of containers: there can be only one. And the machine may let
    nobody read the memory of another process.
    """
    if not known(os.uname().machine):
        return False
    trying = os.fork()
    if trying == 0:
        _try()
    return os.waitstatus_to_exitcode(os.waitpid(trying, 0)[1]) == 0


def _try() -> NoReturn:
    status = 1
    try:
        kernel_calls.give_up_capabilities()
        reading, writing = os.pipe()
        waiting = os.fork()
        if waiting == 0:
            _wait_attended(writing)
        try:
            os.close(writing)
            if os.read(reading, 1):
                WaitingThread(waiting).close()
                status = 0
        finally:
            os.kill(waiting, signal.SIGKILL)
            os.waitpid(waiting, 0)
    finally:
        os._exit(status)


def _wait_attended(writing: int) -> NoReturn:
    try:
        kernel_calls.give_up_new_privileges()
        kernel_calls.install_attended_filter(build_filter(os.uname().machine, attended=True))
        os.write(writing, b".")
        signal.pause()
    finally:
        os._exit(1)
