"""What the sandbox did on one machine is what is found on another, over a copy of the workspace."""

import io
import os
import stat
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.archive import collect
from sandboxfs.archive.collect import Changing, collect_archive
from sandboxfs.archive.format import ArchiveEntry, EntryType
from sandboxfs.archive.read import HostMapping
from sandboxfs.archive.tar import ArchiveSink
from sandboxfs.archive.write import Changed, write_archive
from sandboxfs.errors import SandboxBusy
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.inode_table import Numbers
from sandboxfs.review.scan import scan
from sandboxfs.upper.baseline import Baseline
from sandboxfs.upper.sandbox_layers import LayerPaths, Layers, open_layers
from sandboxfs.upper.walk import UpperMap, map_upper
from tests.support import conditions
from tests.support.archived import Imported, Parts, copied, digest, exported, manifest_of, origin
from tests.support.core_driver import CoreDriver
from tests.support.observe import Observed, differences, observe
from tests.support.reviewed import Reviewed, in_short
from tests.support.syscalls import RENAME_EXCHANGE
from tests.support.tree import (
    Directory,
    Fifo,
    File,
    HardLink,
    Symlink,
    Tree,
    assert_same_tree,
    build,
    capture,
)
from tests.unit.conftest import Review

EVERYTHING: Tree = {
    "kept": "kept\n",
    "written": "old\n",
    "deleted": "gone\n",
    "moved": "moved\n",
    "script": File("#!/bin/sh\n", mode=0o755),
    "tagged": File("tagged\n", xattrs={"user.colour": b"red"}),
    "link": Symlink("kept"),
    "fifo": Fifo(),
    "large": b"large\n" * 400_000,
    "tree/one": "1\n",
    "tree/deep/two": "2\n",
    "travels/inner": "inner\n",
    "travels/also": "also\n",
    "replaced/old": "old\n",
    "becomes-file/x": "x\n",
    "becomes-directory": "file\n",
    "hard1": "shared\n",
    "sub/hard2": HardLink("hard1"),
    b"odd \xff\nname": "odd\n",
    "untouched/": Directory(),
}


def change_everything(sandbox: CoreDriver) -> None:
    """Make every kind of change."""
    sandbox.write("written", b"new\n")
    sandbox.unlink("deleted")
    sandbox.rename("moved", "moved-away")
    sandbox.chmod("script", 0o644)
    sandbox.setxattr("tagged", "user.colour", b"blue")
    sandbox.unlink("link")
    sandbox.symlink("elsewhere", "link")
    sandbox.unlink("fifo")
    sandbox.append("large", b"more\n")
    sandbox.remove_tree("tree")
    sandbox.rename("travels", "travelled")
    sandbox.write("travelled/inner", b"changed on the way\n")
    sandbox.remove_tree("replaced")
    sandbox.mkdir("replaced")
    sandbox.create("replaced/new", b"new\n")
    sandbox.remove_tree("becomes-file")
    sandbox.create("becomes-file", b"file\n")
    sandbox.unlink("becomes-directory")
    sandbox.mkdir("becomes-directory")
    sandbox.append("hard1", b"changed under one name\n")
    sandbox.write(b"odd \xff\nname", b"odder\n")
    sandbox.create(b"new \xfe", b"\0" * 200_000 + b"end", mode=0o600)
    sandbox.link(b"new \xfe", "new-too")
    sandbox.setxattr("new-too", "user.note", b"\0binary\xff")
    sandbox.mkfifo("queue", 0o640)
    sandbox.mkdir("made", 0o751)
    sandbox.mkdir("made/empty")
    sandbox.create("made/" + "long" * 40)


@pytest.fixture
def busy_sandbox(review: Review) -> Reviewed:
    sandbox = review(EVERYTHING)
    change_everything(sandbox)
    return sandbox


def test_everything_found_in_one_place_is_found_in_the_other(busy_sandbox: Reviewed, tmp_path: Path) -> None:
    copy = copied(busy_sandbox.host, tmp_path / "copy")
    imported = Imported(tmp_path / "elsewhere", exported(busy_sandbox.paths), copy)
    assert imported.found() == busy_sandbox.found()
    assert [finding.conflict for finding in imported.findings() if finding.conflict] == []
    assert "renamed moved -> moved-away" in imported.found()
    assert "renamed travels -> travelled/" in imported.found()
    assert {"modified hard1", "modified sub/hard2"} <= set(imported.found())


def test_the_view_of_the_imported_sandbox_is_the_view_that_was_exported(
    busy_sandbox: Reviewed, tmp_path: Path
) -> None:
    copy = copied(busy_sandbox.host, tmp_path / "copy")
    before = capture(copy)
    imported = Imported(tmp_path / "elsewhere", exported(busy_sandbox.paths), copy)
    imported.start()
    try:
        assert differences(observe(imported), observe(busy_sandbox)) == []
    finally:
        imported.abandon()
    assert_same_tree(capture(copy), before, what="the copy of the workspace")


def test_a_copy_that_was_edited_is_in_conflict_where_it_was(busy_sandbox: Reviewed, tmp_path: Path) -> None:
    copy = copied(busy_sandbox.host, tmp_path / "copy")
    for name in ("written", "large", "moved", "kept"):
        with (copy / name).open("ab") as file:
            file.write(b"edited on the other machine\n")
    (copy / "new-too").write_text("made on the other machine\n")
    (copy / "deleted").unlink()
    imported = Imported(tmp_path / "elsewhere", exported(busy_sandbox.paths), copy)
    conflicts = {finding.path for finding in imported.findings() if finding.conflict}
    assert conflicts == {b"written", b"large", b"moved-away", b"new-too"}
    assert "deleted deleted" not in imported.found()


def test_a_copy_with_other_times_is_no_conflict(busy_sandbox: Reviewed, tmp_path: Path) -> None:
    copy = copied(busy_sandbox.host, tmp_path / "copy")
    for folder, _, names in os.walk(copy):
        for name in names:
            os.utime(os.path.join(folder, name), ns=(1, 1), follow_symlinks=False)
    imported = Imported(tmp_path / "elsewhere", exported(busy_sandbox.paths), copy)
    assert imported.found() == busy_sandbox.found()


def test_the_same_archive_comes_out_gzipped_and_plain(busy_sandbox: Reviewed, tmp_path: Path) -> None:
    copy = copied(busy_sandbox.host, tmp_path / "copy")
    plain, packed = exported(busy_sandbox.paths), exported(busy_sandbox.paths, gzip=True)
    assert len(packed) < len(plain) // 2
    imported = Imported(tmp_path / "elsewhere", packed, copy)
    assert imported.found() == busy_sandbox.found()


def test_an_imported_sandbox_can_be_exported_again(busy_sandbox: Reviewed, tmp_path: Path) -> None:
    copy = copied(busy_sandbox.host, tmp_path / "copy")
    once = Imported(tmp_path / "once", exported(busy_sandbox.paths), copy)
    twice = Imported(tmp_path / "twice", exported(once.paths), copied(copy, tmp_path / "further"))
    assert twice.found() == busy_sandbox.found()


def test_any_tar_program_lists_and_unpacks_an_archive(busy_sandbox: Reviewed, tmp_path: Path) -> None:
    archive = tmp_path / "changes.tgz"
    archive.write_bytes(exported(busy_sandbox.paths, gzip=True))
    with tarfile.open(archive) as tar:
        assert tar.getnames()[:4] == ["manifest.json", "baseline.jsonl", "saved.bin", "changes.jsonl"]
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    done = subprocess.run(["tar", "-xf", archive, "-C", unpacked], capture_output=True, check=True)
    assert done.stderr == b""
    assert (unpacked / "files" / "written").read_bytes() == b"new\n"
    assert (unpacked / "files" / "made" / ("long" * 40)).is_file()
    assert os.path.exists(os.fsencode(unpacked) + b"/files/new \xfe")


# What an archive says


def test_an_archive_holds_no_number_by_which_only_this_machine_knows_files(busy_sandbox: Reviewed) -> None:
    parts = Parts.of(exported(busy_sandbox.paths))
    assert parts.baseline
    for seen in parts.baseline:
        assert not {"dev", "ino", "ctime_ns"} & seen.keys()


def test_the_names_that_the_index_leads_to_are_links_in_an_archive(busy_sandbox: Reviewed) -> None:
    parts = Parts.of(exported(busy_sandbox.paths))
    assert parts.entry("hard1")["type"] == "file"
    assert parts.entry("sub/hard2") == {"path": "sub/hard2", "type": "link", "target": "hard1"}
    assert parts.entry("sub")["type"] == "directory"


def test_a_file_changed_under_a_name_that_is_gone_lives_on_under_the_others(
    review: Review, tmp_path: Path
) -> None:
    sandbox = review({"a": "shared\n", "b": HardLink("a"), "d/c": HardLink("a")})
    sandbox.append("a", b"more\n")
    sandbox.unlink("a")
    copy = copied(sandbox.host, tmp_path / "copy")
    imported = Imported(tmp_path / "elsewhere", exported(sandbox.paths), copy)
    assert imported.found() == ["deleted a", "modified b", "modified d/c"]
    assert (imported.upper / "b").read_bytes() == b"shared\nmore\n"
    assert os.path.samefile(imported.upper / "b", imported.upper / "d" / "c")


def test_a_large_file_that_the_workspace_still_has_gets_a_digest(review: Review, tmp_path: Path) -> None:
    content = b"x" * (3 << 20)
    sandbox = review({"same": content, "edited": content})
    sandbox.append("same", b"y")
    sandbox.append("edited", b"y")
    with (sandbox.host / "edited").open("ab") as file:
        file.write(b"z")
    seen = {line["path"]: line for line in Parts.of(exported(sandbox.paths)).baseline}
    assert "digest" in seen["same"]
    assert "digest" not in seen["edited"]
    copy = copied(sandbox.host, tmp_path / "copy")
    imported = Imported(tmp_path / "elsewhere", exported(sandbox.paths), copy)
    assert imported.found() == ["modified edited!", "modified same"]


def test_what_the_baseline_saved_can_be_read_on_the_other_side(review: Review, tmp_path: Path) -> None:
    sandbox = review({"a": "old a\n", "b": "old b\n", "c": ""})
    for name in "abc":
        sandbox.write(name, b"new\n")
    copy = copied(sandbox.host, tmp_path / "copy")
    imported = Imported(tmp_path / "elsewhere", exported(sandbox.paths), copy)
    with HostDir.at(imported.baseline) as directory:
        baseline = Baseline.load(directory)
        seen = [baseline.get(name) for name in (b"a", b"b", b"c")]
        assert [one and baseline.content(one) for one in seen] == [b"old a\n", b"old b\n", b""]


def test_numbers_are_given_anew_where_no_lower_file_has_any(busy_sandbox: Reviewed, tmp_path: Path) -> None:
    imported = Imported(
        tmp_path / "elsewhere", exported(busy_sandbox.paths), copied(busy_sandbox.host, tmp_path / "copy")
    )
    with HostDir.at(imported.baseline) as directory:
        numbers = [seen.number for seen in Baseline.load(directory).below(b"")]
    assert {number >> 56 for number in numbers} == {Numbers.random() >> 56}
    with open_layers(imported.paths) as layers:
        again = [entry.number for entry in collect_archive(layers, Changing()).entries if entry.number]
    assert again
    assert {number >> 56 for number in again} == {Numbers.random() >> 56}


def test_the_number_of_a_symlink_comes_along(review: Review, tmp_path: Path) -> None:
    sandbox = review({"link": Symlink("nowhere")})
    sandbox.rename("link", "renamed")
    copy = copied(sandbox.host, tmp_path / "copy")
    imported = Imported(tmp_path / "elsewhere", exported(sandbox.paths), copy)
    assert imported.found() == sandbox.found()
    assert [name[0] for name in os.listdir(imported.index)] == ["i"]


def test_a_device_is_left_out_and_hides_what_was_there(tmp_path: Path) -> None:
    places = LayerPaths([tmp_path / "w"], tmp_path / "u", tmp_path / "i", tmp_path / "b")
    for path in (*places.lowers, places.upper, places.index, places.baseline):
        path.mkdir()
    conditions.require_root()
    os.mknod(places.upper / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with open_layers(places) as layers:
        found = collect_archive(layers, Changing())
    assert found.left_out == [b"null"]
    assert [(entry.path, entry.type) for entry in found.entries[1:]] == [(b"null", EntryType.WHITEOUT)]


def test_holes_stay_holes(review: Review, tmp_path: Path) -> None:
    sandbox = review({})
    sandbox.create("sparse", b"begin")
    sandbox.truncate("sparse", 64 << 20)
    archive = exported(sandbox.paths, gzip=True)
    assert len(archive) < 1 << 20
    imported = Imported(tmp_path / "elsewhere", archive, copied(sandbox.host, tmp_path / "copy"))
    made = (imported.upper / "sparse").stat()
    assert made.st_size == 64 << 20
    assert made.st_blocks * 512 < 1 << 20


def test_whiteouts_are_written_as_the_filesystem_can(review: Review, tmp_path: Path) -> None:
    sandbox = review({"a": "1\n", "d/b": "2\n"})
    sandbox.unlink("a")
    sandbox.unlink("d/b")
    copy = copied(sandbox.host, tmp_path / "copy")
    imported = Imported(tmp_path / "elsewhere", exported(sandbox.paths), copy, devices=False)
    assert (imported.upper / "a").is_file()
    assert imported.found() == ["deleted a", "deleted d/b"]


def test_modes_owners_and_times_come_along(review: Review, tmp_path: Path) -> None:
    sandbox = review({})
    sandbox.mkdir("locked")
    sandbox.create("locked/file", b"x")
    sandbox.chmod("locked/file", 0o4711)
    sandbox.utime("locked/file", 1, 123_456_789)
    sandbox.chmod("locked", 0o555)
    sandbox.utime("locked", 1, 987_654_321)
    archive = exported(sandbox.paths)
    imported = Imported(tmp_path / "elsewhere", archive, copied(sandbox.host, tmp_path / "copy"))
    locked, file = (os.lstat(imported.upper / name) for name in ("locked", "locked/file"))
    assert (stat.S_IMODE(locked.st_mode), locked.st_mtime_ns) == (0o555, 987_654_321)
    assert (stat.S_IMODE(file.st_mode), file.st_mtime_ns) == (0o4711, 123_456_789)
    assert imported.report.special == [b"locked/file"]


def test_what_its_owner_may_not_read_is_exported_and_keeps_its_modes(review: Review, tmp_path: Path) -> None:
    sandbox = review({})
    sandbox.mkdir("secret")
    sandbox.create("secret/file", b"content")
    sandbox.setxattr("secret/file", "user.note", b"kept")
    sandbox.symlink("target", "secret/link")
    for path in ("secret/file", "secret"):
        sandbox.chmod(path, 0)
    before = os.lstat(sandbox.upper / "secret").st_mode
    archive = exported(sandbox.paths)
    assert os.lstat(sandbox.upper / "secret").st_mode == before
    parts = Parts.of(archive)
    assert parts.files == {"secret/file": b"content"}
    assert parts.entry("secret/file")["xattrs"] == {"user.note": "a2VwdA=="}
    assert parts.entry("secret/link")["target"] == "target"
    imported = Imported(tmp_path / "elsewhere", archive, copied(sandbox.host, tmp_path / "copy"))
    assert stat.S_IMODE(os.lstat(imported.upper / "secret").st_mode) == 0
    assert Parts.of(exported(imported.paths)).files == parts.files
    for upper in (sandbox.upper, imported.upper):
        # So that whoever sweeps up can.
        (upper / "secret").chmod(0o700)


# While programs are writing


def test_a_file_that_grows_is_taken_as_it_was(review: Review, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = review({})
    sandbox.create("log", b"first\n")

    def read(fd: int, size: int, at: int) -> bytes:
        data = pread(fd, size, at)
        with (sandbox.upper / "log").open("ab") as log:
            log.write(b"another line\n")
        return data

    pread = os.pread
    monkeypatch.setattr(os, "pread", read)
    assert Parts.of(exported(sandbox.paths)).files["log"].startswith(b"first\n")


class Restless:
    """Makes a file another one whenever it is read."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._count = 0
        self._pread = os.pread
        monkeypatch.setattr(os, "pread", self)

    def __call__(self, fd: int, size: int, at: int) -> bytes:
        data = self._pread(fd, size, at)
        self._count += 1
        with self._path.open("r+b") as file:
            file.write(b"%08d" % self._count)
        return data


def test_a_file_that_never_stands_still_is_refused(review: Review, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = review({})
    sandbox.create("busy", b"........")
    Restless(sandbox.upper / "busy", monkeypatch)
    with pytest.raises(SandboxBusy, match="'busy' is still changing"):
        exported(sandbox.paths)


def test_a_file_that_never_stands_still_is_taken_if_that_is_wanted(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = review({})
    sandbox.create("busy", b"........")
    Restless(sandbox.upper / "busy", monkeypatch)
    parts = Parts.of(exported(sandbox.paths, take_changing=True))
    assert parts.files["busy"].isdigit()
    assert parts.entry("busy")["digest"] == digest(parts.files["busy"])


def test_a_file_that_changed_after_it_was_looked_at_ends_the_writing(review: Review) -> None:
    sandbox = review({})
    sandbox.create("file", b"one")
    with sandbox.layers() as layers:
        found = collect_archive(layers, Changing())
        sandbox.write("file", b"two")
        with pytest.raises(Changed) as raised:
            write_archive(ArchiveSink(io.BytesIO().write, gzip=False), origin(), layers, found)
    assert raised.value.path == b"file"


def test_an_upper_that_is_rearranged_meanwhile_is_looked_at_again(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = review({})
    sandbox.mkdir("a")
    sandbox.create("a/early", b"x")
    sandbox.mkdir("b")
    moves = [("a/early", "b/late")]

    def look(layers: Layers) -> UpperMap:
        upper = map_upper(layers)
        if moves:
            sandbox.rename(*moves.pop())
        return upper

    monkeypatch.setattr(collect, "map_upper", look)
    with sandbox.layers() as layers:
        paths = [entry.path for entry in collect_archive(layers, Changing()).entries]
    assert sorted(paths) == [b"", b"a", b"b", b"b/late"]


def test_an_upper_in_which_nothing_stays_is_refused(review: Review, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = review({})
    numbers = iter(range(100))

    def look(layers: Layers) -> UpperMap:
        upper = map_upper(layers)
        sandbox.create(f"file-{next(numbers)}")
        return upper

    monkeypatch.setattr(collect, "map_upper", look)
    with sandbox.layers() as layers, pytest.raises(SandboxBusy, match="come and go"):
        collect_archive(layers, Changing())


def test_a_manifest_says_whose_changes_follow_and_how_many(busy_sandbox: Reviewed) -> None:
    archive = exported(busy_sandbox.paths)
    manifest, parts = manifest_of(archive), Parts.of(archive)
    assert (manifest.origin.name, manifest.origin.workspace) == ("app", b"/srv/app")
    assert (manifest.changes.count, manifest.baseline.count) == (len(parts.changes), len(parts.baseline))
    assert (manifest.files, manifest.saved.size) == (len(parts.files), len(parts.saved))


# Another machine


def test_a_copy_made_under_another_umask_is_no_conflict(review: Review, tmp_path: Path) -> None:
    sandbox = review({"a": "a\n", "b": "b\n", "script": File("#!/bin/sh\n", mode=0o755), "d/c": "c\n"})
    for name in ("a", "script", "d/c"):
        sandbox.append(name, b"more\n")
    sandbox.chmod("b", 0o600)
    copy = copied(sandbox.host, tmp_path / "copy")
    for name, mode in {"a": 0o664, "b": 0o664, "script": 0o775, "d/c": 0o640, "d": 0o775}.items():
        (copy / name).chmod(mode)
    imported = Imported(tmp_path / "elsewhere", exported(sandbox.paths), copy)
    assert imported.found() == ["modified a", "mode b", "modified d/c", "modified script"]
    expected = {"a": 0o664, "b": 0o600, "script": 0o775, "d/c": 0o640}
    assert {name: stat.S_IMODE(os.stat(imported.upper / name).st_mode) for name in expected} == expected


def test_a_copy_whose_owner_lost_or_won_a_right_is_a_conflict(review: Review, tmp_path: Path) -> None:
    sandbox = review({"a": "a\n"})
    sandbox.append("a", b"more\n")
    copy = copied(sandbox.host, tmp_path / "copy")
    (copy / "a").chmod(0o744)
    imported = Imported(tmp_path / "elsewhere", exported(sandbox.paths), copy)
    assert imported.found() == ["modified a!"]


def adapter(root: Path, *, may_give_away: bool) -> HostMapping:
    def look(path: bytes) -> os.stat_result | None:
        return None if path else os.stat(root)

    return HostMapping(look, (1000, 2000), may_give_away=may_give_away)


def test_what_belonged_to_the_owner_of_the_workspace_belongs_to_its_owner_here(tmp_path: Path) -> None:
    adapted = adapter(tmp_path, may_give_away=True).entry(
        ArchiveEntry(b"a", EntryType.FILE, uid=1000, gid=2000)
    )
    assert (adapted.uid, adapted.gid) == (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    other = adapter(tmp_path, may_give_away=True).entry(ArchiveEntry(b"a", EntryType.FILE, uid=7, gid=8))
    assert (other.uid, other.gid) == (7, 8)


def test_whoever_cannot_give_files_away_owns_them_all(tmp_path: Path) -> None:
    adapted = adapter(tmp_path, may_give_away=False).entry(ArchiveEntry(b"a", EntryType.FILE, uid=7, gid=8))
    assert (adapted.uid, adapted.gid) == (os.geteuid(), os.getegid())


# Anything

SEED: Tree = {"a": "1\n", "b": "2\n", "d/a": "3\n", "d/e/a": "4\n", "d/c": HardLink("a"), "c/x": "5\n"}
NAMES = st.sampled_from(["a", "b", "c", "d/a", "d/b", "d/e/a", "d", "d/e", "f"])
STEPS = st.lists(st.tuples(st.sampled_from("wmdrnlsx"), NAMES, NAMES), max_size=14)


def do(sandbox: CoreDriver, step: str, path: str, other: str) -> None:
    """Do something, if that can be done."""
    with suppress(OSError):
        match step:
            case "w":
                sandbox.write(path, f"written at {other}\n".encode())
            case "m":
                sandbox.mkdir(path)
            case "d":
                sandbox.remove_tree(path) if sandbox.is_dir(path) else sandbox.unlink(path)
            case "r":
                sandbox.rename(path, other)
            case "n":
                sandbox.rename(path, other, RENAME_EXCHANGE)
            case "l":
                sandbox.link(path, other)
            case "s":
                sandbox.symlink(other, path)
            case _:
                sandbox.chmod(path, 0o700)


@given(steps=STEPS)
def test_whatever_a_sandbox_did_arrives(steps: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tree: Tree = {
            "a": "1\n",
            "b": "2\n",
            "d/a": "3\n",
            "d/e/a": "4\n",
            "d/c": HardLink("a"),
            "c/x": "5\n",
        }
        sandbox = CoreDriver(place / "state", build(place / "workspace", tree))
        try:
            for step in steps:
                do(sandbox, *step)
            paths = LayerPaths([sandbox.lower], sandbox.upper, sandbox.index, sandbox.baseline)
            copy = copied(sandbox.lower, place / "copy")
            imported = Imported(place / "elsewhere", exported(paths), copy)
            with open_layers(paths) as layers:
                assert imported.found() == [in_short(finding) for finding in scan(layers)]
            imported.start()
            assert differences(seen(imported), seen(sandbox)) == []
            imported.abandon()
        finally:
            sandbox.abandon()


def seen(sandbox: CoreDriver) -> Observed:
    """What the view shows, but for link counts, which only whoever took names away can tell."""
    shown = observe(sandbox)
    names = {path: one._replace(nlink=None) for path, one in shown.names.items()}
    return Observed(names, shown.inodes)
