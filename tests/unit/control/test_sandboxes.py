"""The sandbox that a verb is about, and the state it is in."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.control.mounts import Mount, MountTable
from sandboxfs.control.sandboxes import observe, select
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.state.locations import Locations
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Locations(tmp_path / "state", tmp_path / "run", tmp_path / "config.toml"))


def create(store: Store, name: str, workspace: Path, mountpoint: Path) -> SandboxRecord:
    record = SandboxRecord(name, workspace, mountpoint, datetime(2026, 1, 2, tzinfo=UTC))
    store.create(record).release()
    return record


def mounted_at(*places: Path) -> MountTable:
    return MountTable([Mount(7, "0:50", place, "fuse.sandboxfs", "sandboxfs") for place in places])


def test_without_any_sandbox_there_is_none_to_select(store: Store) -> None:
    with pytest.raises(NoSuchSandbox):
        select(store, None)


def test_the_only_sandbox_is_selected(store: Store, tmp_path: Path) -> None:
    create(store, "app", tmp_path / "w", tmp_path / "m")
    assert select(store, None).name == "app"


def test_a_given_name_beats_the_environment_and_an_unknown_one_is_an_error(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "one", tmp_path / "w", tmp_path / "m")
    create(store, "two", tmp_path / "w", tmp_path / "n")
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "two")
    assert select(store, "one").name == "one"
    assert select(store, None).name == "two"
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "three")
    with pytest.raises(NoSuchSandbox):
        select(store, None)


def test_several_sandboxes_are_an_error_that_lists_them(store: Store, tmp_path: Path) -> None:
    create(store, "one", tmp_path / "v", tmp_path / "m")
    create(store, "two", tmp_path / "w", tmp_path / "n")
    with pytest.raises(UsageError, match="one, two"):
        select(store, None)


@pytest.mark.parametrize(
    ("here", "name"),
    [("w", "outer"), ("w/sub", "outer"), ("w/view", "inner"), ("w/view/deep", "inner"), ("m/sub", "outer")],
)
def test_the_sandbox_that_most_closely_holds_the_current_directory_is_selected(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, name: str
) -> None:
    create(store, "outer", tmp_path / "w", tmp_path / "m")
    create(store, "inner", tmp_path / "x", tmp_path / "w" / "view")
    (tmp_path / here).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / here)
    assert select(store, None).name == name


def test_a_directory_that_only_starts_like_a_workspace_does_not_count(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "one", tmp_path / "app", tmp_path / "m")
    create(store, "two", tmp_path / "other", tmp_path / "n")
    (tmp_path / "app-evil").mkdir()
    monkeypatch.chdir(tmp_path / "app-evil")
    with pytest.raises(UsageError):
        select(store, None)


def test_a_current_directory_that_is_gone_does_not_matter(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "app", tmp_path / "w", tmp_path / "m")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert select(store, None).name == "app"


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
