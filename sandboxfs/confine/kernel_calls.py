"""System calls of confinement that Python lacks: namespaces, seccomp, Landlock, process control.

Each raises OSError. They act on the calling process and are meant for a child that is about to become another
program.
"""

import ctypes
import os
import signal
import struct

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522
_SECCOMP_MODE_FILTER = 2
_SECCOMP_SET_MODE_FILTER = 1
# A descriptor on which calls are told of; and once one is, no signal but a deadly one interrupts it.
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08
_AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH, _AT_RECURSIVE = 0x100, 0x1000, 0x8000
_NS_GET_USERNS = 0xB701
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
# The same numbers on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_BETWEEN_DESCRIPTORS = 0x04 | 0x40
_MOUNT_READ_ONLY, _MOUNT_NO_SET_ID, _MOUNT_NO_DEVICES = 1, 2, 4
_DETACH_LAZILY = 2
_STATX_SIZE, _STATX_ATTRIBUTES, _STATX_MOUNT_ROOT = 256, 8, 0x2000

# The same numbers on every architecture, as of all calls since Linux 5.1.
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1

_libc = ctypes.CDLL(None, use_errno=True)


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def landlock_abi() -> int:
    """Return which Landlock this kernel has, 0 for none."""
    version = _libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE_RULESET),
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint32(_LANDLOCK_CREATE_RULESET_VERSION),
    )
    return max(0, int(version))


def create_ruleset(*, files: int, network: int, scoped: int) -> int:
    """Make a ruleset that refuses these accesses where no rule allows them; return its descriptor."""
    attributes = _RulesetAttributes(files, network, scoped)
    # Older kernels know fewer fields, and accept more if those are zero.
    size = 24 if scoped else 16 if network else 8
    return _checked(
        _libc.syscall(
            ctypes.c_long(_LANDLOCK_CREATE_RULESET),
            ctypes.byref(attributes),
            ctypes.c_size_t(size),
            ctypes.c_uint32(0),
        )
    )


def allow_beneath(ruleset: int, place: int, accesses: int) -> None:
    """Allow *accesses* to what is at or below the open *place*."""
    rule = _PathBeneath(accesses, place)
    _checked(
        _libc.syscall(
            ctypes.c_long(_LANDLOCK_ADD_RULE),
            ctypes.c_int(ruleset),
            ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    )


def restrict_self(ruleset: int) -> None:
    """Put this thread under *ruleset* for good; it must have given up new privileges."""
    _checked(_libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint32(0)))


def give_up_new_privileges() -> None:
    """Let no program that this process becomes have more rights than it: setuid means nothing from now on."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def give_up_capabilities() -> None:
    """Have none of root's powers any more, nor get them back by starting a program."""
    number = 0
    while _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    # EINVAL: there are no more; EPERM: we are not root, and have none.
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _checked(_libc.capset(header, bytes(24)))


def install_filter(program: bytes) -> None:
    """Have the kernel ask the seccomp *program* about every further system call."""
    held = _FilterProgram(len(program) // 8, program)
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(held), 0, 0))


def install_attended_filter(program: bytes) -> int:
    """Do as `install_filter`; return the descriptor on which calls are told of that the program notifies."""
    held = _FilterProgram(len(program) // 8, program)
    return _checked(
        _libc.syscall(
            ctypes.c_long(_SECCOMP[os.uname().machine]),
            ctypes.c_uint(_SECCOMP_SET_MODE_FILTER),
            ctypes.c_uint(_NEW_LISTENER | _WAIT_KILLABLE),
            ctypes.byref(held),
        )
    )


def hold(directory: int, path: bytes, *, follow: bool) -> int:
    """Open what is at *path*, whatever it is, only to change its attributes, and through no magic link."""
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    how = struct.pack("=QQQ", flags, 0, _RESOLVE_NO_MAGICLINKS)
    return _checked(
        _libc.syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(directory), path, how, ctypes.c_size_t(len(how)))
    )


def owner_of_namespace(namespace: int) -> int:
    """Open the user namespace that owns another *namespace*."""
    return _checked(_libc.ioctl(namespace, ctypes.c_ulong(_NS_GET_USERNS)))


def enter_user_namespace(namespace: int) -> None:
    """Enter a user namespace, with every privilege there; the process must have one thread."""
    _checked(_libc.setns(namespace, _CLONE_NEWUSER))


def enter_mount_namespace(namespace: int) -> None:
    """Enter a mount namespace; the root and the current directory are its root then."""
    _checked(_libc.setns(namespace, _CLONE_NEWNS))


def copy_mount_namespace() -> None:
    """Go on in a copy of the mount namespace, which belongs to the user namespace of this process."""
    _checked(_libc.unshare(_CLONE_NEWNS))


def copy_of_mount(directory: int, path: bytes = b"", *, whole: bool = False) -> int:
    """Open a copy of the mount at *path* from *directory*, attached nowhere; *whole*: with those below."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_SYMLINK_NOFOLLOW | (0 if path else _AT_EMPTY_PATH)
    flags |= _AT_RECURSIVE if whole else 0
    return _checked(
        _libc.syscall(ctypes.c_long(_OPEN_TREE), ctypes.c_int(directory), path, ctypes.c_uint(flags))
    )


def attach_mount(mount: int, directory: int) -> None:
    """Attach the *mount* that `copy_of_mount` opened at an open *directory*."""
    flags = ctypes.c_uint(_MOVE_MOUNT_BETWEEN_DESCRIPTORS)
    _checked(
        _libc.syscall(
            ctypes.c_long(_MOVE_MOUNT), ctypes.c_int(mount), b"", ctypes.c_int(directory), b"", flags
        )
    )


def detach_current() -> None:
    """Detach the mount whose root the current directory is, lazily."""
    _checked(_libc.umount2(b".", _DETACH_LAZILY))


def keep_privileges_off(mount: int) -> None:
    """Have set-id bits and devices mean nothing on a *mount* that is attached nowhere."""
    _change_mount(mount, _MOUNT_NO_SET_ID | _MOUNT_NO_DEVICES, 0)


def make_writable(mount: int) -> None:
    """Let a *mount* that is attached nowhere be written, if its file system can be."""
    _change_mount(mount, 0, _MOUNT_READ_ONLY)


def _change_mount(mount: int, added: int, cleared: int) -> None:
    attributes = struct.pack("=QQQQ", added, cleared, 0, 0)
    _checked(
        _libc.syscall(
            ctypes.c_long(_MOUNT_SETATTR),
            ctypes.c_int(mount),
            b"",
            ctypes.c_uint(_AT_EMPTY_PATH),
            attributes,
            ctypes.c_size_t(len(attributes)),
        )
    )


def open_directory(directory: int, name: bytes) -> int:
    """Open what is called *name* in *directory* if it is a real directory; where one is mounted, that."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    how = struct.pack("=QQQ", flags, 0, _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
    return _checked(
        _libc.syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(directory), name, how, ctypes.c_size_t(len(how)))
    )


def is_mount(directory: int) -> bool:
    """Tell whether an open *directory* is the root of a mount."""
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    _checked(_libc.statx(directory, b"", _AT_EMPTY_PATH, 0, answer))
    return bool(struct.unpack_from("=Q", answer.raw, _STATX_ATTRIBUTES)[0] & _STATX_MOUNT_ROOT)


def change_owner(held: int, user: int, group: int) -> None:
    """Change the owner and the group of what `hold` opened; -1 leaves one as it is."""
    _checked(_libc.fchownat(held, b"", ctypes.c_uint(user), ctypes.c_uint(group), _AT_EMPTY_PATH))


def change_times(held: int, times: bytes | None) -> None:
    """Change the times of what `hold` opened: two timespecs as the kernel has them, None for now."""
    _checked(_libc.utimensat(held, b"", times, _AT_EMPTY_PATH))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def end_with_parent(parent: int) -> None:
    """Have this process killed when *parent*, which started it, ends; at once if it has ended already."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
