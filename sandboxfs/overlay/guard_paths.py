"""Guard checks that walk: entries below a renamed directory, and where symlinks lead.

A rule must not be escaped by renaming a directory above the protected entries. Where the policy treats
everything below both names alike, which two states tell at once, no entry has to be checked. Otherwise the
directory is walked, and one entry that would get another mode is enough to refuse.

The kernel follows a link in the caller's filesystem namespace, so a link can lead around the view. A relative
target is answered unchanged, unless its way leaves the view. The way is walked component by component as the
kernel walks: through other links, and with `..` after a link leading to the parent of the link's target. No
result is cached: the kernel asks for the target each time it follows a link, so a link is judged by the view
of that moment.

An absolute target into the workspace is answered as a relative path to the same place in the view, because
the workspace itself must not be reached. A target elsewhere is kept when it leads into system directories, to
a program, which virtual environments need, or to a harmless device. Any other target is refused: `rm -rf
data/*` through such a link would destroy what no commit can bring back. Only the host could say where an
absolute target with `..` leads outside of the view, and asking the host could lead back into our own mount
and make the daemon wait for itself: such a link is refused.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator

from sandboxfs.overlay.asking import Person
from sandboxfs.overlay.control_dir import NAME as WINDOW
from sandboxfs.overlay.decisions import Decisions, Journal, PolicyDenied
from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE, Caller, Entry, LocatedFilesystem
from sandboxfs.policy.compiled import State, same_below
from sandboxfs.policy.config import Symlinks
from sandboxfs.policy.model import Access, Decision, Mode, Rule, RuleSource, Ruling, SourceKind


def refuse_escape(
    tree: LocatedFilesystem,
    decisions: Decisions,
    person: Person,
    ino: int,
    old: State,
    new: State,
    to: bytes,
    caller: Caller,
) -> None:
    """Raise when an entry below the directory *ino* would get another mode if *ino* were at the path *to*.

    Content of the workspace that a rule asks about must stay under it; what is the sandbox's own may leave.
    """
    moved = tree.path(ino)
    # A list instead of recursion: trees can be deep.
    waiting = [(ino, old, new, to)]
    held: list[int] = []
    try:
        while waiting:
            ino, old, new, at = waiting.pop()
            # Equal states decide alike, except for rules about the workspace's entries at that path.
            same = same_below(old, new) and not tree.has_workspace_directory(at)
            # Git may ignore a name below one path and not below the other.
            same = same and (not decisions.asks_git or (old.quiet and new.quiet))
            if same and not (decisions.asks and person.has_spoken):
                continue
            for name, below, is_dir in listed(tree, ino, caller):
                before = old if old.quiet else decisions.step(old, ino, name, is_dir)
                after = new if new.quiet else decisions.step(new, ino, name, is_dir, at)
                if before.decision.bars != after.decision.bars or (
                    not is_dir
                    and decisions.uncovers(
                        before, after, below, (tree.path_to(ino, name), at + b"/" + name), person
                    )
                ):
                    # By its reading first, so that a hidden name stays unknown.
                    strict = max(before.decision, after.decision, key=lambda one: one.refusals)
                    raise _refusal(decisions, tree.path_to(ino, name), moved, strict, caller)
                if is_dir:
                    tree.remember(below)
                    held.append(below)
                    waiting.append((below, before, after, at + b"/" + name))
    finally:
        for looked_at in held:
            tree.forget(looked_at, 1)


def listed(tree: LocatedFilesystem, ino: int, caller: Caller) -> Iterator[tuple[bytes, int, bool]]:
    """Yield the entries of a directory: name, inode, and whether it is a directory.

    An inode is valid until the next entry, longer with a reference from `remember`.
    """
    handle = tree.opendir(ino, caller)
    try:
        for name, entry, _ in tree.readdir(handle, 0):
            if name not in (b".", b".."):
                try:
                    yield name, entry.ino, stat.S_ISDIR(entry.stat.st_mode)
                finally:
                    tree.forget(entry.ino, 0)
    finally:
        tree.releasedir(handle)


def _refusal(
    decisions: Decisions, path: bytes, moved: bytes, decision: Decision, caller: Caller
) -> PolicyDenied:
    number = errno.EROFS if decision.ruling(Access.WRITE) is Ruling.READ_ONLY else errno.EACCES
    # A hidden name must not become known by being in the way.
    told = moved if decision.hides else path
    decisions.journal.record("rename", Access.WRITE, told, None, decision, caller, number)
    return PolicyDenied(number, decision)


Look = Callable[[int, bytes, Caller], Entry | None]
"""Looks a name up in a directory; None where the caller would not find it. Counts a reference."""

_SYSTEM = frozenset(b"usr bin sbin lib lib32 lib64 libx32 opt nix etc".split())
_PROGRAMS = frozenset(b"bin sbin libexec".split())
_HARMLESS = frozenset(
    tuple(path.split(b"/"))
    for path in b"dev/null dev/zero dev/full dev/tty dev/random dev/urandom dev/stdin dev/stdout dev/stderr"
    b" dev/fd proc/self proc/self/fd proc/self/exe proc/self/mounts proc/mounts".split()
)
# Directories whose entries are the caller's own descriptors.
_DESCRIPTORS = (b"dev", b"fd"), (b"proc", b"self", b"fd")
# As many links as the kernel follows, and the most components worth walking.
_MOST_LINKS = 40
_MOST_STEPS = 4096
# The length limit of the kernel for targets.
_LONGEST = 4095


class LinkGuard:
    """Decides which target readlink answers."""

    def __init__(
        self, tree: LocatedFilesystem, journal: Journal, mode: Symlinks, workspace: bytes, mountpoint: bytes
    ) -> None:
        self._tree = tree
        self._journal = journal
        self._mode = mode
        self._workspace = _names(workspace)
        self._mountpoint = _names(mountpoint)
        # A shorter target cannot lead into the workspace.
        self._shortest = len(workspace)
        self.rewrites = mode is not Symlinks.KEEP
        rule = Rule("symlinks", Mode.DENY, RuleSource(SourceKind.BUILT_IN, f'symlinks = "{mode.value}"'))
        self._decision = Decision.by(rule)

    def answer(self, ino: int, target: bytes, caller: Caller, look: Look) -> bytes:
        """The target to answer; raises where the link may not be followed."""
        if self._mode is Symlinks.KEEP or not (target.startswith(b"/") or b".." in target):
            return target
        names = _names(target)
        if not target.startswith(b"/"):
            places = self._tree.places(ino)
            if not places or any(self._leaves(parent, names, caller, look) for parent, _ in places):
                raise self._refusal(ino, target, caller)
            return target
        inside = self._inside(names)
        if inside is not None:
            told = target if _below(names, self._mountpoint) is not None else self._rewritten(ino, target)
            if told is None or self._leaves(ROOT_INODE, inside, caller, look):
                raise self._refusal(ino, target, caller)
            return told
        if self._mode is Symlinks.GUARD and _is_harmless(names):
            return target
        raise self._refusal(ino, target, caller)

    def sized(self, entry: Entry) -> Entry:
        """The entry of a symlink with the size of the target that `answer` gives.

        A rewritten target depends on the depth of the link, so the kernel must not cache its size.
        """
        if entry.stat.st_size < self._shortest or not self.rewrites:
            return entry
        try:
            told = self._rewritten(entry.ino, self._tree.readlink(entry.ino, ANYBODY))
        except OSError:
            # The host removed the link; a readlink gets the error.
            return entry
        if told is None:
            return entry
        return entry._replace(stat=_with_size(entry.stat, len(told)), guarded=True)

    def _rewritten(self, ino: int, target: bytes) -> bytes | None:
        """An absolute target in the workspace as a relative one in the view; None where that is impossible.

        Hard-linked names of one link at different depths would each need another target.
        """
        names = _names(target)
        if not target.startswith(b"/") or _below(names, self._mountpoint) is not None:
            return None
        inside = _below(names, self._workspace)
        depths = {self._tree.path_to(*place).count(b"/") for place in self._tree.places(ino)}
        if inside is None or len(depths) != 1:
            return None
        told = b"/".join([b".."] * depths.pop() + inside) or b"."
        if inside and target.endswith((b"/", b"/.")):
            told += b"/"
        return told if len(told) <= _LONGEST else None

    def _inside(self, names: list[bytes]) -> list[bytes] | None:
        """The components in the view of an absolute target that leads into it; None for any other."""
        inside = _below(names, self._mountpoint)
        return _below(names, self._workspace) if inside is None else inside

    def _leaves(self, start: int, names: list[bytes], caller: Caller, look: Look) -> bool:
        """Whether the way from the directory *start* over *names* leaves the view."""
        held: list[int] = []
        try:
            return _Walk(self._tree, self._inside, caller, look, held).leaves(start, names)
        finally:
            for ino in held:
                self._tree.forget(ino, 1)

    def _refusal(self, ino: int, target: bytes, caller: Caller) -> PolicyDenied:
        path = self._tree.path(ino)
        self._journal.record("readlink", Access.READ, path, target, self._decision, caller, errno.EACCES)
        return PolicyDenied(errno.EACCES, self._decision)


class _Walk:
    """One walk through the view, as the kernel would do it; inodes with a counted reference go to *held*."""

    def __init__(
        self,
        tree: LocatedFilesystem,
        inside: Callable[[list[bytes]], list[bytes] | None],
        caller: Caller,
        look: Look,
        held: list[int],
    ) -> None:
        self._tree = tree
        self._inside = inside
        self._caller = caller
        self._look = look
        self._held = held

    def leaves(self, here: int, names: list[bytes]) -> bool:
        """Whether the way leaves the view. A way that ends at a missing name does not.

        Only `..` can leave the view: once no `..` is left, further links are judged when they are read.
        """
        pending, climbs = names[::-1], names.count(b"..")
        links = 0
        for _ in range(_MOST_STEPS):
            if not climbs:
                return False
            name = pending.pop()
            if name == b"..":
                above = self._tree.places(here)
                if not above:
                    # The root, or a directory without a known place.
                    return True
                here = above[0][0]
                climbs -= 1
                continue
            found = self._found(here, name)
            if found is None:
                return False
            if isinstance(found, int):
                here = found
                continue
            links += 1
            if links > _MOST_LINKS:
                return False
            here, more = self._followed(here, found)
            if more is None:
                return True
            pending += reversed(more)
            climbs += more.count(b"..")
        return True

    def _followed(self, here: int, target: bytes) -> tuple[int, list[bytes] | None]:
        """The directory and names with which the way goes on after a link in *here*; None for outside."""
        if not target.startswith(b"/"):
            return here, _names(target)
        return ROOT_INODE, self._inside(_names(target))

    def _found(self, parent: int, name: bytes) -> int | bytes | None:
        """A directory as its inode, a symlink as its target; None where the way ends."""
        if parent == ROOT_INODE and name == WINDOW:
            # The control directory is not in this tree: treated as a link to outside, so its `..` leaves.
            return b"/"
        try:
            entry = self._look(parent, name, self._caller)
        except PermissionError:
            return None
        if entry is None:
            return None
        self._held.append(entry.ino)
        if stat.S_ISDIR(entry.stat.st_mode):
            return entry.ino
        if not stat.S_ISLNK(entry.stat.st_mode):
            return None
        return self._tree.readlink(entry.ino, self._caller)


def _names(path: bytes) -> list[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def _below(names: list[bytes], top: list[bytes]) -> list[bytes] | None:
    """The components from *top* to *names*; None when *names* is not below *top*."""
    return names[len(top) :] if names[: len(top)] == top else None


def _is_harmless(names: list[bytes]) -> bool:
    """Whether an absolute target outside of the view is kept.

    A program is recognised by its path only: virtual environments link to interpreters in home directories.
    """
    if b".." in names:
        return False
    return (
        names[:1] in ([top] for top in _SYSTEM)
        or names[-2:-1] in ([top] for top in _PROGRAMS)
        or tuple(names) in _HARMLESS
        or (tuple(names[:-1]) in _DESCRIPTORS and names[-1].isdigit())
    )


def _with_size(status: os.stat_result, size: int) -> os.stat_result:
    fields = list(status)
    fields[stat.ST_SIZE] = size
    others = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns", "st_blksize", "st_blocks", "st_rdev")
    return os.stat_result(fields, {name: getattr(status, name) for name in others})
