"""Observation verbs: forbidden writes and denials in the view between two requests of a run.

A run asks over the control socket. Independently of the audit log's level, the daemon counts for a run every
write that an assertion forbids and every denial, and keeps a bounded number of examples. A run begins its
observation before the program starts and asks for the result at the end. A write through a handle from before
is recorded when it is made. Dirty pages of memory maps are flushed at both ends, so that a store counts for
the run during which it was made.
"""

import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from sandboxfs.control.control_socket import Request
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.control_server import Handler
from sandboxfs.daemon.lasting_tasks import in_a_thread
from sandboxfs.errors import SandboxBusy, UsageError
from sandboxfs.overlay.decisions import ShownInode
from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE, LocatedFilesystem
from sandboxfs.overlay.guard_paths import listed
from sandboxfs.policy.assertions import Assertions, SubtreeAssertion, WriteAssertions
from sandboxfs.policy.model import Access, Decision

OBSERVATIONS = 64
# Examples of each kind, and the bytes that all their texts together may take: an answer has 4 MiB.
_EXAMPLES, _ROOM = 1000, 1 << 18
# How many entries below a moved directory are looked at.
_LOOKED_AT = 20_000
_CHANGING = (Access.WRITE, Access.DELETE)


@dataclass
class Observation:
    """One run's assertions, and examples of its forbidden writes and denials. *more* counts the others."""

    pid: int
    writes: WriteAssertions | None
    objections: dict[tuple[str, str], None] = field(default_factory=dict)
    more_objections: int = 0
    denials: dict[tuple[str, str, str, str | None], int] = field(default_factory=dict)
    more_denials: int = 0
    _room: int = _ROOM

    def oppose(self, path: bytes, why: str) -> None:
        """Record a write to *path*, which the assertion *why* forbids."""
        key = os.fsdecode(path), why
        if key in self.objections:
            return
        if len(self.objections) < _EXAMPLES and self._fits(path):
            self.objections[key] = None
        else:
            self.more_objections += 1

    def deny(self, sentence: str, path: bytes, access: str, reason: str | None) -> None:
        key = sentence, os.fsdecode(path), access, reason
        more = b"" if reason is None else os.fsencode(reason) * 2
        if key in self.denials or (len(self.denials) < _EXAMPLES and self._fits(path + more)):
            self.denials[key] = self.denials.get(key, 0) + 1
        else:
            self.more_denials += 1

    def _fits(self, path: bytes) -> bool:
        self._room -= 100 + len(path)
        return self._room >= 0

    def as_json(self) -> dict[str, object]:
        return {
            "objections": [{"path": path, "assertion": why} for path, why in self.objections],
            "more_objections": self.more_objections,
            "denials": [
                {"sentence": sentence, "times": times, "path": path, "access": access, "reason": reason}
                for (sentence, path, access, reason), times in self.denials.items()
            ],
            "more_denials": self.more_denials,
        }


class _Pages(NamedTuple):
    watch_handles: Callable[[], None]
    mapped: Callable[[], list[int]]
    flush: Callable[[list[ShownInode]], None]


class Observations:
    """The observations of one session; the journal passes every record to `saw`."""

    def __init__(self, tree: LocatedFilesystem, root: str) -> None:
        self._tree = tree
        self._root = root
        self._open: dict[str, Observation] = {}
        self._pages: _Pages | None = None

    def serve(
        self,
        watch_handles: Callable[[], None],
        mapped: Callable[[], list[int]],
        flush: Callable[[list[ShownInode]], None],
    ) -> None:
        """Use *watch_handles* to have the next write of each open handle recorded.

        *flush* writes dirty pages of inodes back, here of those that are *mapped*. *flush* may wait.
        """
        self._pages = _Pages(watch_handles, mapped, flush)

    def __len__(self) -> int:
        return len(self._open)

    def saw(
        self,
        op: str,
        access: Access,
        path: bytes,
        to: bytes | None,
        decision: Decision,
        error: int,
        reason: str | None = None,
    ) -> None:
        """Pass one decision to every observation; *reason* is why a person, or nobody, refused."""
        for one in self._open.values():
            if error:
                sentence = decision.denial(access, os.fsdecode(path), reason)
                one.deny(sentence, path, access.value, reason)
            elif one.writes is not None and access in _CHANGING:
                for place in (path,) if to is None else (path, to):
                    why = one.writes.objection(place)
                    if why is not None:
                        one.oppose(place, why)
                if op == "rename" and to is not None:
                    self._moved(one, one.writes, path, to)

    def _moved(self, one: Observation, writes: WriteAssertions, path: bytes, to: bytes) -> None:
        """Object when an assertion forbids an entry of a moved directory, under its old or its new name.

        The new name exists by now, and after an exchange the old one as well.
        """
        asked = [(place, found) for place in (path, to) if (found := writes.subtree(place)) is not None]
        if not asked:
            return
        for place in (path, to):
            ino = self._resolve(place)
            if ino is None:
                continue
            try:
                _Walk(self._tree, one).look(ino, asked)
            except OSError as error:
                one.oppose(place, f"it was renamed, and cannot be looked at: {os.strerror(error.errno or 0)}")
            finally:
                self._tree.forget(ino, 1)

    def _resolve(self, path: bytes) -> int | None:
        """Return the inode of the directory at *path*, remembered once; None when there is none."""
        ino = ROOT_INODE
        for name in path.split(b"/"):
            try:
                entry = self._tree.lookup(ino, name, ANYBODY)
            except OSError:
                entry = None
            if ino != ROOT_INODE:
                self._tree.forget(ino, 1)
            if entry is None:
                return None
            ino = entry.ino
            if not stat.S_ISDIR(entry.stat.st_mode):
                self._tree.forget(ino, 1)
                return None
        return ino

    # Verbs

    def handlers(self) -> dict[str, Handler]:
        return {"observe": self.observe, "observed": self.observed}

    async def observe(self, request: Request, peer: Peer) -> object:
        assertions = Assertions(_texts(request, "no_writes"), _texts(request, "writes_only"))
        self._drop_abandoned()
        if len(self._open) >= OBSERVATIONS:
            raise SandboxBusy(f"{OBSERVATIONS} runs are observed already")
        writes = WriteAssertions(assertions, self._root) if assertions.about_writes else None
        if writes is not None:
            # Stores from before the run do not count for the run.
            await self._flush_pages()
            if self._pages is not None:
                self._pages.watch_handles()
        number = secrets.token_hex(16)
        self._open[number] = Observation(peer.pid, writes)
        return {"observation": number}

    async def observed(self, request: Request, peer: Peer) -> object:
        number, end = request.text("observation"), request.flag("end")
        one = self._open.get(number)
        if one is None:
            raise UsageError("there is no such observation: the daemon was started after it began")
        if one.writes is not None:
            await self._flush_pages()
        if end:
            self._open.pop(number, None)
        return one.as_json()

    async def _flush_pages(self) -> None:
        if self._pages is not None:
            # In a thread: the kernel writes the pages back through the thread that serves the mount.
            shown = [ShownInode(ino, []) for ino in self._pages.mapped()]
            await in_a_thread(self._pages.flush, shown)

    def _drop_abandoned(self) -> None:
        """End the observations of commands that were killed."""
        for number, one in list(self._open.items()):
            if one.pid > 0:
                try:
                    os.close(os.pidfd_open(one.pid))
                except ProcessLookupError:
                    del self._open[number]
                except OSError:
                    continue


class _Walk:
    """A walk of the tree below a moved directory, with a list instead of recursion: trees can be deep."""

    def __init__(self, tree: LocatedFilesystem, one: Observation) -> None:
        self._tree = tree
        self._one = one
        self._left = _LOOKED_AT

    def look(self, ino: int, asked: list[tuple[bytes, SubtreeAssertion]]) -> None:
        waiting, held = [(ino, asked)], list[int]()
        try:
            while waiting:
                ino, asked = waiting.pop()
                for name, below, is_dir in listed(self._tree, ino, ANYBODY):
                    further = self._ask(name, is_dir, asked)
                    if is_dir and further:
                        self._tree.remember(below)
                        held.append(below)
                        waiting.append((below, further))
                    if self._left <= 0:
                        self._one.oppose(asked[0][0], "it was renamed, and holds too much to be looked at")
                        return
        finally:
            for looked_at in held:
                self._tree.forget(looked_at, 1)

    def _ask(
        self, name: bytes, is_dir: bool, asked: list[tuple[bytes, SubtreeAssertion]]
    ) -> list[tuple[bytes, SubtreeAssertion]]:
        """Object to an entry that an assertion forbids; return the assertions to ask about entries below."""
        self._left -= 1
        further = []
        for place, assertion in asked:
            path, found = place + b"/" + name, assertion.child(name, is_dir=is_dir)
            why = found.objection
            if why is not None:
                self._one.oppose(path, why)
            if not found.quiet:
                further.append((path, found))
        return further


def _texts(request: Request, key: str) -> tuple[str, ...]:
    value = request.args.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"'{key}' of '{request.verb}' is a list of texts")
    return tuple(value)
