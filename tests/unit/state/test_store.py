"""Sandboxes come and go whole, and their names are safe."""

import errno
import os
import resource
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.errors import NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock, holder
from sandboxfs.state.store import MAX_NAME, SandboxRecord, Store, check_name, name_from


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Locations(tmp_path / "state", tmp_path / "run", tmp_path / "config.toml"))


def record(name: str) -> SandboxRecord:
    return SandboxRecord(name, Path("/srv/app"), Path("/mnt/app"), datetime(2026, 1, 2, tzinfo=UTC))


def create(store: Store, name: str) -> None:
    store.create(record(name)).release()


@pytest.mark.parametrize("name", ["a", "app", "app-2", "A.b_c-9", "_x", "x" * MAX_NAME])
def test_a_plain_name_is_accepted(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "a/b", "/", "a b", "é", "a\n", "a\0", "x" * (MAX_NAME + 1)]
)
def test_a_name_that_could_mislead_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../app"])
def test_a_name_that_could_mislead_has_no_places(store: Store, name: str) -> None:
    with pytest.raises(UsageError):
        store.places(name)
    with pytest.raises(UsageError):
        store.exists(name)


@pytest.mark.parametrize(
    ("basename", "name"),
    [
        ("app", "app"),
        ("my app!", "my-app"),
        (".config", "config"),
        ("--", "sandbox"),
        ("", "sandbox"),
        ("日本", "sandbox"),
        ("a" * 100, "a" * MAX_NAME),
        ("\udcff\udcfe.d", "d"),
    ],
)
def test_a_name_made_from_a_workspace_is_acceptable(basename: str, name: str) -> None:
    assert name_from(basename) == name
    check_name(name_from(basename))


def test_looking_creates_nothing(store: Store, tmp_path: Path) -> None:
    assert store.names() == []
    assert list(store.readable()) == []
    assert not store.exists("app")
    with pytest.raises(NoSuchSandbox):
        store.load("app")
    assert list(tmp_path.iterdir()) == []


def test_a_created_sandbox_is_whole_private_and_held(store: Store) -> None:
    lock = store.create(record("app"))
    places = store.places("app")
    held_by = holder(places.lock)
    assert held_by is not None
    assert held_by.pid == os.getpid()
    assert store.load("app") == record("app")
    assert all(path.is_dir() for path in (places.upper, places.work, places.index, places.baseline))
    assert stat.S_IMODE(store.locations.state.stat().st_mode) == 0o700
    lock.release()
    assert holder(places.lock) is None
    assert store.names() == ["app"]


def test_creating_a_name_that_was_taken_meanwhile_is_refused_and_leaves_the_other_alone(store: Store) -> None:
    create(store, "app")
    with pytest.raises(SandboxBusy):
        store.create(replace(record("app"), workspace=Path("/other")))
    assert store.load("app").workspace == Path("/srv/app")
    assert os.listdir(store.locations.sandboxes) == ["app"]


def test_the_first_free_name_is_found(store: Store) -> None:
    assert store.free_name("app") == "app"
    for name in ("app", "app-2", "x" * MAX_NAME):
        create(store, name)
    assert store.free_name("app") == "app-3"
    assert store.free_name("x" * MAX_NAME) == "x" * (MAX_NAME - 2) + "-2"


def test_saving_replaces_the_record(store: Store) -> None:
    create(store, "app")
    store.save(replace(record("app"), read_only=True))
    assert store.load("app").read_only


def test_a_record_under_another_name_is_refused(store: Store) -> None:
    create(store, "app")
    store.places("app").home.rename(store.places("other").home)
    with pytest.raises(UsageError, match="is of sandbox 'app'"):
        store.load("other")


def test_a_sandbox_that_cannot_be_read_does_not_hide_the_others(store: Store) -> None:
    create(store, "app")
    create(store, "broken")
    store.places("broken").record.write_text("format = 99\n")
    assert [found.name for found in store.readable()] == ["app"]
    assert store.names() == ["app", "broken"]


def test_removing_takes_closed_directories_links_and_special_files_and_nothing_else(
    store: Store, tmp_path: Path
) -> None:
    create(store, "app")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    upper = store.places("app").upper
    (upper / "closed" / "inner").mkdir(parents=True)
    (upper / "closed" / "inner" / "file").touch()
    (upper / "link").symlink_to(outside)
    (upper / "closed" / "link").symlink_to(outside)
    os.mkfifo(upper / "fifo")
    (upper / "closed" / "inner").chmod(0)
    (upper / "closed").chmod(0)
    upper.chmod(0)
    store.remove("app")
    assert os.listdir(store.locations.sandboxes) == []
    assert (outside / "kept").exists()


def test_removing_takes_a_tree_deeper_than_any_path_may_be_long(store: Store) -> None:
    create(store, "app")
    here = os.open(store.places("app").upper, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    store.remove("app")
    assert os.listdir(store.locations.sandboxes) == []


def test_a_removal_that_was_interrupted_is_finished_and_never_listed(store: Store) -> None:
    create(store, "app")
    half = store.places("app").home.rename(store.locations.sandboxes / ".removed-app-1")
    assert store.names() == []
    store.sweep()
    assert not half.exists()


def test_a_creation_that_was_interrupted_long_ago_is_taken_back_and_a_recent_one_is_not(store: Store) -> None:
    for stem in (".new-app", ".probe-a9l83q2r"):
        old, recent = (store.locations.sandboxes / f"{stem}-{number}" for number in (1, 2))
        for path in (old, recent):
            path.mkdir(parents=True)
        os.utime(old, (0, 0))
        store.sweep()
        assert not old.exists()
        assert recent.exists()
    assert store.names() == []


def test_what_a_process_was_making_is_taken_back_and_nothing_else(store: Store) -> None:
    create(store, "app-12")
    names = [".new-app-12", ".new-import-12", ".new-app-112", ".new-app-12-3", ".removed-app-12"]
    names += [".probe-a9l83q2r-12", ".probe-a9l83q2r-112"]
    for name in names:
        (store.locations.sandboxes / name / "roots").mkdir(parents=True)
    store.take_back(12)
    left = {".new-app-112", ".new-app-12-3", ".removed-app-12", ".probe-a9l83q2r-112", "app-12"}
    assert set(os.listdir(store.locations.sandboxes)) == left


def test_a_state_directory_that_is_a_file_has_no_sandboxes(store: Store) -> None:
    store.locations.state.touch()
    assert store.names() == []
    assert not store.exists("app")
    with pytest.raises(NoSuchSandbox):
        store.load("app")


def test_a_held_lock_is_not_given_twice_and_looking_does_not_take_it(store: Store) -> None:
    lock = store.create(record("app"))
    path = store.places("app").lock
    assert SandboxLock.acquire(path) is None
    lock.release()
    assert holder(path) is None
    again = SandboxLock.acquire(path)
    assert again is not None
    again.release()


def test_an_inherited_lock_outlives_the_share_that_was_handed_over(store: Store) -> None:
    lock = store.create(record("app"))
    inherited = SandboxLock(os.dup(lock.descriptor))
    lock.hand_over()
    assert holder(store.places("app").lock) is not None
    inherited.release()
    assert holder(store.places("app").lock) is None


def test_the_lock_of_a_removed_sandbox_cannot_be_taken(store: Store) -> None:
    with pytest.raises(NoSuchSandbox):
        SandboxLock.acquire(store.places("app").lock)


def test_a_lock_that_is_a_link_is_refused(store: Store, tmp_path: Path) -> None:
    create(store, "app")
    path = store.places("app").lock
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError) as refused:
        SandboxLock.acquire(path)
    assert refused.value.errno == errno.ELOOP
    assert not (tmp_path / "elsewhere").exists()


def test_a_record_that_does_not_fit_on_the_disk_leaves_the_one_before(store: Store) -> None:
    create(store, "app")
    longer = replace(record("app"), covered=tuple(Path(f"/srv/app/{number}") for number in range(1_000)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limits[1]))
    try:
        with pytest.raises(OSError) as refused:
            store.save(longer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.errno == errno.EFBIG
    assert store.load("app") == record("app")
    assert not list(store.places("app").home.glob(".*.new"))
