"""Landlock rules, and a temporary directory, for machines where namespaces are not allowed.

Landlock lets a process give up, for itself and all its descendants, every file that it does not name. The
view is named, system directories for reading, a private temporary directory and home, and a handful of
devices. What Landlock cannot refuse (docs/security.md lists it) is refused by a seccomp filter where that can
be told from the arguments of a call.

Only namespaces could give the program a /tmp of its own. The temporary directory is made for one program and
removed when everything of that program has ended. Its maker holds a lock on the directory for life: a
directory without a lock belonged to a run that was killed with everything that would have cleared it away,
and the next program removes it.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path

from sandboxfs.confine import kernel_calls
from sandboxfs.confine.mounts import System
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.paths import make_directories

# From linux/landlock.h; the comment says which version of the interface brought it.
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REMOVE_AND_MAKE = 0x1FF << 4
_REFER = 1 << 13  # 2
_TRUNCATE = 1 << 14  # 3
_IOCTL_DEV = 1 << 15  # 5

_NETWORK = 0b11  # 4: bind and connect of TCP
_SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0  # 6
_SCOPE_SIGNAL = 1 << 1  # 6

_READ = _READ_FILE | _READ_DIR | _EXECUTE
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_EVERYTHING = _READ | _WRITE_FILE | _REMOVE_AND_MAKE | _REFER | _TRUNCATE | _IOCTL_DEV

# Without TRUNCATE a program could empty any file of its user.
LEAST_ABI = 3
SCOPES_ABI = 6
_NETWORK_ABI = 4

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@dataclass(frozen=True)
class LandlockRules:
    """What a program may reach: *whole* places for everything, *readable* ones for reading, and *devices*."""

    whole: tuple[Path, ...]
    readable: tuple[Path, ...]
    devices: tuple[Path, ...] = field(default=tuple(Path("/dev", name) for name in DEVICES))
    network: bool = False


def handled(abi: int) -> int:
    """The accesses to files that a kernel with version *abi* of the interface can refuse."""
    accesses = _EVERYTHING
    if abi < 2:
        accesses &= ~_REFER
    if abi < 3:
        accesses &= ~_TRUNCATE
    if abi < 5:
        accesses &= ~_IOCTL_DEV
    return accesses


class Enclosure:
    """A ruleset, made and then entered."""

    def __init__(self, fence: LandlockRules, abi: int) -> None:
        files = handled(abi)
        self._ruleset = kernel_calls.create_ruleset(
            files=files,
            network=_NETWORK if abi >= _NETWORK_ABI and not fence.network else 0,
            scoped=_SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if abi >= SCOPES_ABI else 0,
        )
        self._allow(fence.whole, files)
        self._allow(fence.readable, _READ & files)
        self._allow(fence.devices, (_READ_FILE | _WRITE_FILE | _IOCTL_DEV) & files)

    def _allow(self, places: Iterable[Path], accesses: int) -> None:
        for path in places:
            # What is not there cannot be reached either.
            with suppress(FileNotFoundError):
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    directory = stat.S_ISDIR(os.fstat(place).st_mode)
                    kernel_calls.allow_beneath(
                        self._ruleset, place, accesses if directory else accesses & _ON_FILES
                    )
                finally:
                    os.close(place)

    def enter(self) -> None:
        """Put this process inside for good."""
        kernel_calls.give_up_capabilities()
        kernel_calls.give_up_new_privileges()
        kernel_calls.restrict_self(self._ruleset)

    def close(self) -> None:
        os.close(self._ruleset)


def readable_places(system: System) -> list[Path]:
    """The places of *system* to be read, each secret in them left out, and what tells of processes."""
    secrets = (*system.secret_files, *system.secret_directories)
    places = [Path("/proc"), *(path for path, _ in system.links)]
    pending = list(system.directories)
    while pending:
        path = pending.pop()
        if path in secrets:
            continue
        if any(secret.is_relative_to(path) for secret in secrets):
            # Landlock cannot take away what it gave further up: everything beside the secret is named
            # instead.
            pending += path.iterdir()
        else:
            places.append(path)
    return places


def keep_from_abstract_sockets() -> None:
    """Keep this process from the abstract sockets of others: a network namespace that is shared does not."""
    ruleset = kernel_calls.create_ruleset(files=0, network=0, scoped=_SCOPE_ABSTRACT_UNIX_SOCKET)
    try:
        kernel_calls.give_up_new_privileges()
        kernel_calls.restrict_self(ruleset)
    finally:
        os.close(ruleset)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILES = ".sandboxfs"


@dataclass(frozen=True)
class TemporaryDirectory:
    """The directory at *path*, with *files* of ours by name in a directory inside it."""

    path: Path
    files: tuple[tuple[str, bytes], ...] = ()

    @property
    def files_directory(self) -> Path:
        return self.path / _FILES

    def make(self) -> None:
        make_temporary(self.path)
        self.files_directory.mkdir(0o700)
        for name, content in self.files:
            file = self.files_directory / name
            file.write_bytes(content)
            if content.startswith(b"#!"):
                file.chmod(0o700)

    def remove(self) -> None:
        """Remove the directory with all that the program left in it; one that is missing is fine."""
        with suppress(FileNotFoundError):
            _remove_tree(self.path)


def make_temporary(path: Path) -> None:
    """Make the directory *path*, this process's own until it ends, and remove what others left beside it."""
    _sweep(path.parent)
    # Another may take it for left behind until it is locked.
    while not _hold(path):
        make_directories(path)


def _hold(path: Path) -> bool:
    """Lock the directory *path* for as long as this process lives; False when it is not there."""
    try:
        descriptor = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return False
    # Where there are no locks, nothing is taken for left behind.
    with suppress(OSError):
        flock(descriptor, LOCK_SH)
    try:
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return True
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return False


def _sweep(folder: Path) -> None:
    try:
        found = list(folder.iterdir())
    except FileNotFoundError:
        return
    for path in found:
        # One that is in use, or cannot be removed, stays.
        with suppress(OSError):
            descriptor = os.open(path, _DIRECTORY)
            try:
                flock(descriptor, LOCK_EX | LOCK_NB)
                _remove_tree(path)
            finally:
                os.close(descriptor)


def _remove_tree(top: Path) -> None:
    # The program may have taken its owner's permissions away.
    top.chmod(0o700)
    with HostDir.at(top) as directory:
        directory.remove_entries()
    top.rmdir()
