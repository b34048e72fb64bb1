"""Would moving a directory change what the policy says about something in it?

A rule must not be escaped by renaming a directory above what it protects. Where the policy treats
everything below both ends alike, which two states tell at once, nothing needs to be looked at; otherwise
the directory is walked, and one entry that would be under another mode is enough to refuse.
"""

import errno
import stat

from sandboxfs.overlay.decisions import Decisions, PolicyDenied
from sandboxfs.overlay.filesystem import Caller, Tree
from sandboxfs.policy.compiled import State, same_below
from sandboxfs.policy.model import Access, Mode


def refuse_escape(tree: Tree, decisions: Decisions, ino: int, old: State, new: State, caller: Caller) -> None:
    """Raise when an entry below the directory *ino* is under another mode at its new place."""
    if same_below(old, new):
        return
    handle = tree.opendir(ino, caller)
    try:
        for name, entry, _ in tree.readdir(handle, 0):
            if name in (b".", b".."):
                continue
            is_dir = stat.S_ISDIR(entry.stat.st_mode)
            before = old if old.quiet else decisions.step(old, ino, name, is_dir)
            after = new if new.quiet else decisions.step(new, ino, name, is_dir)
            if before.decision.mode is not after.decision.mode:
                raise _refusal(tree, decisions, ino, name, before, after, caller)
            if is_dir:
                refuse_escape(tree, decisions, entry.ino, before, after, caller)
            tree.forget(entry.ino, 0)
    finally:
        tree.releasedir(handle)


def _refusal(
    tree: Tree, decisions: Decisions, ino: int, name: bytes, before: State, after: State, caller: Caller
) -> PolicyDenied:
    strict = before if before.decision.mode.stricter_than(after.decision.mode) else after
    decision = strict.decision
    number = errno.EROFS if decision.mode is Mode.RO else errno.EACCES
    path = decisions.path(ino, name)
    decisions.journal.record("rename", Access.WRITE, path, None, decision, caller, number)
    return PolicyDenied(number, decision)
