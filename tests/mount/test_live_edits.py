"""A review edits the upper of a mounted sandbox: programs go on, and see at once what was edited."""

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from sandboxfs.control.control_socket import control_address
from sandboxfs.control.upper_client import DaemonUpperClient, DirectUpperClient
from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.state.locations import Locations
from sandboxfs.upper.edits import (
    WHITEOUT,
    EditOutcome,
    FollowMove,
    Operation,
    Prune,
    Rehide,
    RemoveEntry,
    RestoreEntry,
    Unhide,
    UpperIdentity,
    Whiteout,
    refused,
)
from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver
from tests.support.mounted import PATIENCE, PROJECT, companion, eventually, run, says, tell
from tests.support.placed import kill_daemon
from tests.support.tree import HardLink, Tree

pytestmark = pytest.mark.any_user

DONE = EditOutcome(done=True)
TREE: Tree = {
    "file": "lower\n",
    "other": "other\n",
    "dir/one": "1",
    "dir/two": "2",
    "dir/sub/deep": "deep",
    "hard": "shared\n",
    "harder": HardLink("hard"),
}


class Review:
    """Settles a mounted sandbox for one record."""

    def __init__(self, sandbox: MountDriver) -> None:
        self.sandbox = sandbox
        self.locations = Locations.from_environment(os.environ | {"SANDBOXFS_STATE_DIR": str(sandbox.state)})
        self.kept = sandbox.home / "commits" / "1" / "upper"
        self.kept.mkdir(parents=True)
        self.editor = DaemonUpperClient(control_address(self.locations, "test"))

    def edit(self, *operations: Operation) -> list[EditOutcome]:
        return self.editor.edit(1, operations)

    def drop(self, path: str, keep: str = "") -> RemoveEntry:
        expect = UpperIdentity.of((self.sandbox.upper / path).lstat())
        return RemoveEntry(path.encode(), expect, (keep or path.replace("/", "-")).encode())

    def commit(self, path: str, keep: str = "") -> EditOutcome:
        """Replace the workspace's file by what the view has, then drop that, as a commit does."""
        drop = self.drop(path, keep)
        target = self.sandbox.lower / path
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(".staged")
        staged.write_bytes((self.sandbox.upper / path).read_bytes())
        staged.rename(target)
        self.sandbox.host_changed()
        return self.edit(drop)[0]

    def commit_changed(self, path: str, keep: str) -> bool:
        """Commit a file if the upper has it; whether it was."""
        return (self.sandbox.upper / path).exists() and self.commit(path, keep).done


@pytest.fixture
def review(mount: Mount) -> Review:
    return Review(mount(TREE))


def ls(review: Review, path: str = ".") -> list[str]:
    return run("ls", "-A", cwd=review.sandbox.root / path).split()


def cat(review: Review, path: str) -> str:
    return run("cat", path, cwd=review.sandbox.root)


def test_what_was_edited_shows_as_soon_as_it_is_answered(review: Review) -> None:
    view = review.sandbox.root
    (view / "file").write_text("upper\n")
    (view / "new").write_text("new\n")
    (view / "other").unlink()
    subprocess.run(["rm", "-r", view / "dir"], check=True)
    (view / "dir").mkdir()
    assert ls(review) == ["dir", "file", "hard", "harder", "new"]
    assert ls(review, "dir") == []
    assert not (view / "dir/one").exists()
    before = (view / "file").stat()
    operations = (
        review.drop("file"),
        review.drop("new"),
        RemoveEntry(b"other", WHITEOUT, b"x"),
        Prune(b"dir", b"dir"),
    )
    assert review.edit(*operations) == [DONE] * 4
    assert ls(review) == ["dir", "file", "hard", "harder", "other"]
    assert ls(review, "dir") == ["one", "sub", "two"]
    assert cat(review, "file") == "lower\n"
    assert cat(review, "other") == "other\n"
    assert cat(review, "dir/sub/deep") == "deep"
    assert (view / "dir/one").exists()
    after = (view / "file").stat()
    assert after.st_ino == before.st_ino
    assert after.st_size == 6
    back = (
        RestoreEntry(b"file", b"file"),
        RestoreEntry(b"new", b"new"),
        Whiteout(b"other"),
        RestoreEntry(b"dir", b"dir"),
    )
    assert review.edit(*back) == [DONE] * 4
    assert ls(review) == ["dir", "file", "hard", "harder", "new"]
    assert ls(review, "dir") == []
    assert cat(review, "file") == "upper\n"
    assert cat(review, "new") == "new\n"


# Appends numbered lines in bursts; between them it looks whether all are there until it is told to go on.
APPEND = """
import os, select, sys
fd = os.open("log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
number, written = os.fstat(fd).st_ino, b""

def look():
    assert os.pread(fd, len(written) + 100, 0) == written
    with open("log", "rb") as log:
        assert log.read() == written
    assert os.fstat(fd).st_ino == number == os.stat("log").st_ino
    assert os.fstat(fd).st_size == len(written)

while True:
    for _ in range(100):
        line = b"%d\\n" % written.count(b"\\n")
        assert os.write(fd, line) == len(line)
        written += line
        look()
    print("written", len(written), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        look()
    if not sys.stdin.readline().strip():
        break
look()
print("ended", len(written), flush=True)
"""
# Counts in memory that is mapped from a file, page by page, and compares it with what is read.
COUNT = """
import mmap, os, select, sys
fd = os.open("counters", os.O_RDWR | os.O_CREAT, 0o644)
size = 8 * mmap.PAGESIZE
os.ftruncate(fd, size)
memory = mmap.mmap(fd, size)
turn = 0
while True:
    for _ in range(5000):
        at = turn % 8 * mmap.PAGESIZE
        assert int.from_bytes(memory[at:at + 8], "little") == max(0, turn - 8), turn
        memory[at:at + 8] = turn.to_bytes(8, "little")
        turn += 1
    if turn // 5000 % 2:
        # Otherwise it stays in memory for now.
        memory.flush()
    print("written", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        assert os.pread(fd, size, 0) == memory[:]
    if not sys.stdin.readline().strip():
        break
print("ended", memory[:].hex(), flush=True)
"""
ROUNDS = 12


def commit_under_the_hands_of(program: "subprocess.Popen[str]", review: Review, name: str) -> str:
    """Commit a file again and again, while it is only looked at and while it is written; the last it says."""
    done = 0
    for turn in range(ROUNDS):
        assert says(program).startswith("written")
        # What was written through a memory map may only now reach the upper, and is a change then.
        for attempt in range(3):
            done += review.commit_changed(name, f"{turn}-{attempt}")
        tell(program, "go on")
        for attempt in range(3, 6):
            done += review.commit_changed(name, f"{turn}-{attempt}")
    says(program)
    tell(program, "")
    assert done >= ROUNDS // 3
    return says(program)


def test_a_program_that_appends_loses_nothing_and_sees_nothing_wrong_while_its_file_is_committed(
    review: Review,
) -> None:
    with companion(APPEND, cwd=review.sandbox.root) as program:
        last = commit_under_the_hands_of(program, review, "log")
    content = (review.sandbox.root / "log").read_bytes()
    assert last == f"ended {len(content)}"
    assert content == b"".join(b"%d\n" % number for number in range((ROUNDS + 1) * 100))


def test_a_program_appends_to_the_end_of_what_is_left_after_a_discard(review: Review) -> None:
    view = review.sandbox.root
    log = os.open(view / "file", os.O_RDWR | os.O_APPEND)
    try:
        os.write(log, b"upper\n" * 1000)
        assert review.edit(review.drop("file")) == [DONE]
        for number in range(3):
            os.write(log, b"%d\n" % number)
        assert cat(review, "file") == "lower\n0\n1\n2\n"
        os.write(log, b"3\n")
        assert cat(review, "file") == "lower\n0\n1\n2\n3\n"
        short = review.drop("file", "short")
        assert review.edit(short, RestoreEntry(b"file", b"file")) == [DONE, DONE]
        os.write(log, b"more\n")
        assert cat(review, "file") == "lower\n" + "upper\n" * 1000 + "more\n"
    finally:
        os.close(log)


def test_what_is_written_through_a_memory_map_is_not_lost_while_its_file_is_committed(
    review: Review,
) -> None:
    with companion(COUNT, cwd=review.sandbox.root) as program:
        last = commit_under_the_hands_of(program, review, "counters")
    assert last == "ended " + (review.sandbox.root / "counters").read_bytes().hex()


TELL_WHERE = """
import os, sys
for line in sys.stdin:
    print(os.getcwd(), *sorted(os.listdir(".")), flush=True)
"""


def test_a_program_keeps_its_current_directory(review: Review) -> None:
    view = review.sandbox.root
    (view / "made/inner").mkdir(parents=True)
    (view / "made/inner/new").write_text("new")
    number = (view / "made/inner").stat().st_ino
    with companion(TELL_WHERE, cwd=view / "made/inner") as program:
        tell(program, "")
        assert says(program) == f"{view}/made/inner new"
        assert review.edit(Unhide(b"made"), Unhide(b"made/inner"))[1].done
        assert review.commit("made/inner/new").done
        assert review.edit(Prune(b"made/inner", b"1"), Prune(b"made", b"2")) == [DONE, DONE]
        tell(program, "")
        assert says(program) == f"{view}/made/inner new"
        assert (view / "made/inner").stat().st_ino == number
        (review.sandbox.lower / "made/inner/host").write_text("host")
        review.sandbox.host_changed()

        def shows_what_the_host_made() -> bool:
            tell(program, "")
            return says(program) == f"{view}/made/inner host new"

        eventually(shows_what_the_host_made, "what the host made")
    assert not (review.sandbox.upper / "made").exists()


def test_a_moved_directory_goes_on_when_the_workspace_moved_it_too(review: Review) -> None:
    view, lower = review.sandbox.root, review.sandbox.lower
    (view / "dir").rename(view / "moved")
    number = (view / "moved/sub/deep").stat().st_ino
    with companion(TELL_WHERE, cwd=view / "moved/sub") as program, open(view / "moved/sub/deep") as deep:
        (lower / "dir").rename(lower / "moved")
        review.sandbox.host_changed()
        assert review.edit(FollowMove(b"dir", b"moved")) == [DONE]
        tell(program, "")
        assert says(program) == f"{view}/moved/sub deep"
        assert deep.read() == "deep"
    assert (view / "moved/sub/deep").stat().st_ino == number
    assert ls(review, "moved") == ["one", "sub", "two"]
    assert not (view / "dir").exists()


def test_hard_links_are_one_file_before_and_after(review: Review) -> None:
    view = review.sandbox.root
    (view / "hard").write_text("upper\n")
    number = (view / "harder").stat().st_ino
    assert review.edit(review.drop("hard")) == [DONE]
    assert cat(review, "hard") == cat(review, "harder") == "shared\n"
    assert {(view / name).stat().st_ino for name in ("hard", "harder")} == {number}
    (view / "harder").write_text("again\n")
    assert cat(review, "hard") == "again\n"


def test_a_file_that_was_discarded_stays_with_the_program_that_has_it_open(review: Review) -> None:
    view = review.sandbox.root
    with open(view / "new", "w+") as file:
        file.write("new")
        file.flush()
        assert review.edit(review.drop("new")) == [DONE]
        assert "new" not in ls(review)
        file.write(" and more")
        file.flush()
        assert os.fstat(file.fileno()).st_nlink == 0
        assert review.edit(RestoreEntry(b"new", b"new")) == [DONE]
        assert cat(review, "new") == "new and more"


def test_a_file_that_becomes_part_of_the_workspace_is_decided_about_again(review: Review) -> None:
    view = review.sandbox.root
    (view / "repository/.git").mkdir(parents=True)
    with open(view / "repository/.git/config", "w") as config:
        config.write("[core]\n")
        config.flush()
        operations = Unhide(b"repository"), Unhide(b"repository/.git")
        (review.sandbox.lower / "repository/.git").mkdir(parents=True)
        review.sandbox.host_changed()
        assert [outcome.done for outcome in review.edit(*operations)] == [True, True]
        assert review.commit("repository/.git/config").done
        with pytest.raises(OSError):
            (view / "repository/.git/config").write_text("hooksPath")
        with pytest.raises(OSError):
            os.write(config.fileno(), b"hooksPath")
    assert cat(review, "repository/.git/config") == "[core]\n"


def test_many_operations_take_many_requests(review: Review) -> None:
    view = review.sandbox.root
    names = [f"file-{'x' * 200}-{number}" for number in range(500)]
    for name in names:
        (view / name).write_text(name)
    assert len(ls(review)) == 505
    drops = [review.drop(name, str(number)) for number, name in enumerate(names)]
    assert review.edit(*drops) == [DONE] * 500
    assert len(ls(review)) == 5
    assert review.edit(*drops) == [DONE] * 500


def test_an_outcome_with_very_many_names_is_kept_in_the_record(review: Review) -> None:
    view, lower = review.sandbox.root, review.sandbox.lower
    (lower / "large").mkdir()
    for number in range(3000):
        (lower / "large" / f"{number}-{'x' * 200}").touch()
    review.sandbox.host_changed()
    subprocess.run(["rm", "-r", view / "large"], check=True)
    (view / "large").mkdir()
    (outcome,) = review.edit(Unhide(b"large"))
    assert outcome.opened is not None
    assert outcome.opened.opaque
    assert outcome.opened.whiteouts is None
    assert len(list((review.sandbox.upper / "large").iterdir())) == 3000
    assert review.edit(Rehide(b"large", opaque=True, redirect=None, whiteouts=None)) == [DONE]
    assert list((review.sandbox.upper / "large").iterdir()) == []
    assert ls(review, "large") == []


INSIDE = """
import sys
from pathlib import Path
from sandboxfs.control.control_socket import control_address
from sandboxfs.control.upper_client import DaemonUpperClient
from sandboxfs.errors import UsageError
from sandboxfs.upper.edits import WHITEOUT, RemoveEntry
from sandboxfs.state.locations import Locations
address = control_address(Locations.from_environment(), "test")
try:
    DaemonUpperClient(address).edit(1, [RemoveEntry(b"file", WHITEOUT, b"1")])
except UsageError as error:
    print(error.message)
"""


def test_a_program_inside_the_view_cannot_edit_the_upper(review: Review) -> None:
    (review.sandbox.root / "file").unlink()
    environment = {"SANDBOXFS_STATE_DIR": str(review.sandbox.state), "PYTHONPATH": str(PROJECT)}
    said = run(sys.executable, "-c", INSIDE, cwd=review.sandbox.root, env=environment)
    assert "not for processes inside the view" in said
    assert not (review.sandbox.root / "file").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"operations": [{"op": "open", "path": "dir"}]}, "needs 'record'"),
        ({"record": -1, "operations": [{"op": "open", "path": "dir"}]}, "needs 'record'"),
        ({"record": 9, "operations": [{"op": "open", "path": "dir"}]}, "no record 9"),
        ({"record": 1}, "needs 'operations'"),
        ({"record": 1, "operations": [{"op": "open"}]}, r"operations\[0\].path: expected str, found nothing"),
        (
            {"record": 1, "operations": [{"op": "explode", "path": "dir"}]},
            r"operations\[0\].op: expected 'drop' or .*, found 'explode'",
        ),
        ({"record": 1, "operations": [{"op": "open", "path": "../dir"}]}, "not a path inside the view"),
        ({"record": 1, "operations": [{"op": "prune", "path": "dir", "keep": "../x"}]}, "not a name"),
    ],
)
def test_what_makes_no_sense_is_refused(review: Review, args: dict[str, object], message: str) -> None:
    from sandboxfs.control.control_socket import ask

    with pytest.raises(UsageError, match=message):
        ask(control_address(review.locations, "test"), "settle", args)


def test_a_daemon_that_dies_in_the_middle_is_lost_and_the_rest_is_done_without_it(review: Review) -> None:
    sandbox = review.sandbox
    for number in range(40):
        (sandbox.root / f"new-{number}").write_text("new")
    drops = [review.drop(f"new-{number}") for number in range(40)]
    assert review.edit(*drops[:10]) == [DONE] * 10
    os.kill(sandbox.pid, signal.SIGSTOP)
    lost: list[DaemonLost] = []

    def ask() -> None:
        try:
            review.edit(*drops)
        except DaemonLost as error:
            lost.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    kill_daemon(sandbox)
    asking.join(PATIENCE)
    assert lost
    sandbox.abandon()
    direct = DirectUpperClient(review.locations.sandbox("test"), sandbox.lower)
    assert direct.edit(1, drops) == [DONE] * 40
    sandbox.start()
    assert ls(review) == ["dir", "file", "hard", "harder", "other"]


def test_what_a_program_changes_meanwhile_is_refused_and_stays(review: Review) -> None:
    view = review.sandbox.root
    (view / "file").write_text("upper\n")
    drop = review.drop("file")
    (view / "file").chmod(0o600)
    assert review.edit(drop, RemoveEntry(b"dir/one", WHITEOUT, b"x")) == [refused("changed"), DONE]
    assert cat(review, "file") == "upper\n"
    assert stat.S_IMODE((view / "file").stat().st_mode) == 0o600


def test_a_direct_editor_wants_the_record_too(review: Review) -> None:
    review.sandbox.stop()
    editor = DirectUpperClient(review.locations.sandbox("test"), review.sandbox.lower)
    with pytest.raises(UsageError, match="no record 9"):
        editor.edit(9, [Unhide(b"dir")])


def test_the_times_of_directories_stay(review: Review) -> None:
    view = review.sandbox.root
    (view / "dir/one").write_text("upper")
    (view / "dir/two").unlink()
    before = (view / "dir").stat().st_mtime_ns
    assert review.edit(review.drop("dir/one"), RemoveEntry(b"dir/two", WHITEOUT, b"x")) == [DONE, DONE]
    assert (view / "dir").stat().st_mtime_ns == before
