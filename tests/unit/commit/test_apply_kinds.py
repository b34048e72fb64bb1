"""Every kind of thing in the workspace, turned into every other: committed, discarded, taken back."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.committed import Committed
from tests.support.drivers import Sandbox
from tests.support.reviewed import host_states, view_states
from tests.support.tree import Directory, Fifo, File, Symlink, Tree, assert_same_tree, capture

KINDS: dict[str, Tree] = {
    "absent": {},
    "file": {"x": "text\n"},
    "executable": {"x": File("#!/bin/sh\n", 0o755)},
    "symlink": {"x": Symlink("other")},
    "empty directory": {"x/": Directory()},
    "full directory": {"x/a": "a\n", "x/b/c": "c\n", "x/b/d": Symlink("c")},
    "fifo": {"x": Fifo()},
}

MAKE: dict[str, Callable[[Sandbox], None]] = {
    "absent": lambda sandbox: None,
    "file": lambda sandbox: sandbox.write("x", b"another text\n"),
    "executable": lambda sandbox: sandbox.create("x", b"#!/bin/bash\n", 0o755),
    "symlink": lambda sandbox: sandbox.symlink("elsewhere", "x"),
    "empty directory": lambda sandbox: sandbox.mkdir("x", 0o700),
    "full directory": lambda sandbox: fill(sandbox),
    "fifo": lambda sandbox: sandbox.mknod("x", stat.S_IFIFO | 0o600),
}


def fill(sandbox: Sandbox) -> None:
    sandbox.mkdir("x")
    sandbox.write("x/a", b"A\n")
    sandbox.mkdir("x/e")
    sandbox.symlink("a", "x/e/f")


def remove(sandbox: Sandbox, path: str) -> None:
    """Remove what the view has at *path*, if anything."""
    if os.fsencode(os.path.basename(path)) not in sandbox.names(os.path.dirname(path) or "."):
        return
    if not stat.S_ISDIR(sandbox.lstat(path).st_mode):
        sandbox.unlink(path)
        return
    for name in sandbox.names(path):
        remove(sandbox, f"{path}/{os.fsdecode(name)}")
    sandbox.rmdir(path)


@pytest.fixture
def changed(tmp_path: Path) -> Iterator[Callable[[str, str], Committed]]:
    """Makes a sandbox in which one kind of thing was replaced by another."""
    made: list[Committed] = []
    umask = os.umask(0)

    def make(lower: str, upper: str) -> Committed:
        sandbox = Committed(tmp_path, {"other": "other\n", **KINDS[lower]})
        made.append(sandbox)
        remove(sandbox, "x")
        MAKE[upper](sandbox)
        return sandbox

    yield make
    for sandbox in made:
        sandbox.abandon()
    os.umask(umask)


@pytest.mark.parametrize("upper", MAKE)
@pytest.mark.parametrize("lower", KINDS)
def test_a_commit_gives_the_workspace_what_the_view_has_and_can_be_undone(
    changed: Callable[[str, str], Committed], lower: str, upper: str
) -> None:
    sandbox = changed(lower, upper)
    view, before, found = view_states(sandbox), capture(sandbox.host), sandbox.found()
    sandbox.commit()
    assert host_states(sandbox.host) == view_states(sandbox) == view
    assert sandbox.found() == []
    if not found:
        return
    sandbox.undo()
    assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
    assert view_states(sandbox) == view
    assert sandbox.found() == found


@pytest.mark.parametrize("upper", MAKE)
@pytest.mark.parametrize("lower", KINDS)
def test_a_discard_gives_the_view_what_the_workspace_has_and_can_be_undone(
    changed: Callable[[str, str], Committed], lower: str, upper: str
) -> None:
    sandbox = changed(lower, upper)
    view, before, found = view_states(sandbox), capture(sandbox.host), sandbox.found()
    sandbox.discard()
    assert view_states(sandbox) == host_states(sandbox.host)
    assert sandbox.found() == []
    assert_same_tree(capture(sandbox.host), before)
    sandbox.undo()
    assert view_states(sandbox) == view
    assert sandbox.found() == found
    assert_same_tree(capture(sandbox.host), before)
