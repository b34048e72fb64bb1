"""The state that a sandbox is in, and when it was last used."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.control.mount_table import Mount, MountTable, last_use, observe
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.store import SandboxRecord, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Locations(tmp_path / "state", tmp_path / "run", tmp_path / "config.toml"))


def create(store: Store, name: str, workspace: Path, mountpoint: Path) -> SandboxRecord:
    record = SandboxRecord(name, workspace, mountpoint, datetime(2026, 1, 2, tzinfo=UTC))
    store.create(record).release()
    return record


def mounted_at(*places: Path) -> MountTable:
    return MountTable([Mount(7, "0:50", place, "fuse.sandboxfs", "sandboxfs") for place in places])


def test_a_sandbox_that_nobody_holds_and_that_has_no_mount_is_unmounted(store: Store, tmp_path: Path) -> None:
    record = create(store, "app", tmp_path / "w", tmp_path / "m")
    seen = observe(store, record, mounted_at())
    assert (seen.state, seen.pid, seen.held) == ("unmounted", None, False)


def test_a_mount_that_nobody_serves_is_dead(store: Store, tmp_path: Path) -> None:
    record = create(store, "app", tmp_path / "w", tmp_path / "m")
    assert observe(store, record, mounted_at(tmp_path / "m")).state == "dead"


def test_a_held_sandbox_with_its_mount_is_mounted_and_without_it_only_held(
    store: Store, tmp_path: Path
) -> None:
    record = SandboxRecord("app", tmp_path / "w", tmp_path / "m", datetime(2026, 1, 2, tzinfo=UTC))
    lock = store.create(record)
    mounted = observe(store, record, mounted_at(tmp_path / "m"))
    assert (mounted.state, mounted.held) == ("mounted", True)
    assert mounted.uptime is not None
    detached = observe(store, record, mounted_at())
    assert (detached.state, detached.held) == ("unmounted", True)
    lock.release()


def test_the_mount_of_another_sandbox_at_the_same_place_is_not_a_dead_one_of_ours(
    store: Store, tmp_path: Path
) -> None:
    earlier = create(store, "earlier", tmp_path / "w", tmp_path / "m")
    lock = store.create(
        SandboxRecord("now", tmp_path / "w", tmp_path / "m", datetime(2026, 1, 2, tzinfo=UTC))
    )
    assert observe(store, earlier, mounted_at(tmp_path / "m")).state == "unmounted"
    lock.release()


def test_a_mount_of_another_kind_at_the_mountpoint_is_not_ours(store: Store, tmp_path: Path) -> None:
    record = create(store, "app", tmp_path / "w", tmp_path / "m")
    table = MountTable([Mount(7, "0:50", tmp_path / "m", "tmpfs", "tmpfs")])
    assert observe(store, record, table).state == "unmounted"


def test_the_last_use_is_when_a_process_last_took_hold_of_the_sandbox(store: Store, tmp_path: Path) -> None:
    record = create(store, "app", tmp_path / "w", tmp_path / "m")
    os.utime(store.places("app").lock, (2_000_000_000, 2_000_000_000))
    assert last_use(store, record).timestamp() == 2_000_000_000
    lock = SandboxLock.acquire(store.places("app").lock)
    assert lock is not None
    os.utime(store.places("app").lock, (1_000_000_000, 1_000_000_000))
    assert last_use(store, record).timestamp() > 1_700_000_000, "it is in use now"
    lock.release()
    store.places("app").lock.unlink()
    assert last_use(store, record) == record.created
