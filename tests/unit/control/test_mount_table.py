"""The kernel's mount table is read as it is written, and the mounts in it are left alone."""

import errno
import os
from pathlib import Path

import pytest

from sandboxfs.control import mount_table
from sandboxfs.control.mount_table import Mount, MountTable, parse_mountinfo

TEXT = b"""\
22 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 28 0:50 / /srv/with\\040space rw,nosuid shared:3 master:4 - fuse.sandboxfs sandboxfs rw,user_id=0
91 28 0:51 / /srv/tab\\011newline\\012back\\134slash rw - fuse.sandboxfs sandboxfs rw
92 28 0:52 / /srv/caf\303\251\\040\377 rw - fuse.sandboxfs sandboxfs rw
93 28 0:53 / /srv/twice rw - tmpfs tmpfs rw
94 93 0:54 / /srv/twice rw - fuse.sandboxfs sandboxfs rw
95 94 0:55 /sub /srv/twice/inner rw - ext4 /dev/my\\040disk rw
96 28 0:56 / /srv/twice-not rw - tmpfs tmpfs rw
this line means nothing
"""


@pytest.fixture
def table() -> MountTable:
    return MountTable(parse_mountinfo(TEXT))


def ours(mountpoint: Path) -> Mount:
    return Mount(7, "0:50", mountpoint, "fuse.sandboxfs", "sandboxfs")


def test_every_well_formed_line_is_read() -> None:
    found = parse_mountinfo(TEXT)
    assert [mount.mount_id for mount in found] == [22, 28, 90, 91, 92, 93, 94, 95, 96]
    assert found[0] == Mount(22, "0:21", Path("/proc"), "proc", "proc")
    assert found[7].source == "/dev/my disk"


@pytest.mark.parametrize(
    "place", [b"/srv/with space", b"/srv/tab\tnewline\nback\\slash", b"/srv/caf\303\251 \377"]
)
def test_escaped_and_odd_mountpoints_are_found(table: MountTable, place: bytes) -> None:
    mount = table.at(Path(os.fsdecode(place)))
    assert mount is not None
    assert mount.ours


def test_the_topmost_of_stacked_mounts_is_the_one_that_counts(table: MountTable) -> None:
    mount = table.at(Path("/srv/twice"))
    assert mount is not None
    assert mount.mount_id == 94


def test_mounts_below_a_place_are_found_by_whole_components(table: MountTable) -> None:
    assert [mount.mount_id for mount in table.below(Path("/srv/twice"))] == [95]


@pytest.mark.parametrize("place", ["/", "/srv", "/srv/twice", "/srv/twice/inner", "/srv/with space", "/none"])
def test_mounts_below_one_place_are_the_same_as_in_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    odd = rb"97 90 0:57 / /srv/with\040space/and\134inner rw - tmpfs tmpfs rw" + b"\n"
    (tmp_path / "mountinfo").write_bytes(TEXT + odd)
    monkeypatch.setattr(mount_table, "_MOUNTINFO", tmp_path / "mountinfo")
    found = mount_table.mounts_below(Path(place))
    assert found == MountTable.read().below(Path(place))
    assert len(found) == {"/": 9, "/srv": 8, "/srv/twice": 1, "/srv/with space": 1}.get(place, 0)


def test_a_place_that_is_no_mountpoint_has_no_mount(table: MountTable) -> None:
    assert table.at(Path("/srv")) is None


def test_the_real_table_has_the_root() -> None:
    assert MountTable.read().at(Path("/")) is not None


def test_resolving_follows_links_and_dots_as_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "relative").symlink_to("real/sub")
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    table = MountTable([])
    for words in ("relative", "absolute/sub", "relative/../sub", "real/./sub/", "absolute/../relative/."):
        assert table.resolve(tmp_path / words) == Path(os.path.realpath(tmp_path / words))
        assert table.resolve(f"{tmp_path}/{words}") == Path(os.path.realpath(f"{tmp_path}/{words}"))


def test_resolving_goes_on_after_what_does_not_exist(tmp_path: Path) -> None:
    assert MountTable([]).resolve(tmp_path / "no" / "such") == tmp_path / "no" / "such"


def test_resolving_takes_a_relative_path_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert MountTable([]).resolve("view") == tmp_path / "view"


def test_resolving_never_looks_at_or_inside_a_mount_of_ours(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "mount").symlink_to("target")
    table = MountTable([ours(tmp_path / "mount")])
    assert table.resolve(tmp_path / "mount") == tmp_path / "mount"
    assert table.resolve(tmp_path / "mount" / "file") == tmp_path / "mount" / "file"
    (tmp_path / "alias").symlink_to("mount")
    assert table.resolve(tmp_path / "alias" / "file") == tmp_path / "mount" / "file"


def test_resolving_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError) as refused:
        MountTable([]).resolve(tmp_path / "loop")
    assert refused.value.errno == errno.ELOOP
