"""Held changes: which ones wait for a person; computed at each review, only approvals are stored.

A change is held when the rules, applied to the change as scanned, hold it, and no approval of exactly this
change exists. So no change is marked while programs work: a mark would be lost when a file is deleted and
made again, or saved through a rename, and could be forged. Both ends of a rename count, and so does every
file in a renamed directory.

An approval names a change by path and by a digest over all that a commit would take: kind, content, mode,
owner, attributes, and the version of the workspace that the sandbox started from. A change that goes on after
the approval has another digest and is held again.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from sandboxfs.hostfs.copy import is_private
from sandboxfs.hostfs.tree import Unreadable
from sandboxfs.paths import is_below
from sandboxfs.policy.compiled import Compiled, Ignored
from sandboxfs.policy.explain import names_of
from sandboxfs.policy.model import Access, Decision, Policy, Rule, RuleCondition, Ruling
from sandboxfs.policy.patterns import encoded
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.git_user import user_excludes
from sandboxfs.review.host_ignores import HostIgnores
from sandboxfs.review.scan import ScanResult

# Part of the digest: approvals of another version are never equal.
_VERSION = b"sandboxfs approval 1"

Approvals = Mapping[bytes, frozenset[str]]
"""The digests of the approved changes of each path."""


@dataclass(frozen=True)
class HoldRules:
    """The rules of a workspace at *root* that hold changes, and the *approvals* so far."""

    policy: Policy
    root: bytes
    approvals: Approvals = field(default_factory=dict)
    excludes: Callable[[], bytes] = user_excludes

    def held(self, found: ScanResult) -> dict[int, Rule]:
        """Return the changes that wait for an approval, by number, with the rule that holds each."""
        layers = found.view.layers
        ignored: Ignored | None = None
        if self.policy.asks_git:
            ignored = HostIgnores(layers.workspace, layers.masked, self.root, self.excludes).ignored
        held: dict[int, Rule] = {}
        origins = frozenset(change.origin for change in found.findings if change.old is not None)
        for number, change in enumerate(found.findings):
            rule = self._rule(found, change, origins, ignored)
            if rule is not None and not self._is_approved(found, change):
                held[number] = rule
        return held

    def _rule(
        self,
        found: ScanResult,
        change: PathChange,
        origins: Collection[bytes],
        ignored: Ignored | None,
    ) -> Rule | None:
        """Return the rule that holds *change*, approved or not; *origins* are changed paths that existed."""
        for path, access, is_dir, exists in _accesses(found, change):
            decision = self._decided(path, is_dir, ignored)
            ruling = decision.ruling(access)
            if ruling is Ruling.HOLD or (
                ruling is Ruling.HOLD_EXISTING and (exists or self._existed(found, path, origins))
            ):
                return decision.rule_for(access)
        return None

    def _is_approved(self, found: ScanResult, change: PathChange) -> bool:
        approved = self.approvals.get(change.path)
        try:
            return approved is not None and change_digest(found, change) in approved
        except Unreadable:
            return False

    @cached_property
    def _compiled(self) -> Compiled:
        return Compiled(self.policy, os.fsdecode(self.root))

    def _decided(self, path: bytes, is_dir: bool, ignored: Ignored | None) -> Decision:
        names = [encoded(name) for name in names_of(os.fsdecode(path))]

        def holds(depth: int, needs: RuleCondition) -> bool:
            # Other conditions on the workspace are of built-in rules, which hold nothing.
            if needs is not RuleCondition.IGNORED or ignored is None:
                return False
            return ignored(b"/".join(path.split(b"/")[:depth]), is_dir or depth < len(names))

        return self._compiled.walk(names, is_dir, holds)[-1].decision

    @staticmethod
    def _existed(found: ScanResult, path: bytes, origins: Collection[bytes]) -> bool:
        """Whether a new object at *path* takes the place of another one of the workspace."""
        # A file that is saved through a rename is new at the path, and the old one moved or was deleted.
        return path in origins or found.view.layers.workspace.stat(path) is not None


def _accesses(found: ScanResult, change: PathChange) -> Iterator[tuple[bytes, Access, bool, bool]]:
    """Return the accesses that make up *change*: path, kind, whether the path is a directory, and whether the
    access certainly changes what the workspace has.
    """
    existed = change.old is not None
    is_dir = change.is_dir
    if change.kind in (ChangeKind.DELETED, ChangeKind.TYPE):
        was_dir = change.old is not None and change.old.is_dir
        for path in dict.fromkeys([change.origin, change.path]):
            yield path, Access.DELETE, was_dir, True
        if change.kind is ChangeKind.TYPE:
            yield change.path, Access.WRITE, is_dir, True
    elif change.kind is ChangeKind.RENAMED and change.path == change.origin:
        # A directory that was moved away and back.
        yield change.path, Access.WRITE, is_dir, _is_changed(change)
    elif change.kind is ChangeKind.RENAMED:
        yield change.origin, Access.DELETE, is_dir, True
        # Content that moves and changes is overwritten, too.
        if _is_changed(change):
            yield change.origin, Access.WRITE, is_dir, True
        yield change.path, Access.WRITE, is_dir, False
        if is_dir:
            yield from _moved_along(found, change)
    else:
        yield change.path, Access.WRITE, is_dir, existed
        if existed and change.origin != change.path:
            # Below a renamed directory, the workspace has the file at another path.
            yield change.origin, Access.WRITE, is_dir, True


def _is_changed(change: PathChange) -> bool:
    old, new = change.old, change.new
    if old is None or new is None:
        return True
    # A directory's size and times change with every name in it.
    stamps = () if old.is_dir else (old.size, old.mtime_ns), () if new.is_dir else (new.size, new.mtime_ns)
    return (old.mode, old.uid, old.gid, stamps[0]) != (new.mode, new.uid, new.gid, stamps[1])


def _moved_along(found: ScanResult, change: PathChange) -> Iterator[tuple[bytes, Access, bool, bool]]:
    """The accesses to the files that a renamed directory takes along."""
    for shown in found.view.below(change.path):
        if shown.lower_path is not None and is_below(shown.lower_path, change.origin):
            yield shown.lower_path, Access.DELETE, False, False
            yield shown.path, Access.WRITE, False, False


def change_digest(found: ScanResult, change: PathChange) -> str:
    """Return the digest of *change* for approvals; raise `Unreadable` where its content cannot be read."""
    new = change.new
    content = attributes = None
    if new is not None:
        if new.is_file:
            content = hashlib.sha256(new.read()).hexdigest()
        upper = found.view.layers.upper
        attributes = sorted(upper.xattrs(change.path, lambda name: not is_private(name)).items())
    about = (
        change.path,
        change.kind.value,
        change.old_path,
        change.lower_path,
        change.links,
        change.opaque,
        None if new is None else (new.mode, new.uid, new.gid, new.rdev, new.target, content),
        attributes,
        _baseline(change.old),
    )
    return hashlib.sha256(_VERSION + repr(about).encode()).hexdigest()


def _baseline(old: Version | None) -> tuple[object, ...] | None:
    """The version of the workspace that the sandbox changed; a directory's size and times say nothing."""
    if old is None:
        return None
    stamp = () if old.is_dir else (old.ino, old.size, old.mtime_ns)
    return (old.mode, old.uid, old.gid, old.rdev, old.target, *stamp)


def approved(found: ScanResult, changes: Iterable[PathChange]) -> dict[bytes, frozenset[str]]:
    """Return the approvals of *changes*; a change that cannot be read gets none."""
    made: dict[bytes, frozenset[str]] = {}
    for change in changes:
        with suppress(Unreadable):
            made[change.path] = made.get(change.path, frozenset()) | {change_digest(found, change)}
    return made
