"""Which sandboxes are there, and how does one come and go?

A sandbox is a directory below `sandboxes/`. It appears under its name complete and locked, and disappears by
being renamed to a hidden name first, so that no crash leaves half a sandbox in a listing.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from sandboxfs.errors import NoSuchSandbox, SandboxBusy, SandboxError, UsageError
from sandboxfs.paths import make_directories, quoted
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.record import SandboxRecord, dump_record, parse_record
from sandboxfs.state.tree import remove_tree

MAX_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")
# How what is being made begins, and what is tried out before that; both end with the number of a process.
_MAKING = (".new-", ".probe-")


def check_name(name: str) -> None:
    """Raise `UsageError` unless *name* may name a sandbox."""
    if not name:
        raise UsageError("the sandbox name is empty")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"bad sandbox name {quoted(name)}",
            hint=f"use up to {MAX_NAME} letters, digits, '.', '_' and '-', and no '.' or '-' at the start",
        )


def name_from(basename: str) -> str:
    """Make an acceptable sandbox name out of the last component of a workspace's path."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", basename).lstrip(".-")
    return safe[:MAX_NAME].rstrip("-") or "sandbox"


class Store:
    """The sandboxes of one state directory. Looking never creates anything."""

    def __init__(self, locations: Locations) -> None:
        self.locations = locations

    def names(self) -> list[str]:
        """Return the names of all sandboxes, sorted, readable or not."""
        return [name for name in self._entries() if _NAME.fullmatch(name)]

    def places(self, name: str) -> SandboxPlaces:
        return self.locations.sandbox(name)

    def exists(self, name: str) -> bool:
        try:
            return self.places(name).home.is_dir()
        except OSError:
            return False

    def load(self, name: str) -> SandboxRecord:
        """Read the record of the sandbox called *name*."""
        check_name(name)
        path = self.places(name).record
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            if self.exists(name):
                raise UsageError(f"sandbox '{name}' has no record at {quoted(path)}") from error
            raise NoSuchSandbox(f"no sandbox called '{name}'", hint=self._known()) from error
        except OSError as error:
            raise UsageError(f"cannot read {quoted(path)}: {error.strerror}") from error
        record = parse_record(content, str(path))
        if record.name != name:
            raise UsageError(f"{path}: the record is of sandbox {record.name!r}")
        return record

    def readable(self) -> Iterator[SandboxRecord]:
        """Yield the record of every sandbox that can be read, sorted by name."""
        for name in self.names():
            try:
                yield self.load(name)
            except SandboxError:
                continue

    def free_name(self, wanted: str) -> str:
        """Return *wanted*, or *wanted* with the first of -2, -3, … that no sandbox has."""
        name, number = wanted, 1
        while os.path.lexists(self.places(name).home):
            number += 1
            suffix = f"-{number}"
            name = wanted[: MAX_NAME - len(suffix)] + suffix
        return name

    def create(self, record: SandboxRecord) -> SandboxLock:
        """Create the sandbox of *record*, held by this process; it appears whole or not at all."""
        check_name(record.name)
        final = self.places(record.name)
        staged = SandboxPlaces(final.home.with_name(f".new-{record.name}-{os.getpid()}"))
        made = make_directories(staged.home)
        try:
            for directory in (staged.upper, staged.work, staged.index, staged.baseline):
                make_directories(directory)
            _write_whole(staged.record, dump_record(record))
            lock = SandboxLock.acquire(staged.lock)
            if lock is None:
                raise SandboxBusy(f"sandbox '{record.name}' is being created by another process")
            # Fails when the name was taken meanwhile: no sandbox is an empty directory.
            staged.home.rename(final.home)
        except OSError as error:
            remove_tree(staged.home)
            for directory in made[1:]:
                directory.rmdir()
            if final.home.exists():
                raise SandboxBusy(f"sandbox '{record.name}' is being created by another process") from error
            raise
        return lock

    def save(self, record: SandboxRecord) -> None:
        """Replace the record of an existing sandbox; the caller holds its lock."""
        _write_whole(self.places(record.name).record, dump_record(record))

    def remove(self, name: str) -> None:
        """Remove the sandbox called *name* and everything in it; the caller holds its lock."""
        hidden = self.locations.sandboxes / f".removed-{name}-{os.getpid()}"
        self.places(name).home.rename(hidden)
        remove_tree(hidden)

    def sweep(self) -> None:
        """Finish the removals, and take back the creations, that a crash interrupted."""
        for entry in self._entries():
            path = self.locations.sandboxes / entry
            if entry.startswith(".removed-") or (entry.startswith(_MAKING) and _is_abandoned(path)):
                remove_tree(path)

    def take_back(self, process: int) -> None:
        """Remove the sandboxes that a process was making when it died, and what it tried out for that."""
        for entry in self._entries():
            if entry.startswith(_MAKING) and entry.endswith(f"-{process}"):
                remove_tree(self.locations.sandboxes / entry)

    def _entries(self) -> list[str]:
        try:
            return sorted(path.name for path in self.locations.sandboxes.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            message = f"cannot read state directory {quoted(self.locations.sandboxes)}: {error.strerror}"
            raise UsageError(message, hint="choose another with SANDBOXFS_STATE_DIR") from error

    def _known(self) -> str | None:
        names = self.names()
        return "there is " + ", ".join(names) if names else None


def _is_abandoned(path: Path) -> bool:
    # Nobody takes an hour to create a sandbox.
    try:
        return time.time() - path.lstat().st_mtime > 3600
    except FileNotFoundError:
        # It was completed meanwhile.
        return False


def _write_whole(path: Path, content: bytes) -> None:
    staged = path.with_name(f".{path.name}.new")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    staged.rename(path)
