"""What was interrupted is brought to its end before the record that leads there goes."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from sandboxfs.commit.records import UNDO, Records
from sandboxfs.hostfs.directory import HostDir
from tests.support.faults import Before, Killed, counted
from tests.support.reviewed import States, Stored, host_states
from tests.support.tree import Tree

TREE: Tree = {"a": "1\n", "b": "2\n", "d/c": "3\n", "gone": "4\n"}
# More calls than a commit of these changes makes.
FOREVER = 500
DIED = 99

Make = Callable[[], Stored]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a sandbox with changes, called `app`, that is not mounted."""
    made: list[Stored] = []

    def sandbox() -> Stored:
        one = Stored(tmp_path / str(len(made)), TREE)
        made.append(one)
        one.write("a", b"changed\n")
        one.write("d/c", b"changed\n")
        one.write("new", b"new\n")
        one.unlink("gone")
        one.stop()
        return one

    yield sandbox
    for one in made:
        one.host_changed()
        one.abandon()


def is_whole(sandbox: Stored, before: States) -> bool:
    """Whether the workspace is as it was, or as it was to be."""
    after = host_states(sandbox.host)
    files = {path: state.content for path, state in after.items()}
    committed = {b"a": b"changed\n", b"b": b"2\n", b"d": b"", b"d/c": b"changed\n", b"new": b"new\n"}
    return after == before or files == committed


def die(before: Before, *words: str) -> bool:
    """Have a process die, with its locks, when *before* says so; whether it did."""
    child = os.fork()
    if not child:
        status = 1
        try:
            with counted(before):
                status = main([*words, "-s", "app", "--yes"])
        except Killed:
            status = DIED
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, DIED)
    return status == DIED


def kill(number: int, *words: str) -> bool:
    """Have a process die before its *number*-th change of the host; whether it did."""

    def before(count: int) -> None:
        if count >= number:
            raise Killed

    return die(before, *words)


@pytest.mark.parametrize("verb", [["rm", "--force", "app"], ["gc", "-s", "app"]], ids=["rm", "gc"])
def test_a_workspace_is_never_left_in_the_middle_of_a_commit(make: Make, verb: list[str]) -> None:
    torn = 0
    for number in range(0, FOREVER, 5):
        sandbox = make()
        before = host_states(sandbox.host)
        was_killed = kill(number, "commit")
        torn += not is_whole(sandbox, before)
        assert main(verb) == 0
        assert is_whole(sandbox, before), number
        if verb[0] == "gc":
            assert main(["rm", "--force", "app"]) == 0
        assert not sandbox.store.exists("app")
        if not was_killed:
            break
    assert torn > 1


def killed_in_the_middle(make: Make) -> Stored:
    """A sandbox whose commit was killed when the first names had been exchanged."""
    sandbox = make()

    def before(count: int) -> None:
        if (sandbox.host / "a").read_text() == "changed\n":
            raise Killed

    assert die(before, "commit")
    return sandbox


def test_rm_says_what_it_brought_to_its_end(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    killed_in_the_middle(make)
    capsys.readouterr()
    assert main(["rm", "app"]) == 2
    assert "commit 1 had been interrupted, and was taken back" in capsys.readouterr().err
    assert main(["rm", "--force", "app"]) == 0


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_rm_refuses_where_that_fails(
    make: Make, force: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = killed_in_the_middle(make)
    journal = sandbox.places.commits / "1" / "journal"
    text = journal.read_text()
    journal.write_text('{"staged": {"steps": "nonsense"}}\n')
    assert main(["rm", *force, "app"]) == 2
    told = capsys.readouterr().err
    assert "commit 1 of sandbox 'app' was interrupted and cannot be brought to its end" in told
    assert str(sandbox.places.home) in told
    assert journal.exists()
    journal.write_text(text)
    assert main(["rm", "--force", "app"]) == 0


def test_rm_by_force_refuses_where_the_workspace_is_not_known(make: Make) -> None:
    sandbox = killed_in_the_middle(make)
    record = sandbox.places.record.read_text()
    sandbox.places.record.write_text("format = 99\n")
    assert main(["rm", "--force", "app"]) == 2
    sandbox.places.record.write_text(record)
    assert main(["rm", "--force", "app"]) == 0


def test_a_sandbox_whose_workspace_is_gone_is_removed_by_force(make: Make) -> None:
    sandbox = killed_in_the_middle(make)
    shutil.rmtree(sandbox.host)
    assert main(["rm", "app"]) == 2
    assert main(["rm", "--force", "app"]) == 0
    sandbox.host.mkdir()


def test_gc_keeps_what_an_interrupted_undo_takes_back(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """The changes that come back to the sandbox are in the record of the commit."""
    for number in range(0, FOREVER, 5):
        sandbox = make()
        assert main(["commit", "-s", "app", "--yes"]) == 0
        was_killed = kill(number, "undo")
        with HostDir.at(sandbox.places.home) as home:
            record = Records(home).unfinished()
        if record is not None:
            record.close()
            assert record.about.kind == UNDO
            away = sandbox.host.rename(sandbox.host.with_name("away"))
            assert main(["gc", "-s", "app", "--older-than", "0s"]) == 0
            assert "cannot be brought to its end" in capsys.readouterr().err
            away.rename(sandbox.host)
            assert (sandbox.places.commits / "1").exists()
            assert main(["gc", "-s", "app", "--older-than", "24h"]) == 0
            assert sandbox.found() != [] or (sandbox.host / "new").exists()
        assert main(["rm", "--force", "app"]) == 0
        if not was_killed:
            break


def test_ignored_files_that_a_commit_left_do_not_keep_a_sandbox(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = Stored(tmp_path, {".gitignore": "*.log\n", ".git/HEAD": "ref\n"})
    sandbox.create("new.log")
    sandbox.create("new")
    assert main(["rm", "app"]) == 2
    assert "sandbox 'app' holds 1 change to" in capsys.readouterr().err
    sandbox.unlink("new")
    sandbox.write(".git/HEAD", b"other\n")
    assert main(["rm", "app"]) == 2
    sandbox.write(".git/HEAD", b"ref\n")
    assert main(["rm", "app"]) == 0
    sandbox.abandon()
