"""All steps of a transaction, or none."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.commit.actions import Actions
from sandboxfs.hostfs.identity import ConcurrentChange
from tests.support.transacted import Transacted
from tests.support.tree import (
    Directory,
    Fifo,
    File,
    HardLink,
    Symlink,
    Tree,
    assert_same_tree,
    capture,
)

Begin = Callable[[Tree, Tree], Transacted]
# What a replica cannot have of its original.
OWN = frozenset({"ctime_ns"})


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    made: list[Transacted] = []

    def begun(workspace: Tree, new: Tree) -> Transacted:
        made.append(Transacted(tmp_path, workspace, new))
        return made[-1]

    yield begun
    for one in made:
        one.close()


def test_new_things_appear_with_everything_that_can_be_told_about_them(begin: Begin, tmp_path: Path) -> None:
    new: Tree = {
        "file": File("text\n", 0o640, {"user.colour": b"red"}),
        "program": File("#!/bin/sh\n", 0o755),
        "link": Symlink("nowhere"),
        "fifo": Fifo(0o600),
        "tree/": Directory(0o555),
        "tree/inner/leaf": "leaf",
        "tree/inner/other": HardLink("tree/inner/leaf"),
        b"odd \xff\n name": "odd",
    }
    tried = begin({}, new)
    names = ["file", "program", "link", "fifo", "tree", os.fsdecode(b"odd \xff\n name")]
    tried.commit(Actions(tuple(tried.change(name) for name in names)), {b"": (1, 2)})
    os.utime(tried.new, ns=(1, 2))
    assert_same_tree(capture(tried.workspace), capture(tried.new), ignoring=OWN)


def test_replacing_keeps_what_was_there_in_the_record(begin: Begin) -> None:
    tried = begin({"a": "old", "d/x": "x"}, {"a": "new", "d": "no directory"})
    record = tried.commit(Actions((tried.change("a"), tried.change("d"))))
    assert (tried.workspace / "a").read_text() == "new"
    assert (tried.workspace / "d").read_text() == "no directory"
    kept = tried.home / "commits" / str(record.number) / "pre"
    assert sorted(path.read_text() for path in kept.rglob("*") if path.is_file()) == ["old", "x"]


def test_directories_move_nest_and_change_places(begin: Begin) -> None:
    tried = begin({"a/1": "1", "b/2": "2", "c/d/3": "3", "gone/4": "4"}, {"new/": ""})
    actions = Actions(
        (tried.change("new"), tried.change("gone")),
        (tried.move("a", "b"), tried.move("b", "a"), tried.move("c/d", "new/d")),
    )
    # What is replaced moves away itself.
    actions = Actions(actions.changes, tuple(type(m)(m.source, m.target, m.identity) for m in actions.moves))
    tried.commit(actions)
    found = sorted(str(p.relative_to(tried.workspace)) for p in tried.workspace.rglob("*"))
    assert found == ["a", "a/2", "b", "b/1", "c", "new", "new/d", "new/d/3"]


def test_a_change_that_came_meanwhile_is_a_surprise_and_nothing_is_changed(begin: Begin) -> None:
    tried = begin({"a": "old", "b": "old", "d/e": "e"}, {"a": "new", "b": "new"})
    actions = Actions((tried.change("a"), tried.change("b"), tried.change("d")))
    before = capture(tried.workspace)
    (tried.workspace / "b").write_text("edited")
    os.utime(tried.workspace / "b", ns=(5, 5))
    with pytest.raises(ConcurrentChange) as caught:
        tried.commit(actions)
    assert caught.value.path == b"b"
    (tried.workspace / "b").write_text("old")
    assert_same_tree(capture(tried.workspace), before, ignoring=OWN | {"mtime_ns"})
    assert sorted(os.listdir(tried.workspace)) == ["a", "b", "d"]


def test_attributes_change_in_place(begin: Begin) -> None:
    tried = begin(
        {"f": "text", "d/x": "x"}, {"f": File("other", 0o755, {"user.a": b"1"}), "d/": Directory(0o700)}
    )
    before = (tried.workspace / "f").stat()
    tried.commit(Actions(dresses=(tried.dress("f"), tried.dress("d"))))
    after = (tried.workspace / "f").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode & 0o777) == (
        before.st_ino,
        before.st_mtime_ns,
        0o755,
    )
    assert os.getxattr(tried.workspace / "f", "user.a") == b"1"
    assert (tried.workspace / "d").stat().st_mode & 0o777 == 0o700


def test_a_directory_whose_names_stay_keeps_its_times(begin: Begin) -> None:
    tried = begin({"d/a": "old", "e/a": "old"}, {"d/a": "new"})
    before = {name: (tried.workspace / name).stat().st_mtime_ns for name in ("d", ".")}
    tried.commit(Actions((tried.change("d/a"), tried.change("e/a"))), {b"e": (3, 4)})
    assert {name: (tried.workspace / name).stat().st_mtime_ns for name in ("d", ".")} == before
    assert (tried.workspace / "e").stat().st_mtime_ns == 4


def test_a_file_is_written_over_where_it_cannot_be_replaced(begin: Begin) -> None:
    tried = begin({"a": File("old", 0o600)}, {"a": File("new text", 0o644)})
    before = (tried.workspace / "a").stat().st_ino
    record = tried.commit(Actions((tried.change("a", in_place=True),)))
    assert (tried.workspace / "a").read_text() == "new text"
    assert (tried.workspace / "a").stat().st_ino == before
    assert (tried.home / "commits" / str(record.number) / "pre" / "1").read_text() == "old"
    assert os.listdir(tried.workspace) == ["a"]
