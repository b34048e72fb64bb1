"""A workspace and a directory with new things, between which a transaction is tried out."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sandboxfs.commit.actions import (
    Actions,
    ActionTarget,
    ChangeAttributes,
    Expected,
    MoveDirectory,
    NewObject,
    ReplaceObject,
)
from sandboxfs.commit.records import COMMIT, CommitRecord, Records, RecordSummary
from sandboxfs.commit.transaction import Transaction
from sandboxfs.hostfs.copy import attributes_at, of_the_sandbox
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import ObjectIdentity
from sandboxfs.hostfs.tree import contents
from sandboxfs.paths import joined, parted
from tests.support.tree import Tree, build


class Transacted:
    """Builds both trees, and actions by path: they expect what the workspace has when they are made."""

    def __init__(self, place: Path, workspace: Tree, new: Tree) -> None:
        self.workspace = build(place / "workspace", workspace)
        self.new = build(place / "new", new)
        self.home = place / "home"
        self.home.mkdir()
        self._lower, self._new = HostDir.at(self.workspace), HostDir.at(self.new)
        self._state = HostDir.at(self.home)
        self.records = Records(self._state)

    def close(self) -> None:
        for directory in (self._lower, self._new, self._state):
            directory.close()

    # Actions

    def change(self, path: str, *, source: str | None = None, in_place: bool = False) -> ReplaceObject:
        """Have at *path* what the new tree has at *source*, or at *path*: nothing if it has nothing."""
        spot = spot_at(os.fsencode(path))
        made = self.thing(os.fsencode(source or path))
        return ReplaceObject(spot, self.known(os.fsencode(path)), made, in_place)

    def move(self, old: str, new: str) -> MoveDirectory:
        moved = self.known(os.fsencode(old))
        assert moved is not None
        return MoveDirectory(
            spot_at(os.fsencode(old)), spot_at(os.fsencode(new)), moved.identity, self.known(os.fsencode(new))
        )

    def dress(self, path: str) -> ChangeAttributes:
        known = self.known(os.fsencode(path))
        status = self._new.stat(os.fsencode(path))
        assert known is not None
        assert status is not None
        attributes = attributes_at(self._new, os.fsencode(path), status, of_the_sandbox)
        return ChangeAttributes(spot_at(os.fsencode(path)), known.identity, attributes)

    def known(self, path: bytes) -> Expected | None:
        status = stat_at(self._lower, path)
        if status is None:
            return None
        if not stat.S_ISDIR(status.st_mode):
            return Expected(ObjectIdentity.of(status))
        with self._lower.descend(path) as top:
            return Expected(
                ObjectIdentity.of(status), {below: ObjectIdentity.of(found) for below, found in contents(top)}
            )

    def thing(self, path: bytes) -> NewObject | None:
        status = stat_at(self._new, path)
        if status is None:
            return None
        below: dict[bytes, NewObject] = {}
        if stat.S_ISDIR(status.st_mode):
            with self._new.descend(path) as top:
                for inner, found in contents(top):
                    source = joined(path, inner)
                    below[inner] = NewObject("new", source, ObjectIdentity.of(found), found.st_nlink)
        return NewObject("new", path, ObjectIdentity.of(status), status.st_nlink, below=below)

    # Doing

    def transaction(self, record: CommitRecord) -> Transaction:
        return Transaction(self._lower, record, {"new": self._new})

    def commit(self, actions: Actions, times: Mapping[bytes, tuple[int, int]] | None = None) -> CommitRecord:
        record = self.records.new(RecordSummary.now(COMMIT, ()))
        transaction = self.transaction(record)
        transaction.prepare(actions, (times or {}).get)
        transaction.apply({})
        return record


def spot_at(path: bytes) -> ActionTarget:
    directory, name = parted(path)
    return ActionTarget(directory, directory, name)


def stat_at(top: HostDir, path: bytes) -> os.stat_result | None:
    directory, name = parted(path)
    try:
        with top.descend(directory) as folder:
            return folder.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
