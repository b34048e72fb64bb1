"""Do names of one file stay names of one file when changes to them are committed and taken back?"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.committed import Committed
from tests.support.placed import small_filesystem
from tests.support.reviewed import view_states
from tests.support.tree import HardLink, Tree, assert_same_tree, capture

WORKSPACE: Tree = {"a": "shared\n", "b": HardLink("a"), "dir/other": "other\n"}


@pytest.fixture(params=["here", "elsewhere"])
def sandbox(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Committed]:
    """A sandbox whose state is on the filesystem of the workspace, or on another one."""
    with ExitStack() as stack:
        if request.param == "elsewhere":
            stack.enter_context(small_filesystem(tmp_path / "state"))
        made = Committed(tmp_path, WORKSPACE)
        stack.callback(made.abandon)
        yield made


def into_new_directory(sandbox: Committed) -> None:
    sandbox.mkdir("new")
    sandbox.rename("a", "new/c")


def with_directory(sandbox: Committed) -> None:
    sandbox.rename("a", "dir/c")
    sandbox.rename("dir", "dir2")


def and_linked(sandbox: Committed) -> None:
    sandbox.rename("a", "c")
    sandbox.link("c", "d")


def over_another(sandbox: Committed) -> None:
    sandbox.rename("a", "dir/other")


def both(sandbox: Committed) -> None:
    sandbox.rename("a", "c")
    sandbox.rename("b", "d")


def removed_and_linked(sandbox: Committed) -> None:
    sandbox.unlink("a")
    sandbox.link("b", "c")


# What is done, and which names there are of the file then.
RENAMES: list[tuple[Callable[[Committed], None], set[str]]] = [
    (lambda sandbox: sandbox.rename("a", "c"), {"b", "c"}),
    (into_new_directory, {"b", "new/c"}),
    (with_directory, {"b", "dir2/c"}),
    (and_linked, {"b", "c", "d"}),
    (over_another, {"b", "dir/other"}),
    (both, {"c", "d"}),
    (removed_and_linked, {"b", "c"}),
    (lambda sandbox: sandbox.link("a", "c"), {"a", "b", "c"}),
]


@pytest.mark.parametrize(("action", "names"), RENAMES)
def test_names_of_one_file_stay_so(
    sandbox: Committed, action: Callable[[Committed], None], names: set[str]
) -> None:
    before, number = capture(sandbox.host), (sandbox.host / "b").stat().st_ino
    action(sandbox)
    found, view = sandbox.found(), view_states(sandbox)
    shown = {sandbox.stat(name).st_ino for name in names}
    assert len(shown) == 1
    sandbox.commit()
    assert {(sandbox.host / name).stat().st_ino for name in names} == {number}
    assert {sandbox.stat(name).st_ino for name in names} == shown
    assert view_states(sandbox) == view
    assert sandbox.found() == []
    assert not sandbox.undo().left
    assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
    assert {(sandbox.host / name).stat().st_ino for name in ("a", "b")} == {number}
    assert sandbox.found() == found


CHANGES: dict[str, Callable[[Committed], None]] = {
    "written": lambda sandbox: sandbox.write("c", b"changed\n"),
    "mode": lambda sandbox: sandbox.chmod("c", 0o600),
    "attribute": lambda sandbox: sandbox.setxattr("c", "user.colour", b"blue"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_names_of_a_file_that_was_changed_too_stay_together(sandbox: Committed, how: str) -> None:
    sandbox.rename("a", "c")
    CHANGES[how](sandbox)
    view = view_states(sandbox)
    sandbox.commit()
    b, c = (sandbox.host / name for name in ("b", "c"))
    assert b.stat().st_ino == c.stat().st_ino
    assert view_states(sandbox) == view
    assert c.read_bytes() == sandbox.read("c")
    assert os.listxattr(c) == (["user.colour"] if how == "attribute" else [])
    assert c.stat().st_mode == sandbox.stat("c").st_mode
    assert not sandbox.undo().left
    assert (sandbox.host / "a").read_text() == "shared\n"


def test_a_file_that_the_host_made_something_else_of_is_not_taken_for_it(sandbox: Committed) -> None:
    sandbox.rename("a", "c")
    (sandbox.host / "a").unlink()
    (sandbox.host / "a").write_text("the host's\n")
    sandbox.host_changed()
    sandbox.commit(on_conflict="ours")
    assert (sandbox.host / "c").read_text() == "shared\n"
    assert (sandbox.host / "b").read_text() == "shared\n"
    assert not (sandbox.host / "a").exists()
