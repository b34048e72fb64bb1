"""Marks in the upper that make no sense spoil the directory they are on, and nothing beside it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archived import exported
from tests.support.committed import Committed
from tests.support.tree import Tree

TREE: Tree = {"src/a": "a\n", "src/deep/b": "b\n", "other": "o\n", "elsewhere/x": "x\n"}
DAMAGED = {
    "above": b"/..",
    "above, further down": b"/elsewhere/../../outside",
    "above, as a name": b"..",
    "here": b"/elsewhere/./x",
    "the root": b"/",
    "nothing": b"",
    "a path that is not from the root": b"elsewhere/x",
    "an empty name": b"/elsewhere//x",
    "a slash at the end": b"/elsewhere/",
    "a long name": b"/" + b"n" * 300,
    "a zero byte": b"/else\0where",
}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Committed]:
    made = Committed(tmp_path / "sandbox", TREE)
    (tmp_path / "sandbox/outside").mkdir()
    (tmp_path / "sandbox/outside/secret").write_text("secret")
    made.write("src/new", b"n\n")
    made.write("other", b"changed\n")
    yield made
    made.abandon()


def damage(sandbox: Committed, redirect: bytes) -> None:
    with sandbox.paused():
        os.setxattr(sandbox.upper / "src", "user.overlay.redirect", redirect)


@pytest.mark.parametrize("redirect", DAMAGED.values(), ids=DAMAGED)
def test_a_directory_with_a_damaged_redirect_shows_what_the_sandbox_made_in_it_and_no_more(
    sandbox: Committed, redirect: bytes
) -> None:
    damage(sandbox, redirect)
    assert sandbox.names("src") == [b"new"]
    assert sandbox.read("src/new") == b"n\n"
    assert set(sandbox.names()) >= {b"src", b"other", b"elsewhere"}
    assert sandbox.read("elsewhere/x") == b"x\n"


@pytest.mark.parametrize("redirect", DAMAGED.values(), ids=DAMAGED)
def test_a_review_names_a_damaged_directory_and_goes_on(sandbox: Committed, redirect: bytes) -> None:
    damage(sandbox, redirect)
    assert "damaged in the sandbox" in sandbox.conflicts()["src"]
    assert {"added src/new", "modified other"} <= set(sandbox.found())
    assert b"+changed" in sandbox.patch()
    assert exported(sandbox.paths)


@pytest.mark.parametrize("redirect", DAMAGED.values(), ids=DAMAGED)
def test_what_is_beside_a_damaged_directory_is_committed(sandbox: Committed, redirect: bytes) -> None:
    damage(sandbox, redirect)
    assert sandbox.plan().is_blocked
    sandbox.commit(on_conflict="skip")
    assert (sandbox.host / "other").read_text() == "changed\n"
    assert (sandbox.host / "src/a").read_text() == "a\n"
    assert (sandbox.host / "src/deep/b").read_text() == "b\n"


@pytest.mark.parametrize("redirect", DAMAGED.values(), ids=DAMAGED)
def test_discarding_a_damaged_directory_brings_back_what_the_workspace_has(
    sandbox: Committed, redirect: bytes
) -> None:
    damage(sandbox, redirect)
    sandbox.discard("src")
    assert set(sandbox.names("src")) == {b"a", b"deep"}
    assert sandbox.read("src/deep/b") == b"b\n"
    assert sandbox.found() == ["modified other"]


@pytest.mark.parametrize("redirect", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_directory_can_be_removed_in_the_view(sandbox: Committed, redirect: bytes) -> None:
    damage(sandbox, redirect)
    sandbox.remove_tree("src")
    assert not sandbox.exists("src")


ODD = {
    "to itself": b"/src",
    "into itself": b"/src/deep",
    "nowhere": b"/nowhere/at/all",
    "to a file": b"/other",
    "through a file": b"/other/below",
    "to a name beside it": b"elsewhere",
}


@pytest.mark.parametrize("redirect", ODD.values(), ids=ODD)
def test_a_redirect_that_no_rename_left_can_be_reviewed_and_discarded(
    sandbox: Committed, redirect: bytes
) -> None:
    damage(sandbox, redirect)
    assert b"new" in sandbox.names("src")
    assert "modified other" in sandbox.found()
    assert exported(sandbox.paths)
    sandbox.commit("other")
    assert (sandbox.host / "other").read_text() == "changed\n"
    sandbox.discard("src")
    assert set(sandbox.names("src")) == {b"a", b"deep"}
    assert sandbox.found() == []


def test_a_redirect_to_a_name_beside_it_leads_nowhere_where_nothing_is_merged(sandbox: Committed) -> None:
    sandbox.mkdir("fresh")
    sandbox.mkdir("fresh/inner")
    sandbox.write("fresh/inner/new", b"n\n")
    with sandbox.paused():
        os.setxattr(sandbox.upper / "fresh/inner", "user.overlay.redirect", b"src")
    assert sandbox.names("fresh/inner") == [b"new"]
    assert "damaged in the sandbox" in sandbox.conflicts()["fresh/inner"]
    sandbox.discard("fresh")
    assert not sandbox.exists("fresh")


def test_two_redirects_to_one_place_can_be_reviewed_and_discarded(sandbox: Committed) -> None:
    sandbox.mkdir("copy")
    with sandbox.paused():
        os.removexattr(sandbox.upper / "copy", "user.overlay.opaque")
        for name in ("src", "copy"):
            os.setxattr(sandbox.upper / name, "user.overlay.redirect", b"/elsewhere")
    assert sandbox.read("copy/x") == b"x\n"
    assert "modified other" in sandbox.found()
    assert exported(sandbox.paths)
    sandbox.commit("other")
    sandbox.discard("src", "copy")
    assert sandbox.read("elsewhere/x") == b"x\n"
    assert sandbox.found() == []


MARKS = {"opaque": b"?", "sandboxfs": b"short", "whiteout": b"y", "metacopy": b"x", "origin": b"\0" * 20}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("path", ["src", "src/new"])
def test_other_marks_that_make_no_sense_are_passed_over(sandbox: Committed, mark: str, path: str) -> None:
    with sandbox.paused():
        os.setxattr(sandbox.upper / path, f"user.overlay.{mark}", MARKS[mark])
    assert set(sandbox.names("src")) == {b"a", b"deep", b"new"}
    assert sandbox.read("src/new") == b"n\n"
    assert sandbox.found() == ["modified other", "added src/new"]
