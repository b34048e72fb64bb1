"""The full product of what the sandbox and the host made of one path, where the sandbox's side is to win."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.committed import Committed
from tests.support.reviewed import host_states, view_states
from tests.support.tree import Tree, assert_same_tree, capture

WORKSPACE: Tree = {"x": "file\n", "d/a": "a\n", "d/deep/b": "b\n", "other": "other\n"}


def remade(sandbox: Committed) -> None:
    sandbox.unlink("x")
    sandbox.mkdir("x")
    sandbox.create("x/new", b"new\n")


def removed(sandbox: Committed) -> None:
    sandbox.unlink("d/a")
    sandbox.unlink("d/deep/b")
    sandbox.rmdir("d/deep")
    sandbox.rmdir("d")


def flattened(sandbox: Committed) -> None:
    removed(sandbox)
    sandbox.create("d", b"now a file\n")


def relinked(sandbox: Committed) -> None:
    sandbox.unlink("x")
    sandbox.symlink("other", "x")


SANDBOX: dict[str, tuple[str, Callable[[Committed], None]]] = {
    "write": ("x", lambda sandbox: sandbox.write("x", b"changed\n")),
    "chmod": ("x", lambda sandbox: sandbox.chmod("x", 0o600)),
    "delete": ("x", lambda sandbox: sandbox.unlink("x")),
    "rename": ("x", lambda sandbox: sandbox.rename("x", "y")),
    "make a symlink": ("x", relinked),
    "make a directory": ("x", remade),
    "write inside": ("d", lambda sandbox: sandbox.write("d/a", b"changed\n")),
    "chmod a directory": ("d", lambda sandbox: sandbox.chmod("d", 0o700)),
    "delete a directory": ("d", removed),
    "make a file": ("d", flattened),
}


def gone(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def full(path: Path) -> None:
    gone(path)
    (path / "inner").mkdir(parents=True)
    (path / "in").write_text("in\n")
    (path / "inner/deep").write_text("deep\n")


def empty(path: Path) -> None:
    gone(path)
    path.mkdir()


def link(path: Path) -> None:
    gone(path)
    path.symlink_to("elsewhere")


def file(path: Path) -> None:
    gone(path)
    path.write_text("the host's\n")


HOST = {"gone": gone, "full directory": full, "empty directory": empty, "symlink": link, "file": file}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Committed]:
    made = Committed(tmp_path, WORKSPACE)
    yield made
    made.abandon()


# Attributes alone do not bring a directory back that is gone, and the directories of both become one.
OTHERWISE = {("chmod a directory", "gone"), ("make a directory", "full directory")}


@pytest.mark.parametrize(
    ("does", "host"), [(does, host) for does in SANDBOX for host in HOST if (does, host) not in OTHERWISE]
)
def test_the_side_of_the_sandbox_is_committed_and_that_of_the_host_kept(
    sandbox: Committed, does: str, host: str
) -> None:
    path, action = SANDBOX[does]
    action(sandbox)
    sandbox.stop()
    HOST[host](sandbox.host / path)
    sandbox.host_changed()
    before = capture(sandbox.host)
    sandbox.start()
    view = view_states(sandbox)
    sandbox.commit(on_conflict="ours")
    assert host_states(sandbox.host) == view_states(sandbox) == view
    assert sandbox.found() == []
    assert not [name for name in os.listdir(sandbox.host) if name.startswith(".sandboxfs")]
    assert not sandbox.undo().left
    assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
    assert view_states(sandbox) == view


def test_one_path_is_enough_where_the_host_made_a_directory(sandbox: Committed) -> None:
    sandbox.write("x", b"changed\n")
    sandbox.write("other", b"changed too\n")
    full(sandbox.host / "x")
    sandbox.host_changed()
    sandbox.commit("x", on_conflict="ours")
    assert (sandbox.host / "x").read_bytes() == b"changed\n"
    assert (sandbox.host / "other").read_bytes() == b"other\n"
    assert not sandbox.undo().left
    assert (sandbox.host / "x/inner/deep").read_text() == "deep\n"


# Where the host made something of another type, which is a conflict whatever the sandbox did.
OTHER_TYPES = [("x", "full directory"), ("x", "symlink"), ("d", "symlink"), ("d", "file")]


@pytest.mark.parametrize(
    ("does", "host"),
    [
        (does, host)
        for does, (path, _) in SANDBOX.items()
        for other, host in OTHER_TYPES
        if path == other and (does, host) not in OTHERWISE
    ],
)
def test_the_side_of_the_host_is_left_and_that_of_the_sandbox_kept(
    sandbox: Committed, does: str, host: str
) -> None:
    path, action = SANDBOX[does]
    action(sandbox)
    sandbox.stop()
    HOST[host](sandbox.host / path)
    sandbox.host_changed()
    before = capture(sandbox.host)
    sandbox.start()
    view = view_states(sandbox)
    sandbox.commit(on_conflict="theirs")
    assert_same_tree(capture(sandbox.host), before)
    assert host_states(sandbox.host) == view_states(sandbox)
    assert sandbox.found() == []
    assert not sandbox.undo().left
    assert view_states(sandbox) == view
