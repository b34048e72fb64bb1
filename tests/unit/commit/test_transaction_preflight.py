"""What if the record has no room for what a commit or an undo replaces?

The state lies on a small filesystem of memory, which only root can mount, the workspace elsewhere: what is
replaced must be copied. It is refused before anything changes, or taken back: nothing is lost, and nobody is
stuck.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxfs.commit import exchange, transaction
from sandboxfs.commit.exchange import Completion
from sandboxfs.commit.finish import steps_of
from sandboxfs.errors import SandboxError, UsageError
from sandboxfs.hostfs import copy, syscalls
from sandboxfs.hostfs.identity import ConcurrentChange
from sandboxfs.hostfs.tree import carry
from tests.support.committed import Committed
from tests.support.faults import Killed, killed_before
from tests.support.placed import small_filesystem
from tests.support.tree import Tree, assert_same_tree, capture

SIZE = 7 << 18
# One of these fits beside what the baseline keeps, two do not.
LARGE = b"\0" + b"large" * 150_000
SPARE = 1 << 17
OWN = frozenset({"ctime_ns"})

WORKSPACE: Tree = {"kept": "kept\n", "gone": LARGE, "replaced": LARGE, "dir/a": "a\n", "small": "small\n"}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Committed]:
    """A sandbox with little room."""
    with small_filesystem(tmp_path / "state", str(SIZE)):
        made = Committed(tmp_path, WORKSPACE)
        try:
            yield made
        finally:
            made.abandon()


@pytest.fixture
def changed(sandbox: Committed) -> Committed:
    sandbox.unlink("gone")
    sandbox.write("small", b"changed\n")
    sandbox.unlink("replaced")
    sandbox.write("replaced", b"short\n")
    sandbox.unlink("dir/a")
    sandbox.rmdir("dir")
    return sandbox


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else fills the disk after it was looked at."""
    monkeypatch.setattr(transaction, "check_room", lambda ground, steps, record: None)


def grow(sandbox: Committed) -> None:
    options = ["-o", f"remount,size={16 * SIZE}"]
    subprocess.run(["mount", *options, os.fspath(sandbox.home)], check=True, timeout=30)


def fill(sandbox: Committed) -> Path:
    """Leave hardly any space."""
    filler = sandbox.home / "filler"
    disk = os.statvfs(sandbox.home)
    filler.write_bytes(b"f" * (disk.f_bavail * disk.f_frsize - SPARE))
    return filler


def test_a_commit_is_refused_before_anything_changes(changed: Committed) -> None:
    before, found = capture(changed.host), changed.found()
    why = r"no room at '.*/state/commits' for what the commit replaces: .*missing"
    with pytest.raises(UsageError, match=why):
        changed.commit()
    assert_same_tree(capture(changed.host), before)
    assert changed.found() == found
    assert changed.recover() is None
    assert os.listdir(changed.commits) == []
    # What has room can be committed, and everything when there is more.
    changed.commit("small")
    assert (changed.host / "small").read_bytes() == b"changed\n"
    grow(changed)
    changed.commit()
    assert changed.found() == []
    changed.undo()
    assert (changed.host / "gone").read_bytes() == LARGE


def test_files_that_take_no_inodes_are_not_waited_for(changed: Committed) -> None:
    options = ["-o", "remount,nr_inodes=30"]
    grow(changed)
    subprocess.run(["mount", *options, os.fspath(changed.home)], check=True, timeout=30)
    while os.statvfs(changed.home).f_favail > 7:
        (changed.home / f"filler{os.statvfs(changed.home).f_favail}").touch()
    before = capture(changed.host)
    with pytest.raises(SandboxError, match="inodes needed"):
        changed.commit()
    assert_same_tree(capture(changed.host), before)


def test_holes_need_no_room(sandbox: Committed) -> None:
    with (sandbox.host / "hollow").open("wb") as file:
        file.truncate(1 << 30)
    sandbox.host_changed()
    sandbox.unlink("hollow")
    sandbox.commit()
    assert not (sandbox.host / "hollow").exists()


def test_a_commit_that_finds_no_room_is_taken_back(changed: Committed, unchecked: None) -> None:
    before, found = capture(changed.host), changed.found()
    with pytest.raises(OSError, match="No space left"):
        changed.commit()
    assert_same_tree(capture(changed.host), before, ignoring=OWN)
    assert changed.found() == found
    assert os.listdir(changed.commits) == []
    grow(changed)
    changed.commit()
    assert changed.found() == []


def test_an_undo_is_refused_or_taken_back(sandbox: Committed, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.write("new", b"new" * 120_000)
    sandbox.write("small", b"changed\n")
    sandbox.commit()
    before = capture(sandbox.host)
    filler = fill(sandbox)
    with pytest.raises(UsageError, match="for what the undo replaces"):
        sandbox.undo()
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "check_room", lambda ground, steps, record: None)
        with pytest.raises(OSError, match="No space left"):
            sandbox.undo()
    assert_same_tree(capture(sandbox.host), before, ignoring=OWN)
    assert sandbox.recover() is None
    filler.unlink()
    assert not sandbox.undo().left
    assert (sandbox.host / "small").read_text() == "small\n"
    assert sandbox.found() == ["added new", "modified small"]


def interrupt(sandbox: Committed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a commit killed when everything is exchanged and nothing is kept yet."""

    def killed(self: Completion) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Completion, "run", killed)
        with suppress(Killed):
            sandbox.commit()


def test_what_was_interrupted_is_taken_back(
    changed: Committed, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, found = capture(changed.host), changed.found()
    interrupt(changed, monkeypatch)
    assert not (changed.host / "gone").exists()
    recovered = changed.recover()
    assert recovered is not None
    assert not recovered.finished
    assert_same_tree(capture(changed.host), before, ignoring=OWN)
    assert changed.found() == found
    assert changed.recover() is None


def test_what_cannot_go_back_either_stays_in_the_workspace(
    changed: Committed, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(changed, monkeypatch)
    (changed.host / "replaced").write_bytes(b"edited on the host\n")
    fill(changed)
    recovered = changed.recover()
    assert recovered is not None
    assert not recovered.finished
    assert (changed.host / "replaced").read_bytes() == b"edited on the host\n"
    assert (changed.host / "gone").read_bytes() == LARGE
    (kept,) = recovered.kept
    assert (changed.host / os.fsdecode(kept.path)).read_bytes() == LARGE
    assert changed.recover() is None


def test_what_still_changes_while_it_is_kept_is_a_conflict(
    changed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(*_: object) -> bool:
        raise copy.ChangedWhileCopied

    grow(changed)
    before = capture(changed.host)
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "brought", changing)
        with pytest.raises(ConcurrentChange):
            changed.commit()
    assert_same_tree(capture(changed.host), before, ignoring=OWN)
    changed.commit()


def test_killed_anywhere_on_the_way_back(changed: Committed, unchecked: None) -> None:
    before, found = capture(changed.host), changed.found()
    for number in range(10_000):
        with (
            pytest.MonkeyPatch.context() as patch,
            killed_before(number) as made,
            suppress(Killed, OSError),
        ):
            patch.setattr(os, "fsync", lambda fd: None)
            patch.setattr(syscalls, "start_writing", lambda fd: None)
            changed.commit()
        changed.recover()
        assert_same_tree(capture(changed.host), before, ignoring=OWN)
        assert changed.found() == found, made[-5:]
        if len(made) < number:
            break


def test_killed_anywhere_with_room(changed: Committed) -> None:
    grow(changed)
    before, found = capture(changed.host), changed.found()
    ended = set()
    for number in range(10_000):
        with (
            pytest.MonkeyPatch.context() as patch,
            killed_before(number) as made,
            suppress(Killed),
        ):
            patch.setattr(os, "fsync", lambda fd: None)
            patch.setattr(syscalls, "start_writing", lambda fd: None)
            changed.commit()
        changed.recover()
        committed = changed.found() == []
        ended.add(committed)
        if committed:
            assert sorted(os.listdir(changed.host)) == ["kept", "replaced", "small"]
            assert (changed.host / "replaced").read_bytes() == b"short\n"
            assert not changed.undo().left
        assert_same_tree(capture(changed.host), before, ignoring=OWN | {"ino"})
        assert changed.found() == found, made[-5:]
        if len(made) < number:
            break
    assert ended == {True, False}


def test_what_the_record_has_alone_comes_back_out_of_it(
    changed: Committed, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, found = capture(changed.host), changed.found()
    interrupt(changed, monkeypatch)
    with changed.paused() as site:
        record = site.records.unfinished()
        assert record is not None
        steps = steps_of(record)
        assert steps is not None
        # As it was done when every object was carried over before the next.
        swap = next(swap for swap in steps.swaps if swap.name == b"replaced")
        with record, record.folder(b"pre") as pre:
            carry(site.workspace, steps.temporary(swap), pre, b"%d" % swap.number)
    recovered = changed.recover()
    assert recovered is not None
    assert not recovered.finished
    assert_same_tree(capture(changed.host), before, ignoring=OWN | {"ino"})
    assert changed.found() == found
