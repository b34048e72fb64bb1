"""Are mount destinations in a home made where they should be, and kept by all who use the home?"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath

import pytest

from sandboxfs.errors import MountFailed, SandboxBusy
from sandboxfs.runs.run_home import HomeMounts, hold_home, hold_home_alone, share_home

WANTED = {PurePath("a/b/directory"): True, PurePath("a/file"): False}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "outside").mkdir()
    return tmp_path / "home"


def hold(home: Path, wanted: dict[PurePath, bool], *, keeps: bool = True) -> HomeMounts:
    return hold_home(home.parent / "lock", home, wanted, keeps=keeps)


def test_destinations_are_made_and_the_directories_above_them_are_kept(home: Path) -> None:
    held = hold(home, WANTED)
    assert (home / "a/b/directory").is_dir()
    assert (home / "a/file").is_file()
    assert held.kept == (PurePath("a"), PurePath("a/b"))
    assert held.aside == ()
    os.close(held.lock)


@pytest.mark.parametrize("name", ["a", "a/b", "a/b/directory", "a/file"])
def test_a_link_on_the_way_is_moved_aside_and_never_followed(home: Path, name: str) -> None:
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).symlink_to(home.parent / "outside")
    held = hold(home, WANTED)
    os.close(held.lock)
    assert list((home.parent / "outside").iterdir()) == []
    ((before, after),) = held.aside
    assert before == PurePath(name)
    assert (home / after).is_symlink()
    assert (home / "a/b/directory").is_dir()
    assert (home / "a/file").is_file()


def test_who_comes_later_keeps_what_is_listed_and_gets_nothing_else(home: Path) -> None:
    first = hold(home, WANTED)
    second = hold(home, {PurePath("a/file"): False})
    assert set(second.kept) == {PurePath("a"), PurePath("a/b"), PurePath("a/b/directory")}
    with pytest.raises(SandboxBusy, match="without 'c' mounted"):
        hold(home, {PurePath("c"): True})
    assert not (home / "c").exists()
    os.close(first.lock)
    with pytest.raises(SandboxBusy):
        hold(home, {PurePath("c"): True})
    os.close(second.lock)
    third = hold(home, {PurePath("c"): True})
    assert third.kept == ()
    os.close(third.lock)


def test_who_keeps_nothing_shares_the_home_only_with_those_who_mount_nothing(home: Path) -> None:
    first = hold(home, {}, keeps=False)
    os.close(hold(home, {}, keeps=False).lock)
    with pytest.raises(SandboxBusy):
        hold(home, WANTED)
    os.close(first.lock)
    first = hold(home, WANTED)
    with pytest.raises(SandboxBusy, match="Landlock"):
        hold(home, {}, keeps=False)
    os.close(first.lock)


def test_a_home_that_cannot_be_prepared_is_told(home: Path) -> None:
    home.rmdir()
    with pytest.raises(MountFailed, match="cannot prepare the sandbox's home"):
        hold(home, WANTED)


def test_a_run_that_is_alone_adds_a_destination_and_later_ones_keep_it(home: Path) -> None:
    first = hold(home, WANTED)
    hold_home_alone(first.lock, home)
    share_home(first.lock, PurePath("c/d"))
    second = hold(home, {PurePath("c/d"): True})
    assert PurePath("c") in second.kept
    with pytest.raises(SandboxBusy, match="another run uses this sandbox's home"):
        hold_home_alone(first.lock, home)
    # The attempt has cost nothing: the other cannot be alone either.
    with pytest.raises(SandboxBusy):
        hold_home_alone(second.lock, home)
    os.close(first.lock)
    hold_home_alone(second.lock, home)
    share_home(second.lock)
    os.close(second.lock)


def test_no_run_begins_to_use_the_home_while_a_destination_is_added(home: Path) -> None:
    first = hold(home, WANTED)
    hold_home_alone(first.lock, home)
    with ThreadPoolExecutor(1) as pool:
        beginning = pool.submit(hold, home, {PurePath("c/d"): True})
        with pytest.raises(TimeoutError):
            beginning.result(0.3)
        share_home(first.lock, PurePath("c/d"))
        os.close(beginning.result(10).lock)
    os.close(first.lock)
