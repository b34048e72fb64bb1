"""Whatever changed places, the patch says it in a way that every tool can carry out."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.review.scan import survey
from sandboxfs.review.summary import shown_changes
from tests.support.reviewed import Reviewed, apply_patch, as_git_sees, host_states, view_states
from tests.support.syscalls import RENAME_EXCHANGE
from tests.support.tree import Symlink, Tree
from tests.unit.conftest import Review

LINES = "".join(f"line {number}\n" for number in range(20))
TREE: Tree = {
    "a/x": LINES,
    "a/y/z": "z of a\n" + LINES,
    "a/link": Symlink("x"),
    "b/x": "x of b\n",
    "b/only": "only in b\n",
    "f": "file\n",
    "g": "other file\n",
}


def swap(sandbox: Reviewed) -> None:
    sandbox.rename("a", "b", RENAME_EXCHANGE)


def move(sandbox: Reviewed) -> None:
    sandbox.rename("a", "c")
    sandbox.write("c/x", LINES.replace("line 7\n", "seven\n").encode())


def move_and_make_again(sandbox: Reviewed) -> None:
    sandbox.rename("a", "c")
    sandbox.mkdir("a")
    sandbox.create("a/x", b"new x\n")


def move_over_deleted(sandbox: Reviewed) -> None:
    sandbox.remove_tree("b")
    sandbox.rename("a", "b")


def chain(sandbox: Reviewed) -> None:
    sandbox.rename("b", "c")
    sandbox.rename("a", "b")
    sandbox.unlink("b/x")


def take_apart(sandbox: Reviewed) -> None:
    sandbox.rename("a/y", "y")
    sandbox.rename("a/x", "x")
    sandbox.unlink("a/link")
    sandbox.rmdir("a")


def touch_and_move(sandbox: Reviewed) -> None:
    sandbox.utime("a/x", 1, 1)
    sandbox.rename("a", "c")


def move_files(sandbox: Reviewed) -> None:
    sandbox.rename("f", "h")
    sandbox.chmod("h", 0o755)
    sandbox.rename("g", "f")


CASES: list[Callable[[Reviewed], None]] = [
    swap,
    move,
    move_and_make_again,
    move_over_deleted,
    chain,
    take_apart,
    touch_and_move,
    move_files,
]
TOOLS = [("git", "apply", "-"), ("patch", "-p1", "-s")]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: str(tool[0]))
@pytest.mark.parametrize("renames", [True, False], ids=["renames", "no renames"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_changed_places_is_carried_by_the_patch(
    review: Review,
    tmp_path: Path,
    case: Callable[[Reviewed], None],
    renames: bool,
    tool: tuple[str, ...],
) -> None:
    sandbox = review(TREE)
    case(sandbox)
    copy = shutil.copytree(sandbox.host, tmp_path / "copy", symlinks=True)
    apply_patch(sandbox.patch(renames=renames, binary=False), copy, tool)
    assert as_git_sees(host_states(copy)) == as_git_sees(view_states(sandbox))


def test_a_moved_directory_is_told_as_the_renames_of_its_files(review: Review) -> None:
    sandbox = review({"a/x": "1\n", "a/y": "2\n"})
    sandbox.rename("a", "b")
    text = sandbox.patch()
    assert text.count(b"similarity index 100%\n") == 2
    assert b"rename from a/x\nrename to b/x\n" in text
    assert b"@@" not in text


def test_a_file_that_changed_in_a_moved_directory_is_renamed_with_its_changes(review: Review) -> None:
    sandbox = review({"a/x": LINES})
    sandbox.rename("a", "b")
    sandbox.write("b/x", LINES.replace("line 7\n", "seven\n").encode())
    text = sandbox.patch()
    assert b"rename from a/x\nrename to b/x\n" in text
    assert b"-line 7\n+seven\n" in text


def test_without_renames_nothing_is_called_renamed(review: Review) -> None:
    sandbox = review({"a/x": "1\n", "f": "2\n"})
    sandbox.rename("a", "b")
    sandbox.rename("f", "g")
    text = sandbox.patch(renames=False)
    assert b"rename" not in text
    assert text.count(b"deleted file mode") == text.count(b"new file mode") == 2


def test_file_that_became_a_directory_is_a_deleted_file_where_no_change_is_a_rename(review: Review) -> None:
    sandbox = review({"f": "file\n"})
    sandbox.unlink("f")
    sandbox.mkdir("f")
    with sandbox.layers() as layers:
        found = survey(layers, renames=False)
        shown = shown_changes(found, found.findings, renames=False)
        told = {(change.kind.value, change.is_dir) for change in shown}
        assert ("deleted", False) in told
        assert ("deleted", True) not in told
