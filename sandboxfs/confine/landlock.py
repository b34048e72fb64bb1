"""How is a program kept in where namespaces are not allowed?

Landlock lets a process give up, for itself and all its descendants, every file that it does not name. The
view is named, system directories for reading, a private temporary directory and home, and a handful of
devices. What Landlock cannot refuse (docs/security.md lists it) is refused by a seccomp filter where that can
be told from the arguments of a call.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandboxfs.confine import syscalls
from sandboxfs.confine.system import System

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
class Fence:
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

    def __init__(self, fence: Fence, abi: int) -> None:
        files = handled(abi)
        self._ruleset = syscalls.create_ruleset(
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
                    syscalls.allow_beneath(
                        self._ruleset, place, accesses if directory else accesses & _ON_FILES
                    )
                finally:
                    os.close(place)

    def enter(self) -> None:
        """Put this process inside for good."""
        syscalls.give_up_capabilities()
        syscalls.give_up_new_privileges()
        syscalls.restrict_self(self._ruleset)

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
    ruleset = syscalls.create_ruleset(files=0, network=0, scoped=_SCOPE_ABSTRACT_UNIX_SOCKET)
    try:
        syscalls.give_up_new_privileges()
        syscalls.restrict_self(ruleset)
    finally:
        os.close(ruleset)
