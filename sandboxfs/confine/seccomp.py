"""Seccomp filter: the system calls that are refused, their numbers, and the assembler of the program.

A filter for the kernel, written by hand because the rules are few. It keeps a program from typing into its
terminal (TIOCSTI) and from pasting there (TIOCLINUX); from the user's kernel keys, which no namespace keeps
apart; and from parts of the kernel that hardly a program needs and that have been a way around confinement:
new user namespaces, io_uring, bpf, performance counters, and all families of sockets but the usual ones, some
of which no namespace keeps apart (vsock leads to the hypervisor). Netlink is let through for routes and
addresses only, which name resolution asks for. Calls that are newer than the filter do not exist for the
program.

Where there are no namespaces, the filter also keeps a program from the network and the sockets of other
programs, from the limits and priorities of other processes, from what processes share without a file (System
V IPC, message queues), from extended attributes and flags of files named by a path, which may lie anywhere,
and from set-id bits.

Call numbers: calls since Linux 5.1 have the same number on every architecture. `REVIEWED` is the highest
number that was looked at, call by call: a kernel that is newer than the table may have calls above it that
reach around a confinement.
"""

import errno
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

# file_setattr, the last call of Linux 6.18.
REVIEWED = 469

_COMMON = {
    "semtimedop_time64": 420,
    "io_uring_setup": 425,
    "clone3": 435,
    "openat2": 437,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "file_setattr": 469,
}


@dataclass(frozen=True)
class Architecture:
    """One architecture as seccomp names it, and its call numbers.

    *private* is the first and the last number of calls that only this architecture has, apart from all
    others.
    """

    audit: int
    numbers: dict[str, int]
    private: tuple[int, int] | None = None
    _all: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_all", _COMMON | self.numbers)

    def having(self, *names: str) -> list[int]:
        """Return the numbers of the calls *names*, without those that the architecture does not have."""
        return [self._all[name] for name in names if name in self._all]


def _numbered(text: str) -> dict[str, int]:
    """Read words of the form `name=number`."""
    return {name: int(number) for name, _, number in (word.partition("=") for word in text.split())}


X86_64 = Architecture(
    0xC000003E,
    _numbered(
        """
        open=2 ioctl=16 shmget=29 shmat=30 shmctl=31 socket=41 socketpair=53 clone=56 semget=64 semop=65
        semctl=66 shmdt=67 msgget=68 msgsnd=69 msgrcv=70 msgctl=71 creat=85 chmod=90 fchmod=91 chown=92
        fchown=93 lchown=94 utime=132 mknod=133 setpriority=141 sched_setparam=142 sched_setscheduler=144
        setxattr=188 lsetxattr=189 fsetxattr=190 removexattr=197 lremovexattr=198 fremovexattr=199
        sched_setaffinity=203 semtimedop=220 utimes=235 mq_open=240 mq_unlink=241 add_key=248
        request_key=249 keyctl=250 ioprio_set=251 openat=257 mknodat=259 fchownat=260 futimesat=261
        fchmodat=268 unshare=272 utimensat=280 perf_event_open=298 prlimit64=302 sched_setattr=314 bpf=321
        userfaultfd=323
        """
    ),
)
I386 = Architecture(
    0x40000003,
    _numbered(
        """
        open=5 creat=8 mknod=14 chmod=15 lchown16=16 utime=30 ioctl=54 fchmod=94 fchown16=95 setpriority=97
        socketcall=102 ipc=117 clone=120 sched_setparam=154 sched_setscheduler=156 chown16=182 lchown=198
        fchown=207 chown=212 setxattr=226 lsetxattr=227 fsetxattr=228 removexattr=235 lremovexattr=236
        fremovexattr=237 sched_setaffinity=241 utimes=271 mq_open=277 mq_unlink=278 add_key=286
        request_key=287 keyctl=288 ioprio_set=289 openat=295 mknodat=297 fchownat=298 futimesat=299
        fchmodat=306 unshare=310 utimensat=320 perf_event_open=336 prlimit64=340 sched_setattr=351 bpf=357
        socket=359 socketpair=360 userfaultfd=374 semget=393 semctl=394 shmget=395 shmctl=396 shmat=397
        shmdt=398 msgget=399 msgsnd=400 msgrcv=401 msgctl=402 utimensat_time64=412
        """
    ),
)
AARCH64 = Architecture(
    0xC00000B7,
    _numbered(
        """
        setxattr=5 lsetxattr=6 fsetxattr=7 removexattr=14 lremovexattr=15 fremovexattr=16 ioctl=29
        ioprio_set=30 mknodat=33 fchmod=52 fchmodat=53 fchownat=54 fchown=55 openat=56 utimensat=88
        unshare=97 sched_setparam=118 sched_setscheduler=119 sched_setaffinity=122 setpriority=140
        mq_open=180 mq_unlink=181 msgget=186 msgctl=187 msgrcv=188 msgsnd=189 semget=190 semctl=191
        semtimedop=192 semop=193 shmget=194 shmctl=195 shmat=196 shmdt=197 socket=198 socketpair=199
        add_key=217 request_key=218 keyctl=219 clone=220 perf_event_open=241 prlimit64=261 sched_setattr=274
        bpf=280 userfaultfd=282
        """
    ),
)
ARM = Architecture(
    0x40000028,
    _numbered(
        """
        open=5 creat=8 mknod=14 chmod=15 lchown16=16 ioctl=54 fchmod=94 fchown16=95 setpriority=97 ipc=117
        clone=120 sched_setparam=154 sched_setscheduler=156 chown16=182 lchown=198 fchown=207 chown=212
        setxattr=226 lsetxattr=227 fsetxattr=228 removexattr=235 lremovexattr=236 fremovexattr=237
        sched_setaffinity=241 utimes=269 mq_open=274 mq_unlink=275 socket=281 socketpair=288 semop=298
        semget=299 semctl=300 msgsnd=301 msgrcv=302 msgget=303 msgctl=304 shmat=305 shmdt=306 shmget=307
        shmctl=308 add_key=309 request_key=310 keyctl=311 semtimedop=312 ioprio_set=314 openat=322
        mknodat=324 fchownat=325 futimesat=326 fchmodat=333 unshare=337 utimensat=348 perf_event_open=364
        prlimit64=369 sched_setattr=380 bpf=386 userfaultfd=388 utimensat_time64=412
        """
    ),
    # cacheflush, set_tls and their kind.
    private=(0xF0000, 0xF00FF),
)
# machine, as `os.uname` calls it -> what a process there can speak
MACHINES = {"x86_64": (X86_64, I386), "aarch64": (AARCH64, ARM)}


_LOAD, _AND, _JUMP, _EQUAL, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x06
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_ERRNO = 0x00050000

# Where struct seccomp_data has the call's number, the architecture, and the lower half of each argument. Only
# that half is looked at: the kernel itself looks at no more of what is compared here.
_NUMBER, _ARCHITECTURE = 0, 4
_ARGUMENTS = 16


class Test(IntEnum):
    """How what was loaded is compared with a value."""

    AT_LEAST = 0x35
    ANY_BIT = 0x45


class FilterProgram:
    """A filter in the making; its jumps only go forwards, to where they are landed."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []

    def load_number(self) -> None:
        self._code.append((_LOAD, 0, 0, _NUMBER))

    def load_architecture(self) -> None:
        self._code.append((_LOAD, 0, 0, _ARCHITECTURE))

    def load_argument(self, position: int) -> None:
        self._code.append((_LOAD, 0, 0, _ARGUMENTS + 8 * position))

    def keep(self, bits: int) -> None:
        """Clear all but *bits* of what was loaded."""
        self._code.append((_AND, 0, 0, bits))

    def unless_any(self, values: Sequence[int]) -> int:
        """Go on when what was loaded is one of *values*; otherwise jump to where the result is landed."""
        for left in range(len(values) - 1, 0, -1):
            self._code.append((_EQUAL, left, 0, values[-left - 1]))
        return self._jumping(_EQUAL, values[-1])

    def unless(self, test: Test, value: int) -> int:
        """Go on when the *test* holds; otherwise jump to where the result is landed."""
        return self._jumping(test, value)

    def far_unless_equal(self, value: int) -> int:
        """Do as `unless_any` does, over any distance."""
        self._code.append((_EQUAL, 1, 0, value))
        return self._jumping(_JUMP, 0)

    def _jumping(self, code: int, value: int) -> int:
        self._code.append((code, 0, 0, value))
        return len(self._code) - 1

    def land(self, jump: int) -> None:
        """Have *jump* lead to what comes next."""
        code, true, _, value = self._code[jump]
        distance = len(self._code) - jump - 1
        self._code[jump] = (code, 0, 0, distance) if code == _JUMP else (code, true, distance, value)

    def refuse(self, error: int) -> None:
        self._code.append((_RETURN, 0, 0, _ERRNO | error))

    def notify(self) -> None:
        """Have whoever listens answer the call."""
        self._code.append((_RETURN, 0, 0, _NOTIFY))

    def allow(self) -> None:
        self._code.append((_RETURN, 0, 0, _ALLOW))

    def assemble(self) -> bytes:
        """Return the filter as the kernel takes it."""
        return b"".join(self._instructions())

    def _instructions(self) -> Iterator[bytes]:
        for code, true, false, value in self._code:
            # A jump has eight bits; a filter that outgrew them must not be cut off silently.
            yield struct.pack("=HBBI", code, true, false, value)


_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
# FS_IOC_SETFLAGS, FS_IOC_SETVERSION and EXT4_IOC_SETVERSION_OLD, all also for 32 bits, FS_IOC_FSSETXATTR,
# FAT_IOCTL_SET_ATTRIBUTES, FS_IOC_ENABLE_VERITY and FS_IOC_SET_ENCRYPTION_POLICY: none needs a descriptor for
# writing.
_FILE_FLAGS = (
    0x40086602, 0x40087602, 0x40086604, 0x40046602, 0x40047602, 0x40046604, 0x401C5820, 0x40047211,
    0x40806685, 0x800C6613,
)  # fmt: skip
_CLONE_NEWUSER = 0x10000000
# O_CREAT and the bit that only O_TMPFILE has: with one of them, open(2) looks at its mode.
_CREATES = 0o100 | 0o20000000
_SET_ID = 0o6000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE = 1, 5, 0xF
_SOCKETCALL_SOCKET, _SOCKETCALL_SOCKETPAIR = 1, 8
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1

_UNNEEDED = (
    "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup",
)  # fmt: skip
_SHARED = (
    "ipc", "shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop",
    "semtimedop_time64", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink",
)  # fmt: skip
# Their first argument is a process.
_ON_PROCESS = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
# They need no opened file, so that Landlock is not asked. Their namesakes for descriptors are let through.
_ATTRIBUTES_BY_PATH = (
    "setxattr", "lsetxattr", "setxattrat", "removexattr", "lremovexattr", "removexattrat", "file_setattr",
)  # fmt: skip
# Where each call has its mode. mkdir is not among them: the kernel takes no set-id bits from it.
_MODES = {
    "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2,
}  # fmt: skip
# Changes of attributes, which Landlock is not asked about: by path, and by a descriptor that may be open for
# reading alone. The 16-bit forms are for owners.
ATTENDED = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchown", "fchownat", "chown16",
    "lchown16", "fchown16", "utime", "utimes", "futimesat", "utimensat", "utimensat_time64", "setxattr",
    "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat",
)  # fmt: skip
# Where each call has its flags; the mode follows.
_OPENS = {"open": 1, "openat": 2}


def known(machine: str) -> bool:
    """Say whether there is a filter for *machine*, as `os.uname` calls it."""
    return machine in MACHINES


def build_filter(
    machine: str, *, local: bool = True, internet: bool = True, alone: bool = True, attended: bool = False
) -> bytes:
    """Return the filter for *machine*, in the form that seccomp(2) and `bwrap --seccomp` take.

    Without *local*, sockets to programs of this machine are refused; without *internet*, all others. A
    program that is not *alone* has no namespaces to keep it from other processes and what they share, nor
    from the files of the machine. Of one that is *attended*, the `attendant` is told of changes of
    attributes.
    """
    program = FilterProgram()
    for calls in MACHINES[machine]:
        _add_architecture(program, calls, local=local, internet=internet, alone=alone, attended=attended)
    # Of another architecture than those known: nothing it asks for is understood.
    program.refuse(errno.ENOSYS)
    return program.assemble()


def _add_architecture(
    program: FilterProgram, calls: Architecture, *, local: bool, internet: bool, alone: bool, attended: bool
) -> None:
    program.load_architecture()
    skip = program.far_unless_equal(calls.audit)
    program.load_number()
    _refuse_unreviewed(program, calls)
    _refuse_any(program, calls.having(*_UNNEEDED), errno.EPERM)
    # Its flags are in memory, where a filter cannot look; the C library then uses clone.
    _refuse_any(program, calls.having("clone3"), errno.ENOSYS)
    for number in calls.having("clone", "unshare"):
        _refuse_bits(program, number, 0, _CLONE_NEWUSER)
    _refuse_ioctls(program, calls, alone=alone)
    if attended:
        skip_attended = program.unless_any(calls.having(*ATTENDED))
        program.notify()
        program.land(skip_attended)
    if not alone:
        _refuse_others(program, calls)
        _refuse_files_by_path(program, calls)
        _refuse_set_id(program, calls)
    _refuse_sockets(program, calls, local=local, internet=internet)
    _refuse_pairs(program, calls, local=local)
    _refuse_socketcall(program, calls, local=local)
    program.allow()
    program.land(skip)


def _refuse_unreviewed(program: FilterProgram, calls: Architecture) -> None:
    """Refuse calls that nobody has looked at: a program takes ENOSYS for an older kernel.

    Those of x32, a second way to say every call of x86_64, are numbered above all others.
    """
    old = program.unless(Test.AT_LEAST, REVIEWED + 1)
    if calls.private is not None:
        first, last = calls.private
        below = program.unless(Test.AT_LEAST, first)
        beyond = program.unless(Test.AT_LEAST, last + 1)
        program.refuse(errno.ENOSYS)
        program.land(beyond)
        program.allow()
        program.land(below)
    program.refuse(errno.ENOSYS)
    program.land(old)


def _refuse_any(program: FilterProgram, numbers: Sequence[int], error: int) -> None:
    """Refuse what was loaded if it is one of *numbers*: calls, or an argument of one."""
    if numbers:
        skip = program.unless_any(numbers)
        program.refuse(error)
        program.land(skip)


def _refuse_bits(program: FilterProgram, number: int, position: int, bits: int) -> None:
    """Refuse a call with one of *bits* in an argument."""
    skip = program.unless_any([number])
    program.load_argument(position)
    clear = program.unless(Test.ANY_BIT, bits)
    program.refuse(errno.EPERM)
    program.land(clear)
    program.allow()
    program.land(skip)


def _refuse_ioctls(program: FilterProgram, calls: Architecture, *, alone: bool) -> None:
    skip = program.unless_any(calls.having("ioctl"))
    program.load_argument(1)
    _refuse_any(program, (_TIOCSTI, _TIOCLINUX), errno.EPERM)
    if not alone:
        _refuse_any(program, _FILE_FLAGS, errno.ENOTTY)
    program.allow()
    program.land(skip)


def _refuse_others(program: FilterProgram, calls: Architecture) -> None:
    """Refuse what reaches other processes of the same user without a file: only the caller itself is left."""
    _refuse_any(program, calls.having(*_SHARED), errno.EPERM)
    for number in calls.having(*_ON_PROCESS):
        _allow_only(program, number, 0)
    for number in calls.having("setpriority"):
        _allow_only(program, number, _PRIO_PROCESS, 0)
    for number in calls.having("ioprio_set"):
        _allow_only(program, number, _IOPRIO_WHO_PROCESS, 0)


def _refuse_files_by_path(program: FilterProgram, calls: Architecture) -> None:
    """Refuse attributes by path, as a filesystem would that has none: programs that copy them go on then."""
    _refuse_any(program, calls.having(*_ATTRIBUTES_BY_PATH), errno.ENOTSUP)


def _refuse_set_id(program: FilterProgram, calls: Architecture) -> None:
    """Refuse modes with set-id bits: another user of the machine who could run it would become this one."""
    for name, position in _MODES.items():
        for number in calls.having(name):
            _refuse_bits(program, number, position, _SET_ID)
    for name, position in _OPENS.items():
        for number in calls.having(name):
            skip = program.unless_any([number])
            program.load_argument(position)
            opens = program.unless(Test.ANY_BIT, _CREATES)
            program.load_argument(position + 1)
            clear = program.unless(Test.ANY_BIT, _SET_ID)
            program.refuse(errno.EPERM)
            program.land(opens)
            program.land(clear)
            program.allow()
            program.land(skip)
    # Its mode is in memory; programs use openat where the kernel has no openat2.
    _refuse_any(program, calls.having("openat2"), errno.ENOSYS)


def _allow_only(program: FilterProgram, number: int, *arguments: int) -> None:
    """Refuse a call unless it begins with *arguments*."""
    skip = program.unless_any([number])
    others = []
    for position, argument in enumerate(arguments):
        program.load_argument(position)
        others.append(program.unless_any([argument]))
    program.allow()
    for other in others:
        program.land(other)
    program.refuse(errno.EPERM)
    program.land(skip)


def _refuse_sockets(program: FilterProgram, calls: Architecture, *, local: bool, internet: bool) -> None:
    skip = program.unless_any(calls.having("socket"))
    program.load_argument(0)
    usual = {_AF_UNIX: local, _AF_INET: internet, _AF_INET6: internet, _AF_NETLINK: internet}
    _refuse_any(program, [family for family, allowed in usual.items() if not allowed], errno.EACCES)
    other = program.unless_any([_AF_NETLINK])
    # Netlink also lists the sockets of all users (sock_diag), and leads to many parts of the kernel.
    program.load_argument(2)
    unneeded = program.unless_any([_NETLINK_ROUTE])
    program.allow()
    program.land(unneeded)
    program.refuse(errno.EPROTONOSUPPORT)
    program.land(other)
    unusual = program.unless_any(list(usual))
    program.allow()
    program.land(unusual)
    program.refuse(errno.EAFNOSUPPORT)
    program.land(skip)


def _refuse_pairs(program: FilterProgram, calls: Architecture, *, local: bool) -> None:
    """Refuse pairs of unusual families, and without *local* those whose ends can be connected elsewhere."""
    skip = program.unless_any(calls.having("socketpair"))
    program.load_argument(0)
    unusual = program.unless_any([_AF_UNIX])
    if not local:
        program.load_argument(1)
        program.keep(_SOCK_TYPE)
        datagrams = program.unless_any([_SOCK_STREAM, _SOCK_SEQPACKET])
        program.allow()
        program.land(datagrams)
        program.refuse(errno.EACCES)
    else:
        program.allow()
    program.land(unusual)
    program.refuse(errno.EAFNOSUPPORT)
    program.land(skip)


def _refuse_socketcall(program: FilterProgram, calls: Architecture, *, local: bool) -> None:
    """Refuse the older way to make a socket: what kind it is of is in memory, where a filter cannot look."""
    for number in calls.having("socketcall"):
        skip = program.unless_any([number])
        program.load_argument(0)
        making = [_SOCKETCALL_SOCKET] if local else [_SOCKETCALL_SOCKET, _SOCKETCALL_SOCKETPAIR]
        _refuse_any(program, making, errno.EPERM)
        program.allow()
        program.land(skip)
