"""What earlier versions wrote into the layers: marks of the upper, the index, and the baseline."""

import os
import stat
from pathlib import Path

import pytest

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.upper.baseline import Baseline, BaselineEntry
from sandboxfs.upper.marks import (
    DirMarks,
    Index,
    InodeRecord,
    Staging,
    Whiteouts,
    read_directory,
    read_record,
)
from tests.golden.checking import HERE

RECORD = b"\x01\x00\x00\x00\x03\x00\x00\x00\xef\xcd\xab\x89\x67\x45\x23\x01"
NUMBER = 0x0123456789ABCDEF

# Attributes of a directory, as they are on disk, and what they say: opaque, redirect, number, damaged.
DIRECTORIES: list[tuple[dict[str, bytes], DirMarks]] = [
    ({}, DirMarks(opaque=False, redirect=None, ino=0)),
    ({"user.colour": b"red"}, DirMarks(opaque=False, redirect=None, ino=0)),
    ({"user.overlay.opaque": b"y"}, DirMarks(opaque=True, redirect=None, ino=0)),
    ({"user.overlay.opaque": b"x"}, DirMarks(opaque=False, redirect=None, ino=0)),
    (
        {"user.overlay.redirect": b"/some/where \xff"},
        DirMarks(opaque=False, redirect=b"/some/where \xff", ino=0),
    ),
    ({"user.overlay.redirect": b"beside"}, DirMarks(opaque=False, redirect=b"beside", ino=0)),
    ({"user.overlay.redirect": b"/a/../b"}, DirMarks(opaque=True, redirect=None, ino=0, damaged=True)),
    ({"user.overlay.redirect": b"a/b"}, DirMarks(opaque=True, redirect=None, ino=0, damaged=True)),
    ({"user.overlay.sandboxfs": RECORD}, DirMarks(opaque=False, redirect=None, ino=NUMBER)),
    (
        {"user.overlay.opaque": b"y", "user.overlay.sandboxfs": RECORD},
        DirMarks(opaque=True, redirect=None, ino=NUMBER),
    ),
    (
        {"user.overlay.redirect": b"/lower", "user.overlay.sandboxfs": RECORD},
        DirMarks(opaque=False, redirect=b"/lower", ino=NUMBER),
    ),
]

# The attribute of a file, and what it says: number, links.
FILES: list[tuple[bytes | None, InodeRecord]] = [
    (None, InodeRecord(0, 0)),
    (RECORD, InodeRecord(NUMBER, 3)),
    (b"\x01\x00\x00\x00" + bytes(4) + b"\x2a" + bytes(7), InodeRecord(42, 0)),
    # Of another version, and cut off.
    (b"\x02" + RECORD[1:], InodeRecord(0, 0)),
    (RECORD[:15], InodeRecord(0, 0)),
]


@pytest.mark.parametrize(("attributes", "marks"), DIRECTORIES)
def test_the_marks_of_a_directory(tmp_path: Path, attributes: dict[str, bytes], marks: DirMarks) -> None:
    (tmp_path / "marked").mkdir()
    for name, value in attributes.items():
        os.setxattr(tmp_path / "marked", name, value)
    with HostDir.at(tmp_path) as directory:
        assert read_directory(directory, b"marked") == marks


@pytest.mark.parametrize(("value", "record"), FILES)
def test_the_record_of_a_file(tmp_path: Path, value: bytes | None, record: InodeRecord) -> None:
    (tmp_path / "file").write_text("x")
    if value is not None:
        os.setxattr(tmp_path / "file", "user.overlay.sandboxfs", value)
    with HostDir.at(tmp_path) as directory:
        assert read_record(directory, b"file") == record


@pytest.mark.parametrize("devices", [True, False])
def test_whiteouts_in_both_encodings(tmp_path: Path, devices: bool) -> None:
    if devices:
        try:
            os.mknod(tmp_path / "whiteout", stat.S_IFCHR, 0)
        except PermissionError:
            # Such a file system has the other encoding only.
            return
    else:
        (tmp_path / "whiteout").touch()
        os.setxattr(tmp_path / "whiteout", "user.overlay.whiteout", b"y")
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with HostDir.at(tmp_path) as directory:
        whiteouts = Whiteouts(devices=devices)
        covering = [
            name
            for name in sorted(directory.names())
            if whiteouts.covers(directory, name, os.lstat(tmp_path / os.fsdecode(name)))
        ]
    assert covering == [b"whiteout"]


def test_the_index(tmp_path: Path) -> None:
    for name in ("index", "work"):
        (tmp_path / name).mkdir()
    index_at = tmp_path / "index"
    (index_at / "h1a2b3c").write_text("the file that several names lead to")
    (index_at / "iff").symlink_to("81985529216486895")
    (index_at / "n1a2b3c").symlink_to("2")
    with HostDir.at(index_at) as directory, HostDir.at(tmp_path / "work") as work:
        index = Index(directory, Staging(work))
        assert index.has_link(0x1A2B3C)
        assert not index.has_link(0x1A2B3D)
        assert index.number(0xFF) == NUMBER
        assert index.number(0xFE) == 0
        assert index.names_lost(0x1A2B3C) == 2
        assert index.names_lost(0xFF) == 0


def test_a_baseline_with_lines_of_every_sort() -> None:
    with HostDir.at(HERE / "v1/baseline") as directory:
        baseline = Baseline.load(directory)
        found = {seen.path: seen for seen in [*baseline.below(b"")]}
        contents = {path: baseline.content(seen) for path, seen in found.items() if seen.saved}
        numbers = {path: seen.number for path, seen in found.items()}
        aside = [path for path in (b"other", b"other/z", b"a", b"empty") if baseline.is_aside(path)]
    assert numbers == {
        b"a": 101,
        b"b": 102,
        b"link": 103,
        b"odd \xff name": 104,
        b"moved": 105,
        b"moved/x": 106,
        b"moved/sub": 107,
        b"moved/sub/y": 108,
    }
    assert contents == {b"a": b"first\n", b"b": b"second\n", b"odd \xff name": b"odd\n"}
    assert aside == [b"other", b"other/z"]
    assert found[b"link"].target == b"a"
    assert [path for path, seen in found.items() if seen.marked] == [b"odd \xff name"]
    a = found[b"a"]
    assert a == BaselineEntry(
        path=b"a",
        mode=0o100644,
        uid=0,
        gid=0,
        size=6,
        nlink=1,
        mtime_ns=1_500_000_000_123_456_789,
        ctime_ns=a.ctime_ns,
        dev=a.dev,
        ino=a.ino,
        number=101,
        digest=bytes.fromhex("2d08f87025757edff51d4987cf93cb35"),
        target=None,
        saved=(0, 6),
    )
    assert min(a.ctime_ns, a.dev, a.ino) > 0


def test_a_baseline_that_was_condensed(tmp_path: Path) -> None:
    log = (HERE / "v1/baseline/log").read_bytes()
    (tmp_path / "log").write_bytes(b'{"condensed":140000}\n' + log)
    (tmp_path / "log.new").write_bytes(b'{"path":"draft"}\n')
    (tmp_path / "pack").write_bytes((HERE / "v1/baseline/pack").read_bytes())
    with HostDir.at(tmp_path) as directory:
        baseline = Baseline.load(directory)
        seen = baseline.get(b"a")
        assert seen is not None
        assert baseline.content(seen) == b"first\n"
        assert len([*baseline.below(b"")]) == 8
