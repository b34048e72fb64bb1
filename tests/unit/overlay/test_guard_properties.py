"""Does nothing that a policy refuses ever reach the overlay, and is nothing that it hides ever shown?

Random policies, changed as it goes, over a small tree; random verbs, asked as the kernel would ask them. The
overlay behind the guard is watched: before it changes or opens anything, the pure `decide` is asked about
every path concerned. After each verb every open file is used, and the whole view is walked and compared with
what `decide` says about the whole overlay.
"""

import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxfs.overlay.asking import Person
from sandboxfs.overlay.decisions import PolicyDenied
from sandboxfs.overlay.filesystem import (
    ROOT_INODE,
    AnonymousCaller,
    Approve,
    AttributeChange,
    Caller,
    Entry,
    OpenedFile,
    Seen,
)
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.guard_paths import LinkGuard
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.config import Symlinks
from sandboxfs.policy.explain import decide
from sandboxfs.policy.model import (
    Access,
    Decision,
    Mode,
    Policy,
    Rule,
    RuleCondition,
    RuleSource,
    Ruling,
    SourceKind,
    stricter,
)
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from tests.support.tree import Symlink, Tree, build
from tests.unit.policy.made import policies

READ, WRITE, DELETE, EXECUTE = Access.READ, Access.WRITE, Access.DELETE, Access.EXECUTE
ME = AnonymousCaller(os.getuid(), os.getgid(), os.getpid())
WORKSPACE = "/workspace"
DOTS = (b".", b"..")
MAKING = ("do_mkdir", "do_create", "do_mknod", "do_symlink")

SEED: Tree = {
    "a/a": "aa",
    "a/b/a": "aba",
    "a/b/ab": "abab",
    "a/.git/hooks/a": "hook",
    "b/a": "ba",
    "b/b/b/a": "bbba",
    "b/.git": "file",
    "ab": "ab",
    "c.x": Symlink("ab"),
    ".git/hooks/b": "hook",
    ".git/a": "x",
}


Ruled = dict[bytes, tuple[Decision, bool, bool]]
"""The decision about each path below a directory, whether it is the sandbox's own, and a directory."""


def barred(decision: Decision) -> list[Ruling]:
    """The rulings that bar an entry of whatever content."""
    mild = (Ruling.ALLOW, Ruling.HOLD_EXISTING, Ruling.HOLD, Ruling.ASK)
    rulings = [decision.ruling(access) for access in (READ, WRITE, DELETE)]
    return [Ruling.ALLOW if ruling in mild else ruling for ruling in rulings]


class Silent:
    """A journal that only counts."""

    reads = False

    def __init__(self) -> None:
        self.denied = 0

    def count_read(self, decision: Decision) -> None:
        assert decision.ruling(READ).permits or decision.ruling(READ) is Ruling.ASK

    def record(
        self,
        op: str,
        access: Access,
        path: bytes,
        to: bytes | None,
        decision: Decision,
        caller: Caller,
        error: int,
    ) -> None:
        assert bool(error) != decision.allows(access) or to is not None or op == "rename"
        self.denied += bool(error)


IGNORED = {b"a/b", b"n", b"b/n", b"a/.git"}


def git_ignores(path: bytes, is_dir: bool) -> bool:
    """What git ignores in these tests: some directories, and one name wherever it is; also all below."""
    names = path.split(b"/")
    return b"ab" in names or any(b"/".join(names[:depth]) in IGNORED for depth in range(1, len(names) + 1))


class Watched(Overlay):
    """An overlay that asks the pure function before it lets anything happen to it."""

    policy: Policy
    # Whether there is somebody to be asked, who may allow what a rule asks about.
    somebody = False

    def mode_at(self, path: bytes, is_dir: bool) -> Mode:
        return self.decision(path, is_dir).mode

    def decision(self, path: bytes, is_dir: bool) -> Decision:
        """The strictest that is said of a path, and of the places that directories above it come from."""
        decided = [decide(self.policy, os.fsdecode(path), is_dir, root=WORKSPACE, exists=self.has)]
        for origin, shown in self.origins_above(path):
            rest = path[len(shown) :]
            # Where it comes from is in the workspace; what is below is wherever the view has it.
            known = os.fsdecode(origin)

            def has(place: str, needs: RuleCondition, known: str = known, shown: bytes = shown) -> bool:
                if needs is RuleCondition.IGNORED:
                    return self.has(place, needs)
                if len(place) <= len(known):
                    return True
                return self.has(os.fsdecode(shown) + place[len(known) :], needs)

            came_from = os.fsdecode(origin + rest)
            decided.append(decide(self.policy, came_from, is_dir or not rest, root=WORKSPACE, exists=has))
        strictest = decided[0]
        for other in decided[1:]:
            strictest = stricter(strictest, other)
        return strictest

    def origins_above(self, path: bytes) -> list[tuple[bytes, bytes]]:
        """Each directory on the way to *path*, or there, that the workspace has in another place, and where.

        First the place in the workspace, then the path in the view.
        """
        found, held, ino, here = [], [], ROOT_INODE, b""
        try:
            for name in path.split(b"/"):
                entry = super().lookup(ino, name)
                here = here + b"/" + name if here else name
                if entry is None:
                    break
                held.append(entry.ino)
                ino = entry.ino
                if not self.is_dir(ino):
                    break
                for part in self._inodes.directory(ino).lowers:
                    if part.path != here:
                        found.append((part.path, here))
        finally:
            for one in held:
                super().forget(one, 1)
        return found

    def has(self, path: str, needs: RuleCondition) -> bool:
        """Whether the workspace has the entry, or its parent; asked of the overlay by walking there."""
        if needs is RuleCondition.IGNORED:
            return git_ignores(os.fsencode(path.rstrip("/")), path.endswith("/"))
        parent, _, name = os.fsencode(path).rpartition(b"/")
        ino, held = ROOT_INODE, []
        try:
            for part in parent.split(b"/") if parent else []:
                entry = super().lookup(ino, part)
                if entry is None:
                    # Nothing is there to be changed.
                    return True
                held.append(entry.ino)
                ino = entry.ino
            return self.in_workspace(ino, name if needs is RuleCondition.ENTRY else None)
        finally:
            for one in held:
                super().forget(one, 1)

    def must(self, access: Access, path: bytes, is_dir: bool) -> None:
        decision = self.decision(path, is_dir)
        assert decision.allows(access), f"{access} of {path!r} got through: {decision.reason(access)}"

    def below(self, parent: int, name: bytes) -> bytes:
        above = self.path(parent)
        return above + b"/" + name if above else name

    def must_inode(self, access: Access, ino: int, *, content: bool = False) -> None:
        """Nobody is there to be asked: *content* that a rule asks about is read only where it is our own."""
        for parent, name in self.places(ino):
            path, is_dir = self.below(parent, name), self.is_dir(ino)
            if access is READ and self.decision(path, is_dir).ruling(READ) is Ruling.ASK:
                assert not content or self.somebody or self.is_own(ino), f"{path!r} was read without asking"
            else:
                self.must(access, path, is_dir)

    def is_own(self, ino: int) -> bool:
        """Whether no file of the workspace is behind an inode: told by the marks in the upper."""
        node = self._inodes.node(ino)
        if not node.upper:
            return False
        if node.opened is not None:
            return "user.overlay.sandboxfs" not in os.listxattr(node.opened.fd)
        return self.made_here(ino)

    def walk(self, ino: int, path: bytes) -> Iterator[tuple[bytes, bool]]:
        """Everything below a directory, as relative paths."""
        handle = super().opendir(ino)
        found = []
        for name, entry, _ in super().readdir(handle, 0):
            if name not in DOTS:
                super().remember(entry.ino)
                found.append((name, entry))
        super().releasedir(handle)
        for name, entry in found:
            inner = path + b"/" + name if path else name
            is_dir = stat.S_ISDIR(entry.stat.st_mode)
            yield inner, is_dir
            if is_dir:
                yield from self.walk(entry.ino, inner)
            super().forget(entry.ino, 1)

    # Verbs

    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        self.must_inode(WRITE, ino)
        return super().setattr(ino, change, handle, caller)

    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller = ME) -> None:
        self.must_inode(WRITE, ino)
        super().setxattr(ino, name, value, flags, caller)

    def removexattr(self, ino: int, name: bytes, caller: Caller = ME) -> None:
        self.must_inode(WRITE, ino)
        super().removexattr(ino, name, caller)

    def mknod(
        self, parent: int, name: bytes, mode: int, device: int, caller: Caller, *, umask: int = 0
    ) -> Entry:
        self.must(WRITE, self.below(parent, name), False)
        return super().mknod(parent, name, mode, device, caller, umask=umask)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller, *, umask: int = 0) -> Entry:
        self.must(WRITE, self.below(parent, name), True)
        return super().mkdir(parent, name, mode, caller, umask=umask)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        self.must(WRITE, self.below(parent, name), False)
        return super().symlink(parent, name, target, caller)

    def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller, *, umask: int = 0
    ) -> tuple[OpenedFile, Entry]:
        self.must(WRITE, self.below(parent, name), False)
        return super().create(parent, name, mode, flags, caller, umask=umask)

    def link(self, ino: int, parent: int, name: bytes, caller: Caller = ME) -> Entry:
        self.must_inode(WRITE, ino)
        self.must(WRITE, self.below(parent, name), False)
        return super().link(ino, parent, name, caller)

    def unlink(self, parent: int, name: bytes, caller: Caller = ME) -> None:
        self.must(DELETE, self.below(parent, name), False)
        super().unlink(parent, name, caller)

    def rmdir(self, parent: int, name: bytes, caller: Caller = ME) -> None:
        self.must(DELETE, self.below(parent, name), True)
        super().rmdir(parent, name, caller)

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller = ME
    ) -> None:
        raise AssertionError("a rename that the guard does not approve")

    def move(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, approve: Approve
    ) -> None:
        ends = [(parent, name), (new_parent, new_name)]
        entries = [super(Watched, self).lookup(*end) for end in ends]
        paths = [self.below(*end) for end in ends]
        before = [self._modes(entry, path) for entry, path in zip(entries, paths, strict=True)]

        def approved(source: Seen | None, target: Seen | None) -> None:
            approve(source, target)
            for entry, path in zip(entries, paths, strict=True):
                if entry is not None:
                    self.must(DELETE, path, stat.S_ISDIR(entry.stat.st_mode))

        try:
            super().move(parent, name, new_parent, new_name, flags, approved)
            after = [self._modes(entries[0], paths[1])]
            if flags & RENAME_EXCHANGE:
                after.append(self._modes(entries[1], paths[0]))
            # Nothing that moved may be under another mode at its new place.
            for old, new in zip(before, after, strict=False):
                self._compare(old, new, paths)
        finally:
            for entry in entries:
                if entry is not None:
                    self.forget(entry.ino, 1)

    def _compare(self, old: "Ruled", new: "Ruled", paths: list[bytes]) -> None:
        assert old.keys() == new.keys()
        for path, (before, own, is_dir) in old.items():
            after = new[path][0]
            assert barred(before) == barred(after), f"moving {paths} changed what rules say of {path!r}"
            for access in (READ, EXECUTE):
                milder = before.ruling(access).value > max(after.ruling(access).value, Ruling.HOLD.value)
                assert is_dir or own or not milder, f"moving {paths} took {path!r} from under a rule"

    def _modes(self, entry: Entry | None, top: bytes) -> "Ruled":
        if entry is None:
            return {}
        is_dir = stat.S_ISDIR(entry.stat.st_mode)
        modes = {b"": (self.decision(top, is_dir), self.made_here(entry.ino), is_dir)}
        if is_dir:
            for inner, inner_is_dir in self.walk(entry.ino, b""):
                own = False if inner_is_dir else self._is_own_below(entry.ino, inner)
                modes[inner] = (self.decision(top + b"/" + inner, inner_is_dir), own, inner_is_dir)
        return modes

    def _is_own_below(self, ino: int, path: bytes) -> bool:
        held = []
        try:
            for name in path.split(b"/"):
                entry = super().lookup(ino, name)
                assert entry is not None
                held.append(entry.ino)
                ino = entry.ino
            return self.made_here(ino)
        finally:
            for one in held:
                super().forget(one, 1)

    def open(self, ino: int, flags: int, caller: Caller) -> OpenedFile:
        wanted = flags & os.O_ACCMODE
        if wanted != os.O_WRONLY:
            self.must_inode(READ, ino, content=True)
        if wanted != os.O_RDONLY or flags & os.O_TRUNC:
            self.must_inode(WRITE, ino)
        return super().open(ino, flags, caller)

    def readlink(self, ino: int, caller: Caller = ME) -> bytes:
        self.must_inode(READ, ino)
        return super().readlink(ino, caller)

    def getxattr(self, ino: int, name: bytes, caller: Caller = ME) -> bytes:
        self.must_inode(READ, ino)
        return super().getxattr(ino, name, caller)

    def listxattr(self, ino: int, caller: Caller = ME) -> list[bytes]:
        self.must_inode(READ, ino)
        return super().listxattr(ino, caller)


class Kernel:
    """Asks the guard by paths, with every reference counted, and keeps files open over what follows."""

    def __init__(self, place: Path, policy: Policy, person: Person | None = None, seed: Tree = SEED) -> None:
        layers = [place / name for name in ("upper", "work", "index")]
        for layer in layers:
            layer.mkdir()
        upper, work, index = layers
        workspace = build(place / "workspace", seed)
        self.overlay = Watched(OverlayPaths(lowers=[workspace], upper=upper, work=work, index=index))
        self.overlay.policy = policy
        journal = Silent()
        links = LinkGuard(self.overlay, journal, Symlinks.KEEP, os.fsencode(WORKSPACE), b"/view")
        self.overlay.somebody = person is not None
        self.guard = Guard(self.overlay, Compiled(policy, WORKSPACE, git_ignores), journal, links, person)
        self.references: Counter[int] = Counter()
        # The inode of each open file, and how it was opened: the kernel lets nobody write otherwise.
        self.handles: dict[int, tuple[int, int]] = {}

    def flip(self, policy: Policy) -> None:
        self.overlay.policy = policy
        self.guard.set_policy(Compiled(policy, WORKSPACE, git_ignores))

    def counted(self, entry: Entry) -> Entry:
        self.references[entry.ino] += 1
        return entry

    def find(self, path: str) -> Entry:
        entry: Entry | None = self.overlay.getattr(ROOT_INODE)
        for part in path.split("/"):
            assert entry is not None
            if not stat.S_ISDIR(entry.stat.st_mode):
                raise NotADirectoryError(20, "not a directory")
            entry = self.guard.lookup(entry.ino, part.encode(), ME)
            if entry is None:
                raise FileNotFoundError(2, "not found")
            self.counted(entry)
        assert entry is not None
        return entry

    def place(self, path: str) -> tuple[int, bytes]:
        folder, _, name = path.rpartition("/")
        ino = self.find(folder).ino if folder else ROOT_INODE
        return ino, name.encode()

    def free_place(self, path: str) -> tuple[int, bytes]:
        parent, name = self.place(path)
        with suppress(PolicyDenied, FileNotFoundError):
            found = self.guard.lookup(parent, name, ME)
            if found is not None:
                self.counted(found)
                raise FileExistsError(17, "exists")
        return parent, name

    def chosen(self, step: "Step") -> tuple[str, str]:
        """The paths that a step means now."""
        found = sorted(self.overlay.walk(ROOT_INODE, b""))
        folders = ["", *(os.fsdecode(path) for path, is_dir in found if is_dir)]
        paths = [os.fsdecode(path) for path, _ in found]
        folder = folders[step.new_number % len(folders)]
        new = f"{folder}/{step.name}".lstrip("/")
        if not paths or step.verb in MAKING:
            return new, new
        old = paths[step.number % len(paths)]
        return old, paths[step.new_number % len(paths)] if step.at_existing else new

    # One method for each verb that a test may choose

    def do_mkdir(self, path: str, _: str) -> None:
        self.counted(self.guard.mkdir(*self.free_place(path), 0o755, ME))

    def do_create(self, path: str, _: str) -> None:
        opened, entry = self.guard.create(*self.free_place(path), 0o644, os.O_RDWR, ME)
        self.counted(entry)
        self.handles[opened.handle] = entry.ino, os.O_RDWR

    def do_mknod(self, path: str, _: str) -> None:
        self.counted(self.guard.mknod(*self.free_place(path), stat.S_IFIFO | 0o600, 0, ME))

    def do_symlink(self, path: str, other: str) -> None:
        self.counted(self.guard.symlink(*self.free_place(path), other.encode(), ME))

    def do_link(self, path: str, other: str) -> None:
        self.counted(self.guard.link(self.find(path).ino, *self.free_place(other), ME))

    def do_unlink(self, path: str, _: str) -> None:
        if not stat.S_ISDIR(self.find(path).stat.st_mode):
            self.guard.unlink(*self.place(path), ME)

    def do_rmdir(self, path: str, _: str) -> None:
        if stat.S_ISDIR(self.find(path).stat.st_mode):
            self.guard.rmdir(*self.place(path), ME)

    def rename(self, path: str, other: str, flags: int) -> None:
        if other.startswith(path + "/") or path.startswith(other + "/"):
            return
        self.find(path)
        self.guard.rename(*self.place(path), *self.place(other), flags, ME)

    def do_rename(self, path: str, other: str) -> None:
        self.rename(path, other, 0)

    def do_rename_apart(self, path: str, other: str) -> None:
        self.rename(path, other, RENAME_NOREPLACE)

    def do_exchange(self, path: str, other: str) -> None:
        self.find(other)
        self.rename(path, other, RENAME_EXCHANGE)

    def do_chmod(self, path: str, _: str) -> None:
        self.guard.setattr(self.find(path).ino, AttributeChange(mode=0o700), None, ME)

    def do_truncate(self, path: str, _: str) -> None:
        entry = self.find(path)
        if stat.S_ISREG(entry.stat.st_mode):
            self.guard.setattr(entry.ino, AttributeChange(size=1), None, ME)

    def do_xattr(self, path: str, _: str) -> None:
        ino = self.find(path).ino
        self.guard.listxattr(ino, ME)
        self.guard.setxattr(ino, b"user.x", b"x", 0, ME)
        self.guard.getxattr(ino, b"user.x", ME)
        self.guard.removexattr(ino, b"user.x", ME)

    def do_readlink(self, path: str, _: str) -> None:
        entry = self.find(path)
        if stat.S_ISLNK(entry.stat.st_mode):
            self.guard.readlink(entry.ino, ME)

    def open(self, path: str, flags: int) -> None:
        entry = self.find(path)
        if stat.S_ISREG(entry.stat.st_mode):
            handle = self.guard.open(entry.ino, flags, ME).handle
            self.handles[handle] = entry.ino, flags & os.O_ACCMODE

    def do_open(self, path: str, _: str) -> None:
        self.open(path, os.O_RDONLY)

    def do_open_to_write(self, path: str, _: str) -> None:
        self.open(path, os.O_RDWR)

    def do_open_to_empty(self, path: str, _: str) -> None:
        self.open(path, os.O_WRONLY | os.O_TRUNC)

    def use_handles(self) -> None:
        """Read and write by everything that is open, whatever has happened since."""
        for handle, (ino, flags) in self.handles.items():
            if flags != os.O_WRONLY:
                with suppress(PolicyDenied):
                    self.guard.read(handle, 0, 10)
                    self.overlay.must_inode(READ, ino, content=True)
            if flags != os.O_RDONLY:
                with suppress(PolicyDenied):
                    self.guard.write(handle, 0, b"w")
                    self.overlay.must_inode(WRITE, ino)

    def do_close(self, path: str, _: str) -> None:
        for handle in self.handles:
            self.guard.release(handle)
        self.handles.clear()

    def do_forget(self, path: str, _: str) -> None:
        if not self.handles:
            for ino, count in self.references.items():
                self.guard.forget(ino, count)
            self.references.clear()

    # What is seen

    def check_view(self) -> None:
        """What the guard lists and finds is what the policy says of what there is, neither more nor less."""
        expected = set()
        blind = [b"\0"]
        for path, is_dir in self.overlay.walk(ROOT_INODE, b""):
            mode = self.overlay.mode_at(path, is_dir)
            if any(path.startswith(top + b"/") for top in blind):
                continue
            if mode is Mode.HIDE:
                blind.append(path)
                continue
            if mode is Mode.DENY and is_dir:
                blind.append(path)
            expected.add(path)
        seen = set(self.seen(ROOT_INODE, b""))
        # In a directory that was renamed a path may be ignored by one name and not by the other: then it is
        # covered by the stricter of all that could be said.
        assert seen <= expected if self.overlay.policy.asks_git else seen == expected

    def seen(self, ino: int, path: bytes) -> Iterator[bytes]:
        handle = self.guard.opendir(ino, ME)
        names = []
        for name, entry, _ in self.guard.readdir(handle, 0):
            self.guard.forget(entry.ino, 0)
            names.append(name)
        self.guard.releasedir(handle)
        for name in names:
            if name in DOTS:
                continue
            inner = path + b"/" + name if path else name
            yield inner
            # What is denied is listed, and that is all.
            with suppress(PolicyDenied):
                found = self.guard.lookup(ino, name, ME)
                assert found is not None
                try:
                    if stat.S_ISDIR(found.stat.st_mode):
                        yield from self.seen(found.ino, inner)
                finally:
                    self.guard.forget(found.ino, 1)

    def finish(self) -> None:
        self.do_close("", "")
        self.do_forget("", "")
        assert len(self.overlay._inodes) == 1, "inodes are remembered that nobody knows"
        assert set(self.guard._decisions._states) <= {ROOT_INODE}, "decisions are remembered for nobody"
        assert not self.guard._handles
        assert not self.guard._unsure
        assert not self.guard._listings


class Step(NamedTuple):
    """A verb, and how to choose its paths: by number among all that exist, or a name in such a directory."""

    verb: str
    number: int
    new_number: int
    name: str
    at_existing: bool


VERBS = [name for name in vars(Kernel) if name.startswith("do_")]
MOVES = [
    "do_rename",
    "do_rename",
    "do_exchange",
    "do_link",
    "do_unlink",
    "do_mkdir",
    "do_open",
    "do_open_to_write",
]
NAMES = ["a", "b", "ab", "n", ".git", "hooks"]
numbers = st.integers(0, 60)
some_step = st.builds(
    Step,
    st.sampled_from(MOVES) | st.sampled_from(VERBS),
    numbers,
    numbers,
    st.sampled_from(NAMES),
    st.sampled_from([False, False, True]),
)
# Rules near to what is there, most of them about something in the middle of the tree.
PATTERNS = [
    "a/b/a", "a/b", "b/b/b", "b/*/b", "a/**/a", "**/b/a", "n/a", "n/**/a", "*/n/*", "**/n/b", "n", "ab",
    "./ab", "hooks", "**/.git/hooks", "a/.git", "n/b/", "**/a/", "b/", "a/b/*", "n/*/a", "a/n", "b/n",
    "**/n/n", "n*",
]  # fmt: skip
some_rule = st.builds(
    Rule,
    st.sampled_from(PATTERNS),
    st.sampled_from([Mode.HIDE, Mode.DENY, Mode.RO, Mode.ASK, Mode.ASK, Mode.HOLD, Mode.RW]),
    st.just(RuleSource(SourceKind.COMMAND_LINE)),
)
near_policies = st.builds(
    Policy,
    st.lists(some_rule, min_size=1, max_size=3).map(tuple),
    st.sampled_from([Mode.RW, Mode.RW, Mode.RW, Mode.RO]),
)
far_policies = policies(3)
any_policy = st.sampled_from([near_policies, near_policies, near_policies, far_policies]).flatmap(
    lambda one: one
)
# One in five changes the policy.
one_step = st.sampled_from([some_step, some_step, some_step, some_step, any_policy]).flatmap(lambda one: one)
steps = st.lists(one_step, min_size=5, max_size=16)


def run_steps(policy: Policy, todo: "list[Step | Policy]") -> None:
    umask = os.umask(0)
    place = Path(tempfile.mkdtemp(prefix="sandboxfs-test-"))
    kernel = Kernel(place, policy)
    try:
        for step in todo:
            if isinstance(step, Policy):
                kernel.flip(step)
            else:
                with suppress(OSError):
                    getattr(kernel, step.verb)(*kernel.chosen(step))
            kernel.use_handles()
            kernel.check_view()
        kernel.finish()
    finally:
        kernel.overlay.close()
        shutil.rmtree(place)
        os.umask(umask)


@given(any_policy, steps)
@settings(max_examples=settings().max_examples * 8)
def test_nothing_that_a_policy_refuses_reaches_the_overlay_and_nothing_hidden_is_seen(
    policy: Policy, todo: "list[Step | Policy]"
) -> None:
    run_steps(policy, todo)


some_rule_about_ignored = st.builds(
    replace,
    some_rule
    | st.builds(Rule, st.just("**"), st.sampled_from(Mode), some_rule.map(lambda rule: rule.source)),
    needs=st.sampled_from([RuleCondition.NOTHING, RuleCondition.IGNORED, RuleCondition.IGNORED]),
)
policies_about_ignored = st.builds(
    Policy,
    st.lists(some_rule_about_ignored, min_size=1, max_size=3).map(tuple),
    st.sampled_from([Mode.RW, Mode.RW, Mode.RO]),
)
other_step = st.sampled_from([some_step, some_step, some_step, some_step, policies_about_ignored]).flatmap(
    lambda one: one
)


@given(policies_about_ignored, st.lists(other_step, min_size=5, max_size=16))
@settings(max_examples=settings().max_examples * 4)
def test_nothing_gets_around_a_rule_about_what_git_ignores(
    policy: Policy, todo: "list[Step | Policy]"
) -> None:
    run_steps(policy, todo)


def test_what_was_renamed_into_a_directory_without_rules_is_hidden_once_its_old_place_is() -> None:
    def hiding(pattern: str) -> Policy:
        return Policy((Rule(pattern, Mode.HIDE, RuleSource(SourceKind.COMMAND_LINE)),))

    # The file `.git/a` is renamed, then the directory `a/.git` to its name.
    moves = [Step("do_rename", 1, 2, "b", False), Step("do_rename", 42, 1, "a", False)]
    run_steps(hiding("a/b/a"), [*moves, hiding("a/.git")])
