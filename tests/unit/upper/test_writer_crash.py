"""Killed at any moment of editing: the view is right, and doing all of it again ends where it should.

Each scenario is played once without a mishap, with a look at the view after every operation. Then it is
killed before every single change of the host: each path must show what it showed before or after the
operation that was under way. Done again, and once more, everything is as without the mishap.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxfs.upper.edits import (
    WHITEOUT,
    FollowMove,
    Operation,
    Prune,
    Rebase,
    Rehide,
    RemoveEntry,
    RestoreEntry,
    UnfollowMove,
    Unhide,
    Whiteout,
)
from tests.support.edited import RECORD, Bench, Killed, killed_before
from tests.support.observe import Seen
from tests.support.tree import HardLink, Symlink, Tree

TREE: Tree = {
    "file": "lower",
    "link": Symlink("file"),
    "dir/one": "1",
    "dir/two": "2",
    "dir/sub/deep": "deep",
    "hard": "shared",
    "harder": HardLink("hard"),
}
View = dict[bytes, Seen]


@dataclass(frozen=True)
class Scenario:
    """What a program does, what happens then, and how the upper is edited."""

    work: Callable[[Bench], None]
    operations: Callable[[Bench], list[Operation]]
    then: Callable[[Bench], None] = lambda bench: None


def change_all(bench: Bench) -> None:
    view = bench.view
    view.write("file", b"upper")
    view.unlink("link")
    view.symlink("elsewhere", "link")
    view.write("hard", b"upper")
    view.link("hard", "third")
    view.unlink("dir/one")
    view.write("dir/sub/deep", b"upper")
    view.mkdir("made")
    view.create("made/new", b"new")


def drop_all(bench: Bench) -> list[Operation]:
    names = ["file", "link", "hard", "third", "dir/sub/deep", "made/new"]
    drops: list[Operation] = [bench.drop(name) for name in names]
    prunes = [Prune(path, path.replace(b"/", b"-")) for path in (b"dir/sub", b"dir", b"made")]
    return [*drops, RemoveEntry(b"dir/one", WHITEOUT, b"x"), *prunes]


def edit_all(bench: Bench) -> None:
    assert all(outcome.done for outcome in bench.edit(*drop_all(bench)))


def put_all(bench: Bench) -> list[Operation]:
    names = [b"made", b"made/new", b"dir", b"dir/sub/deep", b"file", b"link", b"third", b"hard"]
    puts = [RestoreEntry(name, name.replace(b"/", b"-")) for name in names]
    return [*puts, Whiteout(b"dir/one")]


def replace_directory(bench: Bench) -> None:
    view = bench.view
    view.remove_tree("dir")
    view.mkdir("dir")
    view.create("dir/one", b"upper one")
    view.mkdir("dir/sub")
    view.create("dir/sub/other", b"other")


def open_directory(bench: Bench) -> list[Operation]:
    return [Unhide(b"dir"), bench.drop("dir/one")]


def opened_before(bench: Bench) -> None:
    assert all(outcome.done for outcome in bench.edit(*open_directory(bench)))


def close_directory(bench: Bench) -> list[Operation]:
    close = Rehide(b"dir", opaque=True, redirect=None, whiteouts=(b"two",), closed=(b"sub",))
    return [RestoreEntry(b"dir/one", b"dir-one"), close]


def move_directory(bench: Bench) -> None:
    (bench.lower / "moved").mkdir()
    (bench.lower / "moved/two").write_text("not this")
    bench.view.remove_tree("moved")
    bench.view.rename("dir", "moved")
    bench.view.create("moved/new", b"new")
    bench.view.rename("moved/sub", "elsewhere")


def open_redirect(bench: Bench) -> list[Operation]:
    return [Unhide(b"moved")]


def opened_redirect(bench: Bench) -> None:
    assert bench.edit(Unhide(b"moved"))[0].done


def close_redirect(bench: Bench) -> list[Operation]:
    return [Rehide(b"moved", opaque=False, redirect=b"dir", whiteouts=(b"two",))]


def host_moves_it_too(bench: Bench) -> None:
    os.unlink(bench.lower / "moved/two")
    os.rmdir(bench.lower / "moved")
    os.rename(bench.lower / "dir", bench.lower / "moved")


def follow_the_move(bench: Bench) -> list[Operation]:
    return [FollowMove(b"dir", b"moved"), bench.drop("moved/new"), Rebase(b"", b"")]


def host_moves_it_to_and_fro(bench: Bench) -> None:
    host_moves_it_too(bench)
    assert bench.edit(FollowMove(b"dir", b"moved"))[0].done
    os.rename(bench.lower / "moved", bench.lower / "dir")


def follow_the_move_back(bench: Bench) -> list[Operation]:
    return [UnfollowMove(b"dir", b"moved")]


def replace_files(bench: Bench) -> list[Operation]:
    for name in ("1", "2", "3"):
        (bench.kept / name).write_text("merged")
    (bench.kept / "4").mkdir()
    return [
        RestoreEntry(b"file", b"1", bench.identity("file")),
        RestoreEntry(b"hard", b"2", bench.identity("hard")),
        RestoreEntry(b"link", b"3", bench.identity("link")),
        RestoreEntry(b"dir/one", b"4", WHITEOUT),
    ]


def change_some(bench: Bench) -> None:
    view = bench.view
    view.write("file", b"upper")
    view.write("hard", b"upper")
    view.unlink("link")
    view.symlink("elsewhere", "link")
    view.unlink("dir/one")


SCENARIOS = {
    "drop": Scenario(change_all, drop_all),
    "put back": Scenario(change_all, put_all, edit_all),
    "put in place": Scenario(change_some, replace_files),
    "open": Scenario(replace_directory, open_directory),
    "close": Scenario(replace_directory, close_directory, opened_before),
    "open a redirect": Scenario(move_directory, open_redirect),
    "close a redirect": Scenario(move_directory, close_redirect, opened_redirect),
    "moved": Scenario(move_directory, follow_the_move, host_moves_it_too),
    "unmoved": Scenario(move_directory, follow_the_move_back, host_moves_it_to_and_fro),
}


def shown(bench: Bench) -> View:
    """What the view shows, but for times of directories, which a kill may leave changed."""
    return {
        path: seen._replace(mtime=0) if seen.mode.startswith("d") else seen
        for path, seen in bench.observed().names.items()
    }


def prepared(place: Path, scenario: Scenario, devices: bool) -> tuple[Bench, list[Operation]]:
    bench = Bench(place, TREE, devices=devices)
    scenario.work(bench)
    scenario.then(bench)
    return bench, scenario.operations(bench)


def kept(bench: Bench) -> list[str]:
    return sorted(os.listdir(bench.kept))


def undisturbed(place: Path, scenario: Scenario, devices: bool) -> tuple[list[View], list[str]]:
    """The view before and after every operation, and what is kept in the end."""
    bench, operations = prepared(place, scenario, devices)
    try:
        views = [shown(bench)]
        for operation in operations:
            (outcome,) = bench.edit(operation)
            assert outcome.done, (operation, outcome)
            views.append(shown(bench))
        return views, kept(bench)
    finally:
        bench.close()


def edit_until_killed(bench: Bench, operations: list[Operation], number: int) -> int | None:
    """How many operations were done before the kill; None when they all were."""
    done = 0
    bench.view.stop()
    with bench.upper_editor() as editor:
        editor.use(RECORD)
        try:
            with killed_before(number):
                for operation in operations:
                    editor.edit(operation)
                    done += 1
        except Killed:
            return done
    return None


def check_between(found: View, before: View, after: View) -> None:
    for path in found.keys() | before.keys() | after.keys():
        # A directory may show twice for the moment: then others have a name earlier than theirs.
        seen = [
            view[path]._replace(shares_with=b"") if path in view else None for view in (found, before, after)
        ]
        assert seen[0] in seen[1:], path


@pytest.mark.parametrize("devices", [True, False], ids=["device", "xattr"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_before_any_change_the_view_is_right_and_doing_it_again_finishes(
    tmp_path: Path, name: str, devices: bool
) -> None:
    scenario = SCENARIOS[name]
    views, left = undisturbed(tmp_path / "undisturbed", scenario, devices)
    number = 0
    while True:
        bench, operations = prepared(tmp_path / str(number), scenario, devices)
        try:
            done = edit_until_killed(bench, operations, number)
            bench.start()
            if done is None:
                assert number > len(operations)
                break
            check_between(shown(bench), views[done], views[done + 1])
            for _ in range(2):
                for operation, outcome in zip(operations, bench.edit(*operations), strict=True):
                    assert outcome.done, (number, operation, outcome)
            assert shown(bench) == views[-1], number
            assert kept(bench) == left
        finally:
            bench.close()
        number += 1
