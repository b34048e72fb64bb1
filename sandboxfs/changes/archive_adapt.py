"""What does an archive mean on this machine?

Inode numbers, owners and permissions come from another one. Numbers are given anew, the same for the same.
Whoever owned the workspace there is whoever owns it here. A copy of the workspace that was made under another
umask has other permissions for group and others: those that the sandbox did not change are the copy's.
"""

import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import replace

from sandboxfs.changes.archive_entry import Entry
from sandboxfs.layers.baseline import Sighting

# The tag of numbers that were given at random, which no file of a workspace has: see docs/state-format.md.
_RANDOM = 126 << 56
# What a umask takes away.
_OTHERS = 0o077

Look = Callable[[bytes], os.stat_result | None]
"""Says what the workspace has at a path."""


class Adapter:
    """Turns what an archive says into what holds here: all sightings first, then the entries."""

    def __init__(self, look: Look, owner: tuple[int, int], *, may_give_away: bool) -> None:
        """Adapt to the workspace that *look* sees, from one that *owner* owned.

        Unless we *may_give_away* files, everything is ours.
        """
        self._look = look
        self._numbers: dict[int, int] = {}
        # By the number of the archive: permissions there and here, where they differ.
        self._permissions: dict[int, tuple[int, int]] = {}
        root = look(b"") if may_give_away else None
        self._users = {} if root is None else {owner[0]: root.st_uid}
        self._groups = {} if root is None else {owner[1]: root.st_gid}
        self._us = None if may_give_away else (os.geteuid(), os.getegid())

    def sighting(self, seen: Sighting) -> Sighting:
        uid, gid = self._owner(seen.uid, seen.gid)
        return replace(seen, mode=self._mode(seen), uid=uid, gid=gid, number=self._number(seen.number))

    def entry(self, entry: Entry) -> Entry:
        uid, gid = self._owner(entry.uid, entry.gid)
        there, here = self._permissions.get(entry.number, (entry.mode, entry.mode))
        mode = here if entry.mode == there else entry.mode
        return replace(entry, mode=mode, uid=uid, gid=gid, number=self._number(entry.number))

    def _mode(self, seen: Sighting) -> int:
        status = self._look(seen.path)
        if status is None or (status.st_mode ^ seen.mode) & ~_OTHERS:
            return seen.mode
        if status.st_mode != seen.mode:
            self._permissions[seen.number] = stat.S_IMODE(seen.mode), stat.S_IMODE(status.st_mode)
        return status.st_mode

    def _owner(self, uid: int, gid: int) -> tuple[int, int]:
        return self._us or (self._users.get(uid, uid), self._groups.get(gid, gid))

    def _number(self, number: int) -> int:
        """The number that stands here for *number*, 0 for none."""
        if not number:
            return 0
        known = self._numbers.get(number)
        if known is None:
            known = self._numbers[number] = _RANDOM | secrets.randbelow(1 << 56)
        return known
