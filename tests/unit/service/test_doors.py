"""What every door of the service can rely on: any thread, no terminal, an own directory and environment."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.service.commit import CommitPrompt, CommitRequest, CommitResult, commit
from sandboxfs.service.discard import DiscardRequest, discard
from sandboxfs.service.events import YES, CallerContext, Cancelled, Prompt, Unattended
from sandboxfs.service.export import ExportRequest, export
from sandboxfs.service.import_archive import ImportRequest, import_archive
from sandboxfs.service.records import records
from sandboxfs.service.review import ReviewRequest, review
from sandboxfs.service.undo import UndoRequest, undo
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store


class Door(Unattended):
    """Events of a caller that answers *answer*, and may cancel."""

    def __init__(self, answer: str | None = None, *, cancel: bool = False) -> None:
        self.answer = answer
        self.cancel = cancel
        self.asked: list[Prompt] = []
        self.progressed = 0

    def ask(self, prompt: Prompt) -> str | None:
        self.asked.append(prompt)
        return self.answer

    def progress(self, done: int, total: int | None, what: str, *, in_bytes: bool = False) -> None:
        self.progressed += 1

    def cancelled(self) -> bool:
        return self.cancel


class Sandboxes:
    """Sandboxes in a state directory that the environment of this process does not name."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {"SANDBOXFS_STATE_DIR": str(place / "state"), "HOME": str(place / "home")}
        self.store = Store(Locations.from_environment(self.environment))

    def make(self, name: str) -> Path:
        """Make a sandbox with a new file in it, and return its workspace."""
        workspace = self.place / name
        workspace.mkdir()
        record = SandboxRecord(name, workspace, self.place / "view", datetime.now(UTC))
        self.store.create(record).release()
        (self.store.places(name).upper / "new").write_text(f"{name}\n")
        return workspace

    @property
    def caller(self) -> CallerContext:
        return CallerContext(str(self.place), self.environment, is_program=True)


@pytest.fixture
def sandboxes(tmp_path: Path) -> Sandboxes:
    return Sandboxes(tmp_path)


def test_several_threads_commit_at_once_and_none_changes_what_the_process_shares(
    sandboxes: Sandboxes,
) -> None:
    names = [f"app{number}" for number in range(6)]
    workspaces = {name: sandboxes.make(name) for name in names}
    here = Path.cwd()
    barrier = threading.Barrier(len(names))

    def committed(name: str) -> CommitResult:
        barrier.wait()
        return commit(CommitRequest(name, confirmed=True), sandboxes.caller, Door())

    with ThreadPoolExecutor(len(names)) as pool:
        results = dict(zip(names, pool.map(committed, names), strict=True))
    for name, result in results.items():
        assert (workspaces[name] / "new").read_text() == f"{name}\n"
        assert [change.path for change in result.preview.changes] == [b"new"]
        assert (result.record, result.stayed, result.problem) == (1, (), None)
    assert Path.cwd() == here


def test_a_commit_asks_its_caller_and_does_nothing_without_an_answer(sandboxes: Sandboxes) -> None:
    workspace = sandboxes.make("app")
    door = Door()
    assert commit(CommitRequest("app"), sandboxes.caller, door).declined
    assert list(workspace.iterdir()) == []
    assert [type(prompt) for prompt in door.asked] == [CommitPrompt]
    assert commit(CommitRequest("app"), sandboxes.caller, Door(YES)).record == 1
    assert (workspace / "new").is_file()


def test_a_cancelled_commit_changes_nothing(sandboxes: Sandboxes) -> None:
    workspace = sandboxes.make("app")
    with pytest.raises(Cancelled):
        commit(CommitRequest("app", confirmed=True), sandboxes.caller, Door(cancel=True))
    assert list(workspace.iterdir()) == []
    assert records("app", sandboxes.caller, Unattended()).records == ()
    assert commit(CommitRequest("app", confirmed=True), sandboxes.caller, Door()).record == 1


def test_a_dry_run_tells_what_a_commit_would_do(sandboxes: Sandboxes) -> None:
    workspace = sandboxes.make("app")
    result = commit(CommitRequest("app", dry_run=True), sandboxes.caller, Door())
    assert (result.record, result.dry_run) == (None, True)
    assert result.as_json()["counts"] == {"added": 1}
    assert list(workspace.iterdir()) == []


def test_hunks_are_not_taken_unasked_where_nobody_can_be_asked(sandboxes: Sandboxes) -> None:
    sandboxes.make("app")
    with pytest.raises(UsageError, match="nobody"):
        commit(CommitRequest("app", by_hunk=True, confirmed=True), sandboxes.caller, Door())
    with pytest.raises(UsageError, match="nobody"):
        discard(DiscardRequest("app", by_hunk=True, confirmed=True), sandboxes.caller, Door())


def test_a_home_is_not_committed_as_a_whole_unasked(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = sandboxes.make("app")
    monkeypatch.setenv("HOME", str(workspace))
    with pytest.raises(UsageError, match="one by one"):
        commit(CommitRequest("app", confirmed=True), sandboxes.caller, Door())
    assert list(workspace.iterdir()) == []


def test_what_was_discarded_is_listed_and_can_be_taken_back(sandboxes: Sandboxes) -> None:
    sandboxes.make("app")
    assert discard(DiscardRequest("app", confirmed=True), sandboxes.caller, Door()).record == 1
    assert [
        (one.number, one.kind, one.state) for one in records("app", sandboxes.caller, Unattended()).records
    ] == [(1, "discard", "done")]
    result = undo(UndoRequest("app", confirmed=True), sandboxes.caller, Door())
    assert (result.preview.changes, result.problem) == (((b"new", "added"),), None)
    with review(ReviewRequest("app"), sandboxes.caller, Door()) as found:
        assert [one.path for one in found.changes()] == [b"new"]


def test_paths_start_at_the_directory_of_the_caller(sandboxes: Sandboxes) -> None:
    workspace = sandboxes.make("app")
    caller = CallerContext(str(workspace), sandboxes.environment, is_program=True)
    archive = export(ExportRequest("app", "../changes.tgz"), caller, Door())
    assert archive.file == sandboxes.place / "changes.tgz"
    door = Door()
    made = import_archive(ImportRequest("../changes.tgz", workspace=".", name="copy"), caller, door)
    assert (made.name, made.workspace, made.files) == ("copy", workspace, 1)
    with review(ReviewRequest("copy", paths=("new",)), caller, door) as found:
        assert found.rest_as_json()["left_out"] == {"ignored": 0, "git": 0}
        assert [change["path"] for change in found.each_as_json(3)] == ["new"]
    assert door.progressed > 0
    assert os.fspath(made.workspace) != os.getcwd()
