"""How is bubblewrap asked to keep a program in?

Builds its arguments; nothing here runs it. The program gets namespaces of its own for users, mounts,
processes, IPC, host name, control groups and, unless it may use the network, the network. Its world is an
empty directory into which only what is named here is bound, outer places before those inside them.
"""

from dataclasses import dataclass, field
from pathlib import Path

from sandboxfs.confine.system import System

# Filled by a program, they take memory from everybody.
_TEMPORARY_LIMIT = 2 << 30
_SHARED_MEMORY_LIMIT = 1 << 30
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True)
class World:
    """What a confined program sees.

    *writable* places are bound from where they are to where they appear; *readable* ones appear where they
    are.
    """

    system: System
    writable: tuple[tuple[Path, Path], ...]
    readable: tuple[Path, ...] = ()
    network: bool = False
    private_temporary: tuple[Path, ...] = field(default=(Path("/tmp"), Path("/var/tmp")))  # noqa: S108


def arguments(world: World, *, filter_descriptor: int | None, sizes: bool = True) -> list[str]:
    """Return the options for bubblewrap, which the program's command line follows.

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
        # In the end, when everything has its place.
        *("--remount-ro", "/dev", "--remount-ro", "/"),
    ]
    words += ["--new-session"] if filter_descriptor is None else ["--seccomp", str(filter_descriptor)]
    return words


def _links(system: System) -> list[str]:
    return [word for path, target in system.links for word in ("--symlink", target, str(path))]


def _mounts(world: World, *, sizes: bool) -> list[str]:
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


def _temporary_places(world: World, *, sizes: bool) -> list[tuple[Path, list[str]]]:
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
