"""Is a path whose entry was edited away as good as one that the sandbox never touched?

After a commit or a discard the view shows the workspace at that path. What the host and the sandbox do there
later is judged from then on: neither sees a conflict in what was over before.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.committed import Committed
from tests.support.tree import Tree

Make = Callable[[Tree], Committed]
Act = Callable[[Committed], object]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Committed] = []

    def start(tree: Tree) -> Committed:
        made.append(Committed(tmp_path / str(len(made)), tree))
        return made[-1]

    yield start
    for sandbox in made:
        sandbox.abandon()


TREE: Tree = {"d/a": "first\n", "d/b": "b\n", "c": "c\n"}
# A change that is there all the time: an upper without entries hides nothing, and nothing is known then.
OTHER = "modified c"


def edit(sandbox: Committed) -> None:
    sandbox.write("d/a", b"edited\n")


def edit_again(sandbox: Committed) -> None:
    sandbox.write("d/a", b"edited again\n")


def remove(sandbox: Committed) -> None:
    sandbox.unlink("d/a")


def replace_whole(sandbox: Committed) -> None:
    sandbox.write("new", b"replaced\n")
    sandbox.rename("new", "d/a")


def remove_directory(sandbox: Committed) -> None:
    sandbox.unlink("d/a")
    sandbox.unlink("d/b")
    sandbox.rmdir("d")


def commit(sandbox: Committed) -> None:
    sandbox.commit("d")
    assert sandbox.found() == [OTHER]


def discard(sandbox: Committed) -> None:
    sandbox.discard("d")
    assert sandbox.found() == [OTHER]


def host_edits(sandbox: Committed) -> None:
    (sandbox.host / "d").mkdir(exist_ok=True)
    (sandbox.host / "d/a").write_text("the host's\n")
    sandbox.host_changed()


def host_removes(sandbox: Committed) -> None:
    (sandbox.host / "d/a").unlink(missing_ok=True)
    sandbox.host_changed()


def host_removes_directory(sandbox: Committed) -> None:
    for name in ("a", "b"):
        (sandbox.host / "d" / name).unlink(missing_ok=True)
    (sandbox.host / "d").rmdir()
    sandbox.host_changed()


def make_directory(sandbox: Committed) -> None:
    sandbox.mkdir("d")
    edit_again(sandbox)


STORIES: dict[str, tuple[tuple[Act, ...], list[str]]] = {
    "edited, committed, edited": ((edit, commit, edit_again), ["modified d/a"]),
    "deleted, committed, made": ((remove, commit, edit_again), ["added d/a"]),
    "edited, discarded, edited": ((edit, discard, edit_again), ["modified d/a"]),
    "deleted, discarded, edited": ((remove, discard, edit), ["modified d/a"]),
    "edited, committed, deleted": ((edit, commit, remove), ["deleted d/a"]),
    "edited, committed, edited by the host, edited": (
        (edit, commit, host_edits, edit_again),
        ["modified d/a"],
    ),
    "edited, discarded, edited by the host, edited": (
        (edit, discard, host_edits, edit_again),
        ["modified d/a"],
    ),
    "edited, committed, edited by the host, replaced": (
        (edit, commit, host_edits, replace_whole),
        ["modified d/a"],
    ),
    "edited, committed, deleted by the host, made": (
        (edit, commit, host_removes, edit_again),
        ["added d/a"],
    ),
    "edited, discarded, deleted by the host, made": (
        (edit, discard, host_removes, edit_again),
        ["added d/a"],
    ),
    "deleted, discarded, deleted by the host, made": (
        (remove, discard, host_removes, edit_again),
        ["added d/a"],
    ),
    "deleted, committed, made by the host, edited": (
        (remove, commit, host_edits, edit_again),
        ["modified d/a"],
    ),
    "edited, committed, directory deleted by the host, made": (
        (edit, commit, host_removes_directory, make_directory),
        ["added d/", "added d/a"],
    ),
    "edited, discarded, directory deleted by the host, made": (
        (edit, discard, host_removes_directory, make_directory),
        ["added d/", "added d/a"],
    ),
    "directory deleted, committed, made by the host, edited": (
        (remove_directory, commit, host_edits, edit_again),
        ["modified d/a"],
    ),
    "directory deleted, discarded, deleted by the host, made": (
        (remove_directory, discard, host_removes_directory, make_directory),
        ["added d/", "added d/a"],
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_was_edited_away_is_no_conflict_later(make: Make, story: str) -> None:
    acts, found = STORIES[story]
    sandbox = make(TREE)
    sandbox.write("c", b"other\n")
    for act in acts:
        act(sandbox)
    assert sandbox.found() == [OTHER, *found]
    commit(sandbox)


TWICE: dict[str, tuple[Act, ...]] = {
    "edited, committed": (edit, commit),
    "edited, discarded": (edit, discard),
    "deleted, committed": (remove, commit),
    "deleted, discarded": (remove, discard),
    "directory deleted, discarded": (remove_directory, discard),
    "edited twice, committed twice": (edit, commit, edit_again, commit),
    "edited, committed, deleted, committed": (edit, commit, remove, commit),
    "edited, discarded, edited, committed": (edit, discard, edit_again, commit),
}


@pytest.mark.parametrize("story", TWICE)
def test_what_is_taken_back_is_no_conflict_and_can_be_committed(make: Make, story: str) -> None:
    sandbox = make(TREE)
    sandbox.write("c", b"other\n")
    for act in TWICE[story]:
        act(sandbox)
    for _ in range(sum(act in (commit, discard) for act in TWICE[story])):
        sandbox.undo()
        assert not [change for change in sandbox.found() if change.endswith("!")]
    sandbox.commit()
    assert sandbox.found() == []
