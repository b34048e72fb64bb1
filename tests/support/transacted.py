"""A workspace and a directory with new things, between which a transaction is tried out."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from sandboxfs.changes.carrying import contents
from sandboxfs.changes.engine import Transaction
from sandboxfs.changes.records import COMMIT, About, Record, Records
from sandboxfs.changes.steps import Change, Dress, Identity, Known, Move, Spot, Thing, Wishes, joined, parted
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.replica import attributes_at, of_the_sandbox
from tests.support.tree import Tree, build


class Transacted:
    """Builds both trees, and wishes by path: they expect what the workspace has when they are made."""

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

    # Wishes

    def change(self, path: str, *, source: str | None = None, in_place: bool = False) -> Change:
        """Have at *path* what the new tree has at *source*, or at *path*: nothing if it has nothing."""
        spot = spot_at(os.fsencode(path))
        made = self.thing(os.fsencode(source or path))
        return Change(spot, self.known(os.fsencode(path)), made, in_place)

    def move(self, old: str, new: str) -> Move:
        moved = self.known(os.fsencode(old))
        assert moved is not None
        return Move(
            spot_at(os.fsencode(old)), spot_at(os.fsencode(new)), moved.identity, self.known(os.fsencode(new))
        )

    def dress(self, path: str) -> Dress:
        known = self.known(os.fsencode(path))
        status = self._new.stat(os.fsencode(path))
        assert known is not None
        assert status is not None
        attributes = attributes_at(self._new, os.fsencode(path), status, of_the_sandbox)
        return Dress(spot_at(os.fsencode(path)), known.identity, attributes)

    def known(self, path: bytes) -> Known | None:
        status = stat_at(self._lower, path)
        if status is None:
            return None
        if not stat.S_ISDIR(status.st_mode):
            return Known(Identity.of(status))
        with self._lower.descend(path) as top:
            return Known(Identity.of(status), {below: Identity.of(found) for below, found in contents(top)})

    def thing(self, path: bytes) -> Thing | None:
        status = stat_at(self._new, path)
        if status is None:
            return None
        below: dict[bytes, Thing] = {}
        if stat.S_ISDIR(status.st_mode):
            with self._new.descend(path) as top:
                for inner, found in contents(top):
                    source = joined(path, inner)
                    below[inner] = Thing("new", source, Identity.of(found), found.st_nlink)
        return Thing("new", path, Identity.of(status), status.st_nlink, below=below)

    # Doing

    def transaction(self, record: Record) -> Transaction:
        return Transaction(self._lower, record, {"new": self._new})

    def commit(self, wishes: Wishes, times: Mapping[bytes, tuple[int, int]] | None = None) -> Record:
        record = self.records.new(About.now(COMMIT, ()))
        transaction = self.transaction(record)
        transaction.prepare(wishes, (times or {}).get)
        transaction.apply({})
        return record


def spot_at(path: bytes) -> Spot:
    directory, name = parted(path)
    return Spot(directory, directory, name)


def stat_at(top: HostDir, path: bytes) -> os.stat_result | None:
    directory, name = parted(path)
    try:
        with top.descend(directory) as folder:
            return folder.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
