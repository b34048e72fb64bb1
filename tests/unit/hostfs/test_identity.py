"""Directory identity: the same directory is recognised, another one in its place is not taken for it."""

import os
from dataclasses import replace
from pathlib import Path

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.identity import DirectoryIdentity, identity_of

EXT4, FUSE, OVERLAY = 0xEF53, 0x65735546, 0x794C7630
DISK = DirectoryIdentity(EXT4, inode=2, born=10**18, mount_root=True)
VIEW = DirectoryIdentity(FUSE, inode=1, born=0, mount_root=True)


def seen(path: Path) -> DirectoryIdentity:
    with HostDir.at(path) as opened:
        return identity_of(opened.fd)


def test_a_directory_that_is_renamed_and_written_in_stays_the_same(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.mkdir()
    before = seen(place)
    (place / "file").write_text("more")
    place.chmod(0o700)
    place.rename(tmp_path / "b")
    assert before.is_same(seen(tmp_path / "b"))
    assert before.inode == os.stat(tmp_path / "b").st_ino


def test_another_directory_in_its_place_is_not_the_same(tmp_path: Path) -> None:
    place = tmp_path / "a"
    place.mkdir()
    before = seen(place)
    place.rename(tmp_path / "away")
    place.mkdir()
    assert not before.is_same(seen(place))
    assert "another directory has its place" in before.why_not(seen(place))


def test_a_directory_made_again_under_the_same_inode_number_is_not_the_same() -> None:
    assert not DISK.is_same(replace(DISK, born=DISK.born + 1))


def test_a_file_system_that_knows_no_births_is_recognised_by_inode() -> None:
    assert DISK.is_same(replace(DISK, born=0))
    assert replace(DISK, born=0).is_same(DISK)


def test_two_disks_with_the_same_root_are_told_apart_by_their_volumes() -> None:
    one, other = replace(DISK, volume="12ab"), replace(DISK, volume="34cd")
    assert not one.is_same(other)
    assert "another disk" in one.why_not(other)
    assert one.is_same(DISK)
    assert DISK.is_same(one)


def test_what_lies_below_a_view_that_is_gone_is_not_the_same() -> None:
    below = DirectoryIdentity(EXT4, inode=4711, born=10**18, mount_root=False)
    assert not VIEW.is_same(below)
    assert "not mounted now" in VIEW.why_not(below)


def test_numbers_that_a_file_system_makes_up_do_not_matter() -> None:
    for kind in (FUSE, OVERLAY):
        before = DirectoryIdentity(kind, inode=17, born=5, mount_root=False)
        assert before.is_same(replace(before, inode=18, born=6))
        assert not before.is_same(replace(before, mount_root=True))


def test_the_root_of_a_mount_is_known_as_one() -> None:
    assert seen(Path("/proc")).mount_root
    assert not seen(Path("/proc/self")).mount_root
