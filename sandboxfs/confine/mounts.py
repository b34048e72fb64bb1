"""Mounts of a confined program: what of the machine it sees, and the arguments of bubblewrap for all of it.

Of the machine, a program sees programs and what they need to run, for reading only: nothing of other users,
no state of services, no sockets.

The arguments are only made here; nothing here runs bubblewrap. The program gets namespaces of its own for
users, mounts, processes, IPC, host name, control groups and, unless it may use the network, the network. Its
world is an empty directory into which only what is named here is bound, outer places before those inside
them.
"""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

# Nothing can be put where these are.
IMPOSSIBLE = tuple(map(Path, ("/", "/proc", "/sys", "/dev", "/run")))
_DIRECTORIES = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/gnu",
    "/run/current-system",
)
# What only root may read in /etc, and a confined root need not.
_SECRETS = (
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/.pwd.lock",
    "/etc/security/opasswd",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh/ssh_host_*_key",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/krb5.keytab",
    "/etc/NetworkManager/system-connections",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/ppp/*-secrets",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/docker/*.json",
    "/etc/letsencrypt",
)
# The kernel asks only for the user's number before it lets these be changed, or shows what it holds: root's
# is root's, in whichever namespace.
_SETTINGS_OF_THE_KERNEL = ("sys", "sysrq-trigger", "irq", "bus", "fs", "mtrr")
_INSIDE_OF_THE_KERNEL = (
    *("acpi", "asound", "driver", "iomem", "ioports", "kallsyms", "kcore", "keys", "key-users", "kmsg"),
    *("kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "sched_debug", "scsi", "slabinfo"),
    *("timer_list", "timer_stats", "vmallocinfo"),
)
_NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")


@dataclass(frozen=True)
class System:
    """The system directories of this machine: *links* are those that are symlinks, with their targets.

    Nobody confined may read the *secret_files* and *secret_directories* in them. *kernel_settings* in /proc
    are for reading only.
    """

    directories: tuple[Path, ...]
    links: tuple[tuple[Path, str], ...] = ()
    secret_files: tuple[Path, ...] = ()
    secret_directories: tuple[Path, ...] = ()
    kernel_settings: tuple[Path, ...] = ()


def find_system(interpreter: Path | None = None) -> System:
    """Look what this machine has; *interpreter* is a further directory that must be there."""
    directories = []
    links = []
    for name in _DIRECTORIES:
        path = Path(name)
        if path.is_symlink() and path.parent == Path("/"):
            links.append((path, os.readlink(path)))  # noqa: PTH115 - as it is written
        elif path.is_dir():
            directories.append(path)
    if interpreter is not None and not _inside(interpreter, directories):
        directories.append(interpreter)
    # The kernel itself keeps them from everybody but root.
    secrets = [*_secrets_in_etc(), *_existing(_INSIDE_OF_THE_KERNEL)] if os.geteuid() == 0 else []
    return System(
        tuple(directories),
        tuple(links),
        tuple(path for path in secrets if not path.is_dir()),
        tuple(path for path in secrets if path.is_dir()),
        tuple(_existing(_SETTINGS_OF_THE_KERNEL)),
    )


def name_service(system: System) -> list[Path]:
    """The files for looking up names of the network that lie outside the *system* directories."""
    found = []
    for name in _NAMES:
        # /etc/resolv.conf is usually a link to what a service keeps below /run.
        target = Path(os.path.realpath(name))
        if target.is_file() and not _inside(target, system.directories):
            found.append(target)
    return found


def interpreter_directory() -> Path:
    """Where the Python that runs this program is installed."""
    return Path(os.path.realpath(sys.base_prefix))


def _inside(path: Path, directories: Iterable[Path]) -> bool:
    return any(path.is_relative_to(directory) for directory in directories)


def _secrets_in_etc() -> list[Path]:
    found = [Path(name) for pattern in _SECRETS for name in _matching(pattern)]
    return sorted(path for path in found if not path.is_symlink())


def _matching(pattern: str) -> list[str]:
    """The names that *pattern* with at most one asterisk, in its last part, stands for.

    Looked up without pathlib, whose patterns would take longer than all else that is done for a run.
    """
    directory, _, last = pattern.rpartition("/")
    start, asterisk, end = last.partition("*")
    if not asterisk:
        return [pattern] if os.path.lexists(pattern) else []
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return []
    longest = len(start) + len(end)
    return [
        f"{directory}/{name}"
        for name in names
        if len(name) >= longest and name.startswith(start) and name.endswith(end)
    ]


def _existing(names: Iterable[str]) -> list[Path]:
    return [path for path in (Path("/proc", name) for name in names) if path.exists()]


# Filled by a program, they take memory from everybody.
_TEMPORARY_LIMIT = 2 << 30
_SHARED_MEMORY_LIMIT = 1 << 30
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True)
class ConfinedMounts:
    """What a confined program sees.

    *writable* places are bound from where they are to where they appear; *readable* ones appear where they
    are. *texts* are files that are not on the host: where they appear, and their content.
    """

    system: System
    writable: tuple[tuple[Path, Path], ...]
    readable: tuple[Path, ...] = ()
    texts: tuple[tuple[Path, bytes], ...] = ()
    network: bool = False
    private_temporary: tuple[Path, ...] = field(default=(Path("/tmp"), Path("/var/tmp")))  # noqa: S108


def bubblewrap_arguments(
    world: ConfinedMounts, *, filter_descriptor: int | None, sizes: bool = True, texts: Iterable[int] = ()
) -> list[str]:
    """Return the options for bubblewrap, which the program's command line follows.

    *texts* are the descriptors from which it reads the content of the world's texts, in their order.
    *filter_descriptor* holds the seccomp filter; without one the program is kept from the terminal instead.
    Before version 0.7 bubblewrap knew no *sizes* of temporary directories.
    """
    words = [
        *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"),
        *([] if world.network else ["--unshare-net"]),
        # Root keeps its capabilities unless told otherwise; everybody else has none.
        *("--cap-drop", "ALL"),
        # Our own starter is process 1: it cannot be killed from inside, and everything ends with it.
        "--as-pid-1",
        *_links(world.system),
        *_mounts(world, sizes=sizes),
        *_texts(world, texts),
        # In the end, when everything has its place.
        *("--remount-ro", "/dev", "--remount-ro", "/"),
    ]
    words += ["--new-session"] if filter_descriptor is None else ["--seccomp", str(filter_descriptor)]
    return words


def _links(system: System) -> list[str]:
    return [word for path, target in system.links for word in ("--symlink", target, str(path))]


def _texts(world: ConfinedMounts, descriptors: Iterable[int]) -> list[str]:
    placed = zip(descriptors, world.texts, strict=False)
    return [
        word
        for descriptor, (place, content) in placed
        for word in ("--perms", _mode(content), "--ro-bind-data", str(descriptor), str(place))
    ]


def _mode(content: bytes) -> str:
    """The mode of a file of ours: one that says by what it is run can be run."""
    return "0555" if content.startswith(b"#!") else "0444"


def _mounts(world: ConfinedMounts, *, sizes: bool) -> list[str]:
    """Everything that has a place, outer ones first: what is mounted later covers what is below it.

    In one place, what the user asked for comes last.
    """
    read_only = (*world.system.directories, *world.readable, *world.system.kernel_settings)
    placed: list[tuple[Path, list[str]]] = [
        (Path("/dev"), ["--dev", "/dev"]),
        (Path("/proc"), ["--proc", "/proc"]),
        (Path("/run"), ["--dir", "/run"]),
        *((place, ["--ro-bind", str(place), str(place)]) for place in read_only),
        *((place, ["--ro-bind", "/dev/null", str(place)]) for place in world.system.secret_files),
        *(
            (place, ["--tmpfs", str(place), "--remount-ro", str(place)])
            for place in world.system.secret_directories
        ),
        *_temporary_places(world, sizes=sizes),
        *((place, ["--bind", str(source), str(place)]) for source, place in world.writable),
    ]
    placed.sort(key=lambda one: len(one[0].parts))
    return [word for _, words in placed for word in words]


def _temporary_places(world: ConfinedMounts, *, sizes: bool) -> list[tuple[Path, list[str]]]:
    """The private temporary directories, without those that would cover a part of what the user asked for."""
    limits = dict.fromkeys(world.private_temporary, _TEMPORARY_LIMIT) | {_SHARED_MEMORY: _SHARED_MEMORY_LIMIT}
    return [
        (place, _temporary(place, limit, sizes=sizes))
        for place, limit in limits.items()
        if not any(place.is_relative_to(shown) for _, shown in world.writable)
    ]


def _temporary(place: Path, limit: int, *, sizes: bool) -> list[str]:
    size = ["--size", str(limit)] if sizes else []
    # Anybody may write there and nobody may remove what is another's, as in the machine's own.
    return ["--perms", "1777", *size, "--tmpfs", str(place)]
