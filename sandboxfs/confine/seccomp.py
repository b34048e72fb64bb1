"""Which system calls are refused to a confined program?

A filter for the kernel, written by hand because the rules are few. It keeps a program from typing into its
terminal (TIOCSTI) and from pasting there (TIOCLINUX); from the user's kernel keys, which no namespace keeps
apart; and from parts of the kernel that hardly a program needs and that have been a way around confinement:
new user namespaces, io_uring, bpf, performance counters, and all families of sockets but the usual ones, some
of which no namespace keeps apart (vsock leads to the hypervisor). Where namespaces do not, it can keep a
program from the network and the sockets of other programs, from the limits and priorities of other processes,
and from what processes share without a file (System V IPC, message queues).
"""

import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_CLONE_NEWUSER = 0x10000000
# Numbers with this bit are of x32, a second way to say every call of x86_64.
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

# Where struct seccomp_data has the call's number, the architecture, and the lower half of each argument. Only
# that half is looked at: the kernel itself looks at no more of what is compared here.
_NUMBER, _ARCHITECTURE = 0, 4
_ARGUMENTS = 16

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCKETCALL_SOCKET = 1
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1


@dataclass(frozen=True)
class _Calls:
    """The numbers of the calls that matter on one architecture; None where it has no such call."""

    architecture: int
    ioctl: int
    clone: int
    clone3: int
    unshare: int
    socket: int
    socketcall: int | None
    setpriority: int
    ioprio_set: int
    # prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr: a process comes first.
    on_process: tuple[int, ...]
    # System V: ipc shm* sem* msg*; POSIX: mq_open mq_unlink
    shared: tuple[int, ...]
    # Refused whatever the arguments.
    unneeded: tuple[int, ...]


# clone's flags are its first argument on all of these.
_X86_64 = _Calls(
    0xC000003E,
    ioctl=16,
    clone=56,
    clone3=435,
    unshare=272,
    socket=41,
    socketcall=None,
    setpriority=141,
    ioprio_set=251,
    on_process=(302, 203, 144, 142, 314),
    shared=(29, 30, 31, 67, 64, 65, 66, 220, 68, 69, 70, 71, 240, 241),
    # keyctl add_key request_key bpf perf_event_open userfaultfd io_uring_setup
    unneeded=(250, 248, 249, 321, 298, 323, 425),
)
_I386 = _Calls(
    0x40000003,
    ioctl=54,
    clone=120,
    clone3=435,
    unshare=310,
    socket=359,
    socketcall=102,
    setpriority=97,
    ioprio_set=289,
    on_process=(340, 241, 156, 154, 351),
    shared=(117, 395, 396, 397, 398, 393, 394, 420, 399, 400, 401, 402, 277, 278),
    unneeded=(288, 286, 287, 357, 336, 374, 425),
)
_AARCH64 = _Calls(
    0xC00000B7,
    ioctl=29,
    clone=220,
    clone3=435,
    unshare=97,
    socket=198,
    socketcall=None,
    setpriority=140,
    ioprio_set=30,
    on_process=(261, 122, 119, 118, 274),
    shared=(194, 195, 196, 197, 190, 191, 192, 193, 186, 187, 188, 189, 180, 181),
    unneeded=(219, 217, 218, 280, 241, 282, 425),
)
_ARM = _Calls(
    0x40000028,
    ioctl=54,
    clone=120,
    clone3=435,
    unshare=337,
    socket=281,
    socketcall=None,
    setpriority=97,
    ioprio_set=314,
    on_process=(369, 241, 156, 154, 380),
    shared=(117, 305, 306, 307, 308, 298, 299, 300, 312, 420, 301, 302, 303, 304, 274, 275),
    unneeded=(311, 309, 310, 386, 364, 388, 425),
)
# machine -> what a process there can speak
_MACHINES = {"x86_64": (_X86_64, _I386), "aarch64": (_AARCH64, _ARM)}


def known(machine: str) -> bool:
    """Say whether there is a filter for *machine*, as `os.uname` calls it."""
    return machine in _MACHINES


def build_filter(machine: str, *, local: bool = True, internet: bool = True, alone: bool = True) -> bytes:
    """Return the filter for *machine*, in the form that seccomp(2) and `bwrap --seccomp` take.

    Without *local*, sockets to programs of this machine are refused; without *internet*, all others. A
    program that is not *alone* has no namespaces to keep it from other processes and what they share.
    """
    program = _Program()
    for calls in _MACHINES[machine]:
        _add_architecture(program, calls, local=local, internet=internet, alone=alone)
    # Of another architecture than those known: nothing it asks for is understood.
    program.refuse(errno.ENOSYS)
    return program.assemble()


def _add_architecture(
    program: "_Program", calls: _Calls, *, local: bool, internet: bool, alone: bool
) -> None:
    program.load(_ARCHITECTURE)
    skip = program.unless_equal(calls.architecture)
    program.load(_NUMBER)
    if calls is _X86_64:
        other = program.unless(_AT_LEAST, _X32)
        program.refuse(errno.ENOSYS)
        program.land(other)
    for number in calls.unneeded:
        _refuse_call(program, number, errno.EPERM)
    # Its flags are in memory, where a filter cannot look; the C library then uses clone.
    _refuse_call(program, calls.clone3, errno.ENOSYS)
    for number in (calls.clone, calls.unshare):
        _refuse_flag(program, number, _CLONE_NEWUSER)
    _refuse_ioctls(program, calls.ioctl)
    if not alone:
        _refuse_others(program, calls)
    _refuse_sockets(program, calls.socket, local=local, internet=internet)
    if calls.socketcall is not None:
        _refuse_socketcall(program, calls.socketcall)
    program.allow()
    program.land(skip)


def _refuse_call(program: "_Program", number: int, error: int) -> None:
    skip = program.unless_equal(number)
    program.refuse(error)
    program.land(skip)


def _refuse_flag(program: "_Program", number: int, flag: int) -> None:
    skip = program.unless_equal(number)
    program.load(_ARGUMENTS)
    clear = program.unless(_ANY_BIT, flag)
    program.refuse(errno.EPERM)
    program.land(clear)
    program.allow()
    program.land(skip)


def _refuse_ioctls(program: "_Program", number: int) -> None:
    skip = program.unless_equal(number)
    program.load(_ARGUMENTS + 8)
    for request in (_TIOCSTI, _TIOCLINUX):
        _refuse_call(program, request, errno.EPERM)
    program.allow()
    program.land(skip)


def _refuse_others(program: "_Program", calls: _Calls) -> None:
    """Refuse what reaches other processes of the same user without a file: only the caller itself is left."""
    for number in calls.shared:
        _refuse_call(program, number, errno.EPERM)
    for number in calls.on_process:
        _allow_only(program, number, 0)
    _allow_only(program, calls.setpriority, _PRIO_PROCESS, 0)
    _allow_only(program, calls.ioprio_set, _IOPRIO_WHO_PROCESS, 0)


def _allow_only(program: "_Program", number: int, *arguments: int) -> None:
    """Refuse a call unless it begins with *arguments*."""
    skip = program.unless_equal(number)
    others = []
    for position, argument in enumerate(arguments):
        program.load(_ARGUMENTS + 8 * position)
        others.append(program.unless_equal(argument))
    program.allow()
    for other in others:
        program.land(other)
    program.refuse(errno.EPERM)
    program.land(skip)


def _refuse_sockets(program: "_Program", number: int, *, local: bool, internet: bool) -> None:
    skip = program.unless_equal(number)
    program.load(_ARGUMENTS)
    # Netlink asks the kernel, of which addresses this machine has and the like.
    usual = {_AF_UNIX: local, _AF_INET: internet, _AF_INET6: internet, _AF_NETLINK: True}
    for family, allowed in usual.items():
        other = program.unless_equal(family)
        if allowed:
            program.allow()
        else:
            program.refuse(errno.EACCES)
        program.land(other)
    program.refuse(errno.EAFNOSUPPORT)
    program.land(skip)


def _refuse_socketcall(program: "_Program", number: int) -> None:
    """Refuse the older way to make a socket: its family is in memory, where a filter cannot look."""
    skip = program.unless_equal(number)
    program.load(_ARGUMENTS)
    _refuse_call(program, _SOCKETCALL_SOCKET, errno.EPERM)
    program.allow()
    program.land(skip)


class _Program:
    """Instructions of the classic Berkeley packet filter, whose jumps only go forwards."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []

    def load(self, offset: int) -> None:
        self._code.append((_LOAD, 0, 0, offset))

    def unless_equal(self, value: int) -> int:
        """Go on when what was loaded is *value*; otherwise jump to where the result is landed."""
        return self.unless(_EQUAL, value)

    def unless(self, test: int, value: int) -> int:
        self._code.append((test, 0, 0, value))
        return len(self._code) - 1

    def land(self, jump: int) -> None:
        code, _, _, value = self._code[jump]
        self._code[jump] = code, 0, len(self._code) - jump - 1, value

    def refuse(self, error: int) -> None:
        self._code.append((_RETURN, 0, 0, _ERRNO | error))

    def allow(self) -> None:
        self._code.append((_RETURN, 0, 0, _ALLOW))

    def assemble(self) -> bytes:
        return b"".join(self._instructions())

    def _instructions(self) -> Iterator[bytes]:
        for code, true, false, value in self._code:
            # A jump has eight bits; a filter that outgrew them must not be cut off silently.
            yield struct.pack("=HBBI", code, true, false, value)
