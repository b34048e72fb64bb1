"""Would moving a directory change what the policy says about something in it?

A rule must not be escaped by renaming a directory above what it protects. Where the policy treats
everything below both ends alike, which two states tell at once, nothing needs to be looked at; otherwise
the directory is walked, and one entry that would be under another mode is enough to refuse.
"""

import errno
import stat
from collections.abc import Iterator

from sandboxfs.overlay.decisions import Decisions, PolicyDenied
from sandboxfs.overlay.filesystem import Caller, Tree
from sandboxfs.policy.compiled import State, same_below
from sandboxfs.policy.model import Access, Mode


def refuse_escape(
    tree: Tree, decisions: Decisions, ino: int, old: State, new: State, to: bytes, caller: Caller
) -> None:
    """Raise when an entry below the directory *ino* is under another mode when it is at the path *to*."""
    moved = tree.path(ino)
    # A list instead of recursion: trees can be deep.
    waiting = [(ino, old, new, to)]
    held: list[int] = []
    try:
        while waiting:
            ino, old, new, at = waiting.pop()
            # Equal states decide alike, but for rules that ask what the workspace has at that place.
            if same_below(old, new) and not tree.has_workspace_directory(at):
                continue
            for name, below, is_dir in _listed(tree, ino, caller):
                before = old if old.quiet else decisions.step(old, ino, name, is_dir)
                after = new if new.quiet else decisions.step(new, ino, name, is_dir, at)
                if before.decision.mode is not after.decision.mode:
                    strict = before if before.decision.mode.stricter_than(after.decision.mode) else after
                    raise _refusal(decisions, tree.path_to(ino, name), moved, strict, caller)
                if is_dir:
                    tree.remember(below)
                    held.append(below)
                    waiting.append((below, before, after, at + b"/" + name))
    finally:
        for looked_at in held:
            tree.forget(looked_at, 1)


def _listed(tree: Tree, ino: int, caller: Caller) -> Iterator[tuple[bytes, int, bool]]:
    """The entries of a directory: name, inode, and whether it is a directory."""
    handle = tree.opendir(ino, caller)
    try:
        for name, entry, _ in tree.readdir(handle, 0):
            if name not in (b".", b".."):
                yield name, entry.ino, stat.S_ISDIR(entry.stat.st_mode)
                tree.forget(entry.ino, 0)
    finally:
        tree.releasedir(handle)


def _refusal(decisions: Decisions, path: bytes, moved: bytes, strict: State, caller: Caller) -> PolicyDenied:
    decision = strict.decision
    number = errno.EROFS if decision.mode is Mode.RO else errno.EACCES
    # A hidden name must not become known by being in the way.
    told = moved if decision.mode is Mode.HIDE else path
    decisions.journal.record("rename", Access.WRITE, told, None, decision, caller, number)
    return PolicyDenied(number, decision)
