"""An archive appears whole, private, and only where it may."""

import json
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.archive import tar, write
from sandboxfs.archive.collect import chunks
from sandboxfs.cli.main import main
from sandboxfs.commit.records import COMMIT, Records, RecordSummary
from sandboxfs.control.mount_table import Mount, MountTable
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.service.review_session import REVIEW_LOCK
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.store import SandboxRecord, Store
from tests.support.archived import Parts
from tests.support.tree import assert_same_tree, build, capture


@pytest.fixture
def store() -> Store:
    return Store(Locations.from_environment())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "app", {"a": "old\n"})


@pytest.fixture(autouse=True)
def sandbox(store: Store, workspace: Path) -> Path:
    """The upper of a sandbox that has added a file."""
    record = SandboxRecord("app", workspace, Path("/nowhere/view"), datetime(2026, 1, 2, tzinfo=UTC))
    store.create(record).release()
    upper = store.places("app").upper
    (upper / "new").write_text("new\n")
    return upper


def test_an_archive_is_private_and_leaves_nothing_beside_it(tmp_path: Path, workspace: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    before = capture(workspace)
    assert main(["export", str(place / "changes.tar")]) == 0
    assert os.listdir(place) == ["changes.tar"]
    assert stat.S_IMODE((place / "changes.tar").stat().st_mode) == 0o600
    parts = Parts.of((place / "changes.tar").read_bytes())
    assert parts.files == {"new": b"new\n"}
    assert parts.manifest["workspace"] == str(workspace)
    assert_same_tree(capture(workspace), before)


@pytest.mark.parametrize(("name", "is_gzip"), [("c.tgz", True), ("c.tar.gz", True), ("c.tar", False)])
def test_the_name_decides_whether_it_is_gzipped(tmp_path: Path, name: str, is_gzip: bool) -> None:
    assert main(["export", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == is_gzip


def test_what_was_exported_is_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--json", str(tmp_path / "c.tar")]) == 0
    told = json.loads(capsys.readouterr().out)
    size = (tmp_path / "c.tar").stat().st_size
    assert told == {
        "version": 1,
        "name": "app",
        "file": str(tmp_path / "c.tar"),
        "bytes": size,
        "entries": 2,
        "files": 1,
        "devices": [],
    }


def test_an_archive_can_go_through_a_pipe(
    workspace: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["export", "-"]) == 0
    with open(reading) as stdin:
        monkeypatch.undo()
        monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(store.locations.state))
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["import", "-"]) == 0
    assert store.names() == ["app", "app-2"]
    assert (store.places("app-2").upper / "new").read_text() == "new\n"


def test_a_file_that_exists_is_replaced_only_by_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.tar"
    target.write_text("precious")
    assert main(["export", str(target)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert main(["export", "--force", str(target)]) == 0
    assert target.read_bytes() != b"precious"


def test_a_file_that_appears_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "c.tar"

    def late(*_: object) -> bytes:
        target.write_text("precious")
        return b"\0"

    monkeypatch.setattr(tar, "padding", late)
    assert main(["export", str(target)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert [name for name in os.listdir(tmp_path) if "sandboxfs-" in name] == []


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_what_is_no_plain_file_is_never_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "c.tar"
    match kind:
        case "directory":
            target.mkdir()
        case "link":
            target.symlink_to("elsewhere")
        case _:
            os.mkfifo(target)
    assert main(["export", "--force", str(target)]) == 2
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["", "missing/c.tar", "app/a/c.tar", "a\0b"])
def test_a_place_where_nothing_can_be_is_refused(tmp_path: Path, name: str) -> None:
    assert main(["export", str(tmp_path / name) if name else ""]) == 2


def test_the_places_of_sandboxes_are_refused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(store.places("app").upper / "c.tar")]) == 2
    assert "where sandboxes are kept" in capsys.readouterr().err


def test_a_view_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view = Mount(1, "0:99", tmp_path / "view", "fuse.sandboxfs", "app")
    monkeypatch.setattr(MountTable, "read", lambda: MountTable([view]))
    assert main(["export", str(tmp_path / "view" / "deep" / "c.tar")]) == 2
    assert "in the view of a sandbox" in capsys.readouterr().err


def test_an_archive_and_json_do_not_share_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "-", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_no_such_sandbox_is_told(tmp_path: Path) -> None:
    assert main(["export", "-s", "other", str(tmp_path / "c.tar")]) == 3
    assert not (tmp_path / "c.tar").exists()


class Touched:
    """Changes a file once or ever again while archives are written."""

    def __init__(self, path: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = times
        self._path = path
        monkeypatch.setattr(write, "chunks", self)

    def __call__(self, fd: int, size: int) -> list[bytes]:
        if self.left:
            self.left -= 1
            self._path.write_text(f"new {self.left}\n")
        return list(chunks(fd, size))


def test_a_file_that_changes_while_it_is_written_is_taken_again(
    sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Touched(sandbox / "new", 2, monkeypatch)
    assert main(["export", str(tmp_path / "c.tar")]) == 0
    assert Parts.of((tmp_path / "c.tar").read_bytes()).files == {"new": b"new 0\n"}


def test_a_file_that_changes_whenever_it_is_written_is_refused(
    sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Touched(sandbox / "new", 100, monkeypatch)
    assert main(["export", str(tmp_path / "c.tar")]) == 4
    assert "'new' is still changing" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["app"]


def test_a_file_that_changes_whenever_it_is_written_is_taken_if_that_is_wanted(
    sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Touched(sandbox / "new", 100, monkeypatch)
    assert main(["export", "--allow-changing", str(tmp_path / "c.tar")]) == 0
    assert Parts.of((tmp_path / "c.tar").read_bytes()).files["new"].startswith(b"new 9")


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["export", str(tmp_path / "c.tar")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["app"]


def test_a_sandbox_that_is_being_committed_is_refused(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = SandboxLock.acquire(store.places("app").home / REVIEW_LOCK)
    assert lock is not None
    assert main(["export", str(tmp_path / "c.tar")]) == 4
    lock.release()
    assert "is being reviewed by another process" in capsys.readouterr().err


def test_a_sandbox_with_an_interrupted_commit_is_refused(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with HostDir.at(store.places("app").home) as home:
        Records(home).new(RecordSummary.now(COMMIT, ())).close()
    assert main(["export", str(tmp_path / "c.tar")]) == 4
    assert "commit or discard 1 of sandbox 'app' was interrupted" in capsys.readouterr().err
    assert not (tmp_path / "c.tar").exists()
