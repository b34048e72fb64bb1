"""Random trees, random changes: a commit gives the workspace what the view has, an undo all it had."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tests.support.committed import Committed
from tests.support.reviewed import host_states, view_states
from tests.support.tree import Fifo, File, HardLink, Node, Symlink, Tree, assert_same_tree, capture

NAMES = ("a", "b", "c", "f\udcff\n")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
TEXTS = st.sampled_from([b"", b"one\n", b"one\ntwo\n", b"\0binary", b"x" * 50])
MODES = st.sampled_from([0o644, 0o755, 0o600, 0o444])

VERBS = ("write", "write", "new", "new", "mkdir", "remove", "rename", "rename", "symlink", "chmod", "link")


class Step(NamedTuple):
    """Something to try: on one of the paths that there are, or at a name in one of the directories."""

    verb: str
    path: int
    directory: int
    name: str
    text: bytes
    mode: int


MANY = st.integers(0, 1000)
STEPS = st.lists(
    st.builds(Step, st.sampled_from(VERBS), MANY, MANY, st.sampled_from(NAMES), TEXTS, MODES), max_size=12
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """A tree in which no file has to be a directory as well."""
    tree: dict[str | bytes, Node] = {}
    files: list[str] = []
    for path in draw(st.lists(PATHS, max_size=8, unique=True)):
        above = {path.rsplit("/", count)[0] for count in range(1, path.count("/") + 1)}
        if above & set(files) or any(other.startswith(path + "/") for other in files):
            continue
        kinds = ["file", "symlink", "fifo", "hard link"] if files else ["file", "symlink", "fifo"]
        kind = draw(st.sampled_from(kinds))
        if kind == "hard link":
            plain = [other for other in files if isinstance(tree[other], File)]
            tree[path] = HardLink(plain[0]) if plain else File(b"lone")
        elif kind == "symlink":
            tree[path] = Symlink(draw(PATHS))
        else:
            tree[path] = Fifo() if kind == "fifo" else File(draw(TEXTS), draw(MODES))
        files.append(path)
    return tree


def remove(sandbox: Committed, path: str) -> None:
    if stat.S_ISDIR(sandbox.lstat(path).st_mode):
        for name in sandbox.names(path):
            remove(sandbox, f"{path}/{os.fsdecode(name)}")
        sandbox.rmdir(path)
    else:
        sandbox.unlink(path)


def do(sandbox: Committed, step: Step) -> None:
    """Try one thing; some of it is impossible, as it is for programs."""
    states = view_states(sandbox)
    existing = sorted(states) or [b"nothing"]
    directories = [b"", *(path for path in sorted(states) if stat.S_ISDIR(states[path].mode))]
    path = os.fsdecode(existing[step.path % len(existing)])
    new = os.path.join(os.fsdecode(directories[step.directory % len(directories)]), step.name)
    with suppress(OSError, AssertionError):
        match step.verb:
            case "write":
                sandbox.write(path, step.text)
            case "new":
                sandbox.write(new, step.text, mode=step.mode)
            case "mkdir":
                sandbox.mkdir(new, step.mode | 0o700)
            case "remove":
                remove(sandbox, path)
            case "rename":
                sandbox.rename(path, new)
            case "symlink":
                sandbox.symlink(path, new)
            case "chmod":
                is_directory = stat.S_ISDIR(sandbox.lstat(path).st_mode)
                sandbox.chmod(path, step.mode | 0o700 if is_directory else step.mode)
            case _:
                sandbox.link(path, new)


@contextmanager
def sandbox_of(tree: Tree) -> Iterator[Committed]:
    place = Path(tempfile.mkdtemp())
    umask = os.umask(0)
    sandbox = Committed(place, tree)
    try:
        yield sandbox
    finally:
        sandbox.abandon()
        os.umask(umask)
        shutil.rmtree(place)


@given(trees(), STEPS, STEPS)
def test_commit_and_undo_are_a_round_trip(tree: Tree, steps: list[Step], more: list[Step]) -> None:
    with sandbox_of(tree) as sandbox:
        for turn in (steps, more):
            for step in turn:
                do(sandbox, step)
            before, view, found = capture(sandbox.host), view_states(sandbox), sandbox.found()
            if not found:
                continue
            sandbox.commit()
            assert host_states(sandbox.host) == view
            assert view_states(sandbox) == view
            assert sandbox.found() == []
            after = capture(sandbox.host)
            plan = sandbox.undo()
            assert not plan.left
            assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
            assert view_states(sandbox) == view
            assert sandbox.found() == found
            sandbox.commit()
            assert_same_tree(capture(sandbox.host), after, ignoring=frozenset({"ctime_ns"}))


@given(trees(), STEPS, st.lists(PATHS, min_size=1, max_size=2))
def test_discarding_a_part_and_undoing_it_is_a_round_trip(
    tree: Tree, steps: list[Step], paths: list[str]
) -> None:
    with sandbox_of(tree) as sandbox:
        for step in steps:
            do(sandbox, step)
        before, view, found = capture(sandbox.host), view_states(sandbox), sandbox.found()
        sandbox.discard(*paths)
        left = [line for line in sandbox.found() if line not in found]
        assert not [line for line in left if line.endswith("!")]
        sandbox.undo()
        assert view_states(sandbox) == view
        assert sandbox.found() == found
        sandbox.discard()
        assert view_states(sandbox) == host_states(sandbox.host)
        assert_same_tree(capture(sandbox.host), before)


@given(trees(), STEPS, st.lists(PATHS, min_size=1, max_size=2))
def test_committing_a_part_leaves_the_view_as_it_is_and_the_rest_for_later(
    tree: Tree, steps: list[Step], paths: list[str]
) -> None:
    with sandbox_of(tree) as sandbox:
        for step in steps:
            do(sandbox, step)
        before, view, found = capture(sandbox.host), view_states(sandbox), sandbox.found()
        sandbox.commit(*paths)
        assert view_states(sandbox) == view
        assert not [line for line in sandbox.found() if line.endswith("!")]
        plan = sandbox.undo()
        assert not plan.left
        assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
        assert view_states(sandbox) == view
        assert sandbox.found() == found
        sandbox.commit()
        assert host_states(sandbox.host) == view
        assert sandbox.found() == []


def test_a_directory_added_in_a_renamed_one_is_taken_back_with_it() -> None:
    with sandbox_of({"a/a/a": File(b"")}) as sandbox:
        sandbox.mkdir("a/b")
        sandbox.rename("a", "b")
        sandbox.write("b/b/a", b"")
        before, view, found = capture(sandbox.host), view_states(sandbox), sandbox.found()
        sandbox.commit()
        plan = sandbox.undo()
        assert not plan.left
        assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
        assert view_states(sandbox) == view
        assert sandbox.found() == found
