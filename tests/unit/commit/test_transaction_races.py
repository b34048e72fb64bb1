"""Somebody changes the workspace between planning and applying: a conflict, and nothing is touched."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.hostfs.identity import ConcurrentChange
from tests.support.committed import Committed, nothing
from tests.support.edited import ordinary_user
from tests.support.tree import File, State, Tree, assert_same_tree, capture

WORKSPACE: Tree = {
    "file": "old\n",
    "gone": "gone\n",
    "dir/inner": "inner\n",
    "dead/a": "a\n",
    "dead/b/c": "c\n",
    "move/d": "d\n",
    "exec": "x\n",
}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Committed]:
    """A sandbox in which all of it was changed, beside a directory that nobody may touch."""
    umask = os.umask(0)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "inner").write_text("outside\n")
    made = Committed(tmp_path, WORKSPACE)
    made.write("file", b"new\n")
    made.unlink("gone")
    made.write("dir/inner", b"changed\n")
    made.write("dir/fresh", b"fresh\n")
    for path in ("dead/a", "dead/b/c"):
        made.unlink(path)
    for path in ("dead/b", "dead"):
        made.rmdir(path)
    made.rename("move", "moved")
    made.chmod("exec", 0o755)
    made.mkdir("tree")
    made.write("tree/leaf", b"leaf\n")
    yield made
    made.abandon()
    os.umask(umask)


def replaced_by_link(host: Path) -> None:
    (host / "file").unlink()
    (host / "file").symlink_to("../outside/inner")


def replaced_by_directory(host: Path) -> None:
    (host / "file").unlink()
    (host / "file").mkdir()


def directory_replaced_by_link(host: Path) -> None:
    shutil.rmtree(host / "dir")
    (host / "dir").symlink_to("../outside")


def edited_quietly(host: Path) -> None:
    before = (host / "file").stat()
    (host / "file").write_text("OLD\n")
    os.utime(host / "file", ns=(before.st_atime_ns, before.st_mtime_ns))


RACES: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "edits a file": (lambda host: (host / "file").write_text("edited\n"), b"file"),
    "edits a file and puts its times back": (edited_quietly, b"file"),
    "deletes a file": (lambda host: (host / "file").unlink(), b"file"),
    "replaces a file by a link": (replaced_by_link, b"file"),
    "replaces a file by a directory": (replaced_by_directory, b"file"),
    "edits what is to be deleted": (lambda host: (host / "gone").write_text("edited\n"), b"gone"),
    "makes a file where one is to be": (lambda host: (host / "dir/fresh").write_text("mine\n"), b"dir/fresh"),
    "makes a directory where a tree is to be": (lambda host: (host / "tree").mkdir(), b"tree"),
    "makes a file in what is to be deleted": (
        lambda host: (host / "dead/b/new").write_text("precious\n"),
        b"dead/b/new",
    ),
    "edits a file in what is to be deleted": (
        lambda host: (host / "dead/a").write_text("precious\n"),
        b"dead/a",
    ),
    "replaces a directory by a link to elsewhere": (directory_replaced_by_link, b"dir"),
    "deletes a directory that is to be moved": (lambda host: shutil.rmtree(host / "move"), b"move"),
    "makes a directory where one is to be moved": (lambda host: (host / "moved").mkdir(), b"moved"),
    "changes the mode of a file": (lambda host: (host / "exec").chmod(0o600), b"exec"),
}


@pytest.mark.parametrize("when", ["meanwhile", "between"])
@pytest.mark.parametrize("race", RACES)
def test_when_the_host(sandbox: Committed, race: str, when: str) -> None:
    """... does this after planning, or after staging, it is a surprise and all is as the host left it."""
    happens, where = RACES[race]
    seen: dict[bytes, State] = {}

    def act() -> None:
        happens(sandbox.host)
        seen.update(capture(sandbox.host))

    acts = {"meanwhile": nothing, "between": nothing} | {when: act}
    with pytest.raises(ConcurrentChange) as caught:
        sandbox.commit(meanwhile=acts["meanwhile"], between=acts["between"])
    assert caught.value.path.startswith(where)
    sandbox.host_changed()
    found = capture(sandbox.host)
    assert not [path for path in found if b".sandboxfs-" in path and path not in seen]
    wanted = {path: state for path, state in seen.items() if b".sandboxfs-" not in path}
    # Times of directories are put back, also to what they were before the host did something in them.
    assert_same_tree(found, wanted, ignoring=frozenset({"ctime_ns", "mtime_ns", "nlink"}))
    assert os.listdir(sandbox.host.parent / "outside") == ["inner"]
    assert (sandbox.host.parent / "outside" / "inner").read_text() == "outside\n"
    assert sandbox.recover() is None


def test_what_was_staged_in_a_directory_that_the_host_moves_away_is_named(sandbox: Committed) -> None:
    def act() -> None:
        (sandbox.host / "dir").rename(sandbox.host / "elsewhere")
        (sandbox.host / "dir").mkdir()
        (sandbox.host / "dir" / "inner").write_text("another\n")

    with pytest.raises(ConcurrentChange) as caught:
        sandbox.commit(between=act)
    left = [name for name in os.listdir(sandbox.host / "elsewhere") if name.startswith(".sandboxfs")]
    assert len(left) == len(caught.value.__notes__) == 2
    assert all(any(name in note for note in caught.value.__notes__) for name in left)
    assert (sandbox.host / "dir/inner").read_text() == "another\n"
    assert (sandbox.host / "elsewhere/inner").read_text() == "inner\n"
    assert (sandbox.host / "file").read_text() == "old\n"


def test_what_the_host_changes_elsewhere_is_no_surprise(sandbox: Committed) -> None:
    def act() -> None:
        (sandbox.host / "other").write_text("other\n")
        (sandbox.host / "move/d").write_text("edited\n")

    sandbox.commit(meanwhile=act)
    assert (sandbox.host / "other").read_text() == "other\n"
    assert (sandbox.host / "moved/d").read_text() == "edited\n"


def test_what_a_program_still_changes_is_not_committed(sandbox: Committed) -> None:
    def act() -> None:
        (sandbox.upper / "file").write_text("newer\n")

    with pytest.raises(ConcurrentChange, match="still changing"):
        sandbox.commit(meanwhile=act)
    assert (sandbox.host / "file").read_text() == "old\n"


def test_what_a_program_changes_while_it_is_committed_stays_and_starts_from_there(
    sandbox: Committed,
) -> None:
    def act() -> None:
        (sandbox.upper / "file").write_text("newer\n")

    result = sandbox.commit(between=act)
    assert result.stayed == (b"file",)
    assert (sandbox.host / "file").read_text() == "new\n"
    assert sandbox.read("file") == b"newer\n"
    assert sandbox.found() == ["modified file"]


# Taking back


def test_what_changed_since_is_left_alone_and_the_rest_taken_back(sandbox: Committed) -> None:
    sandbox.commit()
    (sandbox.host / "file").write_text("edited\n")
    (sandbox.host / "gone").write_text("made again\n")
    sandbox.host_changed()
    plan = sandbox.undo()
    assert dict(plan.left) == {
        b"file": "changed in the workspace since",
        b"gone": "made in the workspace since",
    }
    assert (sandbox.host / "file").read_text() == "edited\n"
    assert (sandbox.host / "dir/inner").read_text() == "inner\n"
    assert (sandbox.host / "dead/b/c").read_text() == "c\n"
    assert sandbox.read("dir/inner") == b"changed\n"
    # When it is as it was committed, it can be taken back, too.
    (sandbox.host / "file").write_text("new\n")
    (sandbox.host / "gone").unlink()
    sandbox.host_changed()
    assert not sandbox.undo().left
    assert (sandbox.host / "file").read_text() == "old\n"
    assert (sandbox.host / "gone").read_text() == "gone\n"


def test_what_the_sandbox_changed_again_is_left_alone(sandbox: Committed) -> None:
    sandbox.commit()
    sandbox.write("file", b"newer\n")
    plan = sandbox.undo()
    assert dict(plan.left) == {b"file": "changed in the sandbox since"}
    assert (sandbox.host / "file").read_text() == "new\n"
    assert sandbox.read("file") == b"newer\n"
    assert "modified file" in sandbox.found()
    assert (sandbox.host / "gone").read_text() == "gone\n"


def test_touching_a_committed_file_is_no_change(sandbox: Committed) -> None:
    sandbox.commit()
    os.utime(sandbox.host / "file")
    (sandbox.host / "tree/leaf").write_text("leaf\n")
    sandbox.host_changed()
    assert not sandbox.undo().left
    assert (sandbox.host / "file").read_text() == "old\n"
    assert not (sandbox.host / "tree").exists()


# As an ordinary user


def test_directories_that_keep_their_owner_out_are_no_obstacle(tmp_path: Path) -> None:
    with ordinary_user(tmp_path) as place:
        umask = os.umask(0)
        sandbox = Committed(
            place / "s", {"locked/in": "old", "locked/deep/leaf": "l", "secret": File("s", 0o200)}
        )
        try:
            sandbox.write("locked/in", b"new")
            sandbox.create("locked/deep/more", b"more", 0o000)
            sandbox.mkdir("tree", 0o755)
            sandbox.create("tree/x", b"x", 0o400)
            sandbox.chmod("tree", 0o500)
            sandbox.chmod("locked/deep", 0o000)
            sandbox.chmod("locked", 0o555)
            view = capture(sandbox.host)
            sandbox.commit()
            assert stat.S_IMODE((sandbox.host / "locked").stat().st_mode) == 0o555
            assert (sandbox.host / "locked/in").read_text() == "new"
            assert stat.S_IMODE((sandbox.host / "locked/deep").stat().st_mode) == 0
            assert (sandbox.host / "tree/x").read_text() == "x"
            assert sandbox.found() == []
            assert not sandbox.undo().left
            assert_same_tree(capture(sandbox.host), view, ignoring=frozenset({"ctime_ns"}))
        finally:
            sandbox.abandon()
            os.umask(umask)
            for path in ("s/workspace/locked", "s/workspace/locked/deep", "s/state/upper/locked"):
                with_mode = place / path
                if with_mode.exists():
                    with_mode.chmod(0o700)
            shutil.rmtree(place / "s", ignore_errors=True)
