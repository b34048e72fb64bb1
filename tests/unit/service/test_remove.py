"""Which sandboxes are empty, and what goes with them."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.service.remove import IN_USE, remove_if_empty
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import share
from sandboxfs.state.store import SandboxRecord, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Locations(tmp_path / "state", tmp_path / "run", tmp_path / "config.toml"))


def made(store: Store, name: str, workspace: Path, companion_of: str | None = None) -> SandboxRecord:
    workspace.mkdir(exist_ok=True)
    record = SandboxRecord(
        name, workspace, workspace.parent / f"{name}-view", datetime(2026, 1, 2, tzinfo=UTC)
    )
    record = replace(record, companion_of=companion_of)
    store.create(record).release()
    return record


@pytest.fixture
def record(store: Store, tmp_path: Path) -> SandboxRecord:
    return made(store, "app", tmp_path / "w")


@pytest.fixture
def places(store: Store, record: SandboxRecord) -> SandboxPlaces:
    return store.places(record.name)


def test_an_empty_sandbox_is_removed_with_its_empty_companions(
    store: Store, record: SandboxRecord, tmp_path: Path
) -> None:
    made(store, "app.lib", tmp_path / "lib", companion_of="app")
    assert remove_if_empty(store, record, dry_run=True) is None
    assert store.names() == ["app", "app.lib"]
    assert remove_if_empty(store, record) is None
    assert store.names() == []


def test_what_a_companion_holds_keeps_all_of_them(
    store: Store, record: SandboxRecord, tmp_path: Path
) -> None:
    companion = made(store, "app.lib", tmp_path / "lib", companion_of="app")
    (store.places(companion.name).upper / "new").write_text("x")
    assert remove_if_empty(store, record) == "it holds changes"
    assert store.names() == ["app", "app.lib"]


def test_a_change_keeps_a_sandbox(store: Store, record: SandboxRecord, places: SandboxPlaces) -> None:
    (places.upper / "new").write_text("x")
    assert remove_if_empty(store, record) == "it holds changes"


def test_a_directory_that_was_only_copied_up_is_no_change(
    store: Store, record: SandboxRecord, places: SandboxPlaces
) -> None:
    (record.workspace / "dir").mkdir()
    (places.upper / "dir").mkdir()
    assert remove_if_empty(store, record) is None


def test_changes_of_a_workspace_that_is_gone_keep_a_sandbox(
    store: Store, record: SandboxRecord, places: SandboxPlaces
) -> None:
    (places.upper / "new").write_text("x")
    record.workspace.rmdir()
    assert str(remove_if_empty(store, record)).startswith("its changes cannot be read")


def test_what_can_be_undone_keeps_a_sandbox(
    store: Store, record: SandboxRecord, places: SandboxPlaces
) -> None:
    (places.commits / "1").mkdir(parents=True)
    assert remove_if_empty(store, record) == "it can undo a commit or discard"


def listed(places: SandboxPlaces, *paths: str) -> None:
    places.home_lock.write_bytes(b"".join(os.fsencode(path) + b"\0" for path in paths))


def test_a_home_with_nothing_but_mount_destinations_is_not_worth_keeping(
    store: Store, record: SandboxRecord, places: SandboxPlaces
) -> None:
    listed(places, "projects/app", "conf/settings")
    (places.private_home / "projects" / "app").mkdir(parents=True)
    (places.private_home / "conf").mkdir()
    (places.private_home / "conf" / "settings").touch()
    assert remove_if_empty(store, record) is None


@pytest.mark.parametrize("what", ["file", "directory", "link", "in a destination", "a filled destination"])
def test_whatever_a_program_left_in_its_home_is_worth_keeping(
    store: Store, record: SandboxRecord, places: SandboxPlaces, what: str
) -> None:
    listed(places, "projects/app", "settings")
    home = places.private_home
    (home / "projects" / "app").mkdir(parents=True)
    match what:
        case "file":
            (home / ".token").touch()
        case "directory":
            (home / "projects" / "other").mkdir()
        case "link":
            (home / "settings").symlink_to("/nowhere")
        case "in a destination":
            (home / "projects" / "app" / "left").touch()
        case _:
            (home / "settings").write_text("x")
    assert remove_if_empty(store, record) == "programs left something in its home"
    assert store.names() == ["app"]


def test_a_sandbox_that_somebody_holds_is_left_alone(
    store: Store, tmp_path: Path, record: SandboxRecord, places: SandboxPlaces
) -> None:
    run = share(places)
    assert remove_if_empty(store, record) == IN_USE
    os.close(run)
    other = SandboxRecord("other", tmp_path / "w", tmp_path / "m", datetime(2026, 1, 2, tzinfo=UTC))
    lock = store.create(other)
    assert remove_if_empty(store, other) == IN_USE
    lock.release()
    assert remove_if_empty(store, other) is None
