"""What is done and old goes; what somebody may still need stays."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from sandboxfs.commit.records import COMMIT, DISCARD, Records, RecordSummary
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.service import records as garbage
from sandboxfs.service.review_session import REVIEW_LOCK
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.store import SandboxRecord, Store


@pytest.fixture
def store() -> Store:
    return Store(Locations.from_environment())


@pytest.fixture
def places(store: Store, monkeypatch: pytest.MonkeyPatch) -> SandboxPlaces:
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "app")
    return sandbox(store, "app")


def sandbox(store: Store, name: str) -> SandboxPlaces:
    record = SandboxRecord(name, Path("/srv/app"), Path(f"/mnt/{name}"), datetime(2026, 1, 2, tzinfo=UTC))
    store.create(record).release()
    return store.places(name)


def record(
    places: SandboxPlaces, *, hours: float = 48, kind: str = COMMIT, ending: str | None = "done"
) -> int:
    """Make a record of something that was done some *hours* ago."""
    created = (datetime.now(UTC) - timedelta(hours=hours)).isoformat().replace("+00:00", "Z")
    with HostDir.at(places.home) as home, Records(home).new(RecordSummary(kind, created)) as made:
        if ending is not None:
            made.write(ending, True)
        (places.commits / str(made.number) / "pre" / "content").write_bytes(b"x" * 10_000)
        return made.number


def left(places: SandboxPlaces) -> list[str]:
    return sorted(os.listdir(places.commits)) if places.commits.exists() else []


def notes(places: SandboxPlaces) -> int:
    """Write something into the baseline; return what it takes."""
    (places.baseline / "log").write_bytes(b'{"path":"a"}\n')
    (places.baseline / "pack").write_bytes(b"x" * 10_000)
    return (places.baseline / "pack").stat().st_size


def test_old_records_that_are_done_go(places: SandboxPlaces, capsys: pytest.CaptureFixture[str]) -> None:
    record(places)
    record(places, kind=DISCARD)
    record(places, hours=1)
    assert main(["gc"]) == 0
    shown = capsys.readouterr()
    assert left(places) == ["3"]
    assert shown.out.startswith("sandbox 'app' of '/srv/app': removed records 1 (commit), 2 (discard), ")
    assert "undo of these records is no longer possible" in shown.err


def test_a_record_that_was_taken_back_goes(places: SandboxPlaces) -> None:
    record(places, ending="taken back")
    assert main(["gc"]) == 0
    assert left(places) == []


def test_a_record_that_is_not_finished_stays_however_old(
    places: SandboxPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    record(places, hours=10_000, ending=None)
    record(places, hours=10_000, ending="staged")
    assert main(["gc", "--older-than", "0s"]) == 0
    assert left(places) == ["1", "2"]
    assert "record 1 of 'app' is not finished and stays" in capsys.readouterr().err


def test_a_record_that_cannot_be_read_stays(
    places: SandboxPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    number = record(places)
    (places.commits / str(number) / "record.json").write_text('{"format": 99}')
    assert main(["gc"]) == 0
    assert left(places) == ["1"]
    assert "not a record of format 1" in capsys.readouterr().err


def test_a_record_with_a_time_that_is_none_stays(places: SandboxPlaces) -> None:
    number = record(places)
    about = places.commits / str(number) / "record.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"created": "yesterday"}))
    assert main(["gc", "--older-than", "0s"]) == 0
    assert left(places) == ["1"]


@pytest.mark.parametrize(("age", "stays"), [("3h", []), ("6h", ["1"]), ("0s", []), ("1w", ["1"])])
def test_the_age_is_asked_for(places: SandboxPlaces, age: str, stays: list[str]) -> None:
    record(places, hours=5)
    assert main(["gc", "--older-than", age]) == 0
    assert left(places) == stays


def test_a_dry_run_removes_nothing_and_says_the_same(
    places: SandboxPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    record(places)
    notes(places)
    assert main(["gc", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert left(places) == ["1"]
    assert (places.baseline / "log").read_bytes() != b""
    assert main(["gc", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert left(places) == []
    assert told == done | {"dry_run": True}
    (described,) = done["sandboxes"]
    assert [one["id"] for one in described["records"]] == [1]
    assert described["baseline_bytes"] >= 10_000
    assert done["bytes"] >= 20_000


def test_one_sandbox_is_meant_unless_all_are(
    store: Store, places: SandboxPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SANDBOXFS_SANDBOX")
    other = sandbox(store, "other")
    for one in (places, other):
        record(one)
    assert main(["gc"]) == 2
    assert main(["gc", "-s", "app"]) == 0
    assert (left(places), left(other)) == ([], ["1"])
    assert main(["gc", "--all", "-s", "app"]) == 2
    assert main(["gc", "--all"]) == 0
    assert left(other) == []


def test_a_sandbox_that_is_being_reviewed_is_left_alone(
    store: Store, places: SandboxPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    other = sandbox(store, "other")
    for one in (places, other):
        record(one)
    lock = SandboxLock.acquire(places.home / REVIEW_LOCK)
    assert lock is not None
    assert main(["gc", "-s", "app"]) == 4
    assert main(["gc", "--all", "--json"]) == 0
    lock.release()
    assert list(json.loads(capsys.readouterr().out)["skipped"]) == ["app"]
    assert (left(places), left(other)) == (["1"], [])


def test_what_was_noted_goes_from_a_sandbox_without_changes_or_records(places: SandboxPlaces) -> None:
    notes(places)
    assert main(["gc"]) == 0
    assert (places.baseline / "log").read_bytes() == b""
    assert (places.baseline / "pack").read_bytes() == b""


@pytest.mark.parametrize("why", ["changes", "record", "served"])
def test_what_was_noted_stays_where_it_may_be_needed(places: SandboxPlaces, why: str) -> None:
    notes(places)
    lock = None
    if why == "changes":
        (places.upper / "file").touch()
    elif why == "record":
        record(places, hours=1)
    else:
        lock = SandboxLock.acquire(places.lock)
    assert main(["gc"]) == 0
    if lock is not None:
        lock.release()
    assert (places.baseline / "log").read_bytes() != b""


def test_a_record_is_gone_or_whole_whenever_it_is_interrupted(
    places: SandboxPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(places)

    def killed(path: Path) -> None:
        (path / "pre" / "content").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(garbage, "remove_tree", killed)
        assert main(["gc"]) == 130
    with HostDir.at(places.home) as home:
        assert Records(home).numbers() == []
    assert left(places) != []
    assert main(["gc"]) == 0
    assert left(places) == []


def test_a_sandbox_without_anything_to_remove_says_so(
    places: SandboxPlaces, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gc"]) == 0
    assert "nothing is old enough to go" in capsys.readouterr().err
    assert not places.commits.exists()


@pytest.mark.parametrize(
    "words", [["gc", "--all"], ["gc", "-s", "app"], ["prune", "--dry-run"]], ids=" ".join
)
def test_housekeeping_is_no_use_of_a_sandbox(
    store: Store, places: SandboxPlaces, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    newest = sandbox(store, "newest")
    for one, days in ((places, 20), (newest, 10)):
        notes(one)
        (one.upper / "kept").touch()
        when = (datetime.now(UTC) - timedelta(days=days)).timestamp()
        os.utime(one.lock, (when, when))

    def used() -> list[tuple[str, str]]:
        capsys.readouterr()
        assert main(["list", "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)["sandboxes"]
        return [(one["name"], one["last_used"]) for one in listed]

    before = used()
    assert [name for name, _ in before] == ["newest", "app"]
    assert main(words) == 0
    assert used() == before


def test_forgetting_notes_of_the_workspace_is_no_use_of_a_sandbox(places: SandboxPlaces) -> None:
    notes(places)
    os.utime(places.lock, (1_700_000_000, 1_700_000_000))
    assert main(["gc", "--all"]) == 0
    assert not (places.baseline / "pack").exists() or (places.baseline / "pack").stat().st_size == 0
    assert places.lock.stat().st_mtime == 1_700_000_000


def test_bad_times_and_unknown_sandboxes_are_refused(places: SandboxPlaces) -> None:
    assert main(["gc", "--older-than", "soon"]) == 2
    assert main(["gc", "-s", "other"]) == 3
