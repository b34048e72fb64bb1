"""Archives that nobody exported: whatever is in them, importing them makes nothing and touches nothing."""

import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.archive import tar as archive_stream
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store
from tests.support.archived import HONEST_POLICY, Json, Parts, add, directory, file, honest, import_over
from tests.support.tree import assert_same_tree, build, capture

Tamper = Callable[[Parts], bytes]

# What a value may be instead.
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=20),
    st.sampled_from(
        ["..", "/", "a/../b", "\0", "d", "gone", "link/x", "file", "whiteout", "directory", "00" * 16]
    ),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=2),
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "copy", {"a": "old\n", "gone": "gone\n"})


@pytest.fixture
def store() -> Store:
    return Store(Locations.from_environment())


# Each tampering takes an honest archive and makes it say, or be, something else.


def renamed(path: str, new: object) -> Tamper:
    def tamper(parts: Parts) -> bytes:
        parts.entry(path)["path"] = new
        return parts.packed()

    return tamper


def with_entry(entry: Json) -> Tamper:
    def tamper(parts: Parts) -> bytes:
        parts.changes.append(entry)
        return parts.packed()

    return tamper


def with_value(path: str, key: str, value: object) -> Tamper:
    def tamper(parts: Parts) -> bytes:
        parts.entry(path)[key] = value
        return parts.packed()

    return tamper


def with_manifest(key: str, value: object) -> Tamper:
    def tamper(parts: Parts) -> bytes:
        def change(sections: dict[str, bytes]) -> None:
            sections["manifest.json"] = json.dumps(parts.manifest | {key: value}).encode()

        return parts.packed(change)

    return tamper


def with_member(name: str, content: bytes) -> Tamper:
    return lambda parts: parts.packed(lambda sections: sections.update({name: content}))


def without_member(name: str) -> Tamper:
    return lambda parts: parts.packed(lambda sections: sections.__delitem__(name))


def with_baseline_entry(**values: object) -> Tamper:
    def tamper(parts: Parts) -> bytes:
        parts.baseline[0] |= values
        return parts.packed()

    return tamper


def without_root(parts: Parts) -> bytes:
    del parts.changes[0]
    return parts.packed()


def empty_listing(parts: Parts) -> bytes:
    parts.changes, parts.files = [], {}
    return parts.packed()


def twice(parts: Parts) -> bytes:
    parts.changes.append(parts.entry("d/same"))
    return parts.packed()


def baseline_entry_twice(parts: Parts) -> bytes:
    parts.baseline.append(parts.baseline[1])
    return parts.packed()


def with_tar_member(member: tarfile.TarInfo, *, first: bool = False) -> Tamper:
    def tamper(parts: Parts) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            if first:
                add(tar, member)
            for name, content in parts.sections().items():
                add(tar, tarfile.TarInfo(name), content)
            if not first:
                add(tar, member)
        return out.getvalue()

    return tamper


def tar_member(name: str, kind: bytes, target: str = "", **pax: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.pax_headers = kind, target, pax
    return member


def sparse(parts: Parts) -> bytes:
    """GNU's sparse format, by which a header claims a name and a size of its own."""
    pax = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "files/a"}
    return with_tar_member(tar_member("files/x", tarfile.REGTYPE, "", **pax), first=True)(parts)


def damaged_header(parts: Parts) -> bytes:
    archive = bytearray(parts.packed())
    archive[archive.index(b"changes.jsonl")] ^= 1
    return bytes(archive)


def damaged_content(parts: Parts) -> bytes:
    archive = bytearray(parts.packed())
    archive[archive.rindex(b"b\n")] ^= 1
    return bytes(archive)


def truncated(parts: Parts) -> bytes:
    archive = parts.packed()
    return archive[: archive.rindex(b"b\n")]


def without_end(parts: Parts) -> bytes:
    archive = parts.packed()
    return archive[: archive.rindex(b"b\n") // 512 * 512 + 512]


def followed_by_more(parts: Parts) -> bytes:
    return parts.packed() + b"more"


def gzip_truncated(parts: Parts) -> bytes:
    return gzip.compress(parts.packed())[:-6]


def gzip_damaged(parts: Parts) -> bytes:
    archive = bytearray(gzip.compress(parts.packed()))
    archive[-8] ^= 1
    return bytes(archive)


def gzip_followed_by_another(parts: Parts) -> bytes:
    return gzip.compress(parts.packed()) + gzip.compress(b"more")


def header_larger_than_memory(parts: Parts) -> bytes:
    """A PAX header that claims many gigabytes, before there is anything to judge."""
    member = tar_member("x", tarfile.XHDTYPE)
    member.size = 8**11 - 1
    return member.tobuf(tarfile.USTAR_FORMAT) + parts.packed()


def size_that_lies(parts: Parts) -> bytes:
    """The header of a content says less than the listing."""
    return parts.packed(lambda sections: sections.update({"files/a": b"ne"}))


def negative_size(parts: Parts) -> bytes:
    """GNU's base-256 form of a number, with which a size can be negative."""
    archive = bytearray(parts.packed())
    at = archive.index(b"changes.jsonl")
    archive[at + 124 : at + 136] = b"\xff" * 12
    archive[at + 148 : at + 156] = b" " * 8
    archive[at + 148 : at + 156] = b"%06o\0 " % sum(archive[at : at + 512])
    return bytes(archive)


def lying_total(parts: Parts) -> bytes:
    """The manifest announces less than the listing lists."""
    return with_manifest("files", {"count": 2, "size": 3})(parts)


def reordered(parts: Parts) -> bytes:
    def change(sections: dict[str, bytes]) -> None:
        content = sections.pop("files/a")
        sections["files/a"] = content

    return parts.packed(change)


def deep_json(parts: Parts) -> bytes:
    return with_member("manifest.json", b"[" * 200_000)(parts)


def wrong_owner_of_rules(parts: Parts) -> bytes:
    rules = [{"pattern": "a", "mode": "ro", "source": {"kind": kind}} for kind in ("user", "command line")]
    return with_manifest("policy", {**HONEST_POLICY, "rule": rules})(parts)


def bad_pattern(parts: Parts) -> bytes:
    rule = {"pattern": "a[", "mode": "ro", "source": {"kind": "user"}}
    return with_manifest("policy", {**HONEST_POLICY, "rule": [rule]})(parts)


def device(parts: Parts) -> bytes:
    return with_entry({"path": "null", "type": "device", "mode": 0o666, "major": 1, "minor": 3})(parts)


HOSTILE: dict[str, tuple[Tamper, str]] = {
    # Names
    "absolute name": (renamed("a", "/etc/passwd"), "no path inside a workspace"),
    "name that climbs": (renamed("a", "../a"), "no path inside a workspace"),
    "name that climbs on the way": (renamed("d/b", "d/../b"), "no path inside a workspace"),
    "name of the directory itself": (renamed("a", "."), "no path inside a workspace"),
    "empty component": (renamed("d/b", "d//b"), "no path inside a workspace"),
    "slash at the end": (renamed("d", "d/"), "no path inside a workspace"),
    "NUL in a name": (renamed("a", "a\0b"), "no path inside a workspace"),
    "name longer than any": (renamed("a", "a" * 256), "no path inside a workspace"),
    "name that is no text": (renamed("a", "\ud800"), "no sensible 'path'"),
    "name that is a number": (renamed("a", 1), "no sensible 'path'"),
    "name below a symlink": (renamed("d/b", "link/b"), "'link/b' in a symlink"),
    "name below a file": (renamed("d/b", "a/b"), "'a/b' in a file"),
    "name below a whiteout": (renamed("d/b", "gone/b"), "'gone/b' in a whiteout"),
    "name below nothing": (renamed("d/b", "nowhere/b"), "'nowhere/b' in nothing"),
    "name twice": (twice, "lists 'd/same' twice"),
    "root twice": (with_entry(directory("")), "lists '' twice"),
    "root that is a file": (without_root, "'a' in nothing"),
    "nothing at all": (empty_listing, "has no root"),
    "opaque root": (with_value("", "opaque", True), "root"),
    "moved root": (with_value("", "redirect", "d"), "root"),
    # Types and values
    "device": (device, "'null' as something it cannot hold"),
    "device in the tar": (with_tar_member(tar_member("files/x", tarfile.CHRTYPE)), "not a plain file"),
    "symlink in the tar": (with_tar_member(tar_member("d", tarfile.SYMTYPE, "/")), "not a plain file"),
    "hard link in the tar": (
        with_tar_member(tar_member("d", tarfile.LNKTYPE, "/etc/passwd")),
        "not a plain file",
    ),
    "directory in the tar": (with_tar_member(tar_member("d", tarfile.DIRTYPE)), "not a plain file"),
    "hard link out of the archive": (with_value("d/same", "target", "../../x"), "no path inside a workspace"),
    "hard link to what is not there": (with_value("d/same", "target", "nowhere"), "no file in it"),
    "hard link to a directory": (with_value("d/same", "target", "d"), "no file in it"),
    "hard link to a whiteout": (with_value("d/same", "target", "gone"), "no file in it"),
    "hard link to itself": (with_value("d/same", "target", "d/same"), "no file in it"),
    "symlink to nothing": (with_value("link", "target", ""), "no sensible 'target'"),
    "symlink with NUL": (with_value("link", "target", "a\0"), "no sensible 'target'"),
    "mode of another type": (with_value("a", "mode", 0o120777), "no sensible 'mode'"),
    "negative mode": (with_value("a", "mode", -1), "no sensible 'mode'"),
    "owner that is none": (with_value("a", "uid", 1 << 32), "no sensible 'uid'"),
    "time that is none": (with_value("a", "mtime_ns", 1 << 70), "no sensible 'mtime_ns'"),
    "truth instead of a number": (with_value("a", "uid", True), "no sensible 'uid'"),
    "redirect out of the workspace": (with_value("d", "redirect", "../x"), "no path inside a workspace"),
    "redirect to the root": (with_value("d", "redirect", ""), "moved from where nothing can come from"),
    "redirect of a file": (with_value("a", "redirect", "x"), "unknown key 'redirect'"),
    "unknown key": (with_value("a", "acl", "x"), "unknown key 'acl'"),
    "mark as an attribute": (
        with_value("a", "xattrs", {"user.overlay.opaque": "eQ=="}),
        "sets the extended attribute 'user.overlay.opaque'",
    ),
    "label as an attribute": (with_value("a", "xattrs", {"security.selinux": "eQ=="}), "extended attribute"),
    "attribute that is no base64": (with_value("a", "xattrs", {"user.x": "?"}), "no sensible 'xattrs'"),
    # The baseline
    "baseline entry out of the workspace": (with_baseline_entry(path="../a"), "no path inside a workspace"),
    "baseline entry twice": (baseline_entry_twice, "makes no sense"),
    "saved bytes that overlap": (with_baseline_entry(saved=[2, 2]), "makes no sense"),
    "saved bytes that are not there": (with_baseline_entry(saved=[0, 400]), "less, or more, than it says"),
    "saved bytes without a digest": (with_baseline_entry(digest=None), "no sensible 'digest'"),
    # The tar
    "not a tar": (lambda _: b"#!/bin/sh\necho hello\n" * 100, "no archive of sandboxfs"),
    "another tar": (
        with_tar_member(tar_member("README", tarfile.REGTYPE), first=True),
        "'manifest.json' belongs",
    ),
    "empty file": (lambda _: b"", "ends too early"),
    "nothing but zeros": (lambda _: b"\0" * 10240, "ends too early"),
    "unexpected member": (with_member("files/z", b"z"), "unexpected member 'files/z'"),
    "missing content": (without_member("files/d/b"), "ends too early"),
    "missing baseline": (without_member("baseline.jsonl"), "'baseline.jsonl' belongs"),
    "contents in another order": (reordered, "where 'files/a' belongs"),
    "sparse file": (sparse, "unknown key 'GNU.sparse.major'"),
    "PAX key": (
        with_tar_member(tar_member("files/z", tarfile.REGTYPE, linkpath="/")),
        "unknown key 'linkpath'",
    ),
    "GNU's long name": (with_tar_member(tar_member("x", tarfile.GNUTYPE_LONGNAME)), "not a plain file"),
    "header larger than memory": (header_larger_than_memory, "too long"),
    "damaged header": (damaged_header, "damaged"),
    "damaged content": (damaged_content, "'d/b' is not what it was"),
    "truncated": (truncated, "ends too early"),
    "without its end": (without_end, "ends too early"),
    "followed by more": (followed_by_more, "something follows its end"),
    "truncated gzip": (gzip_truncated, "ends too early"),
    "damaged gzip": (gzip_damaged, "gzip cannot unpack it"),
    "gzip followed by another": (gzip_followed_by_another, "something follows its end"),
    "size that lies": (size_that_lies, "not as large as it says"),
    "negative size": (negative_size, "makes no sense"),
    # The manifest
    "manifest that lies about the total": (lying_total, "less, or more, than it says"),
    "manifest with a wrong digest": (
        with_manifest("changes", {"size": 0, "count": 0, "digest": "00" * 16}),
        "not as large as it says",
    ),
    "unknown format": (with_manifest("format", 2), "unknown format 2"),
    "format that is no number": (with_manifest("format", "1"), "no sensible 'format'"),
    "another kind of document": (with_manifest("kind", "x"), "no archive of sandboxfs"),
    "manifest with an unknown key": (with_manifest("run", "rm -rf /"), "unknown key 'run'"),
    "manifest that is no JSON": (with_member("manifest.json", b"{"), "its manifest makes no sense"),
    "manifest nested without end": (deep_json, "its manifest makes no sense"),
    "workspace that is no place": (with_manifest("workspace", "app"), "no sensible 'workspace'"),
    "time without an offset": (with_manifest("created", "2026-01-01"), "no sensible 'created'"),
    "policy that is none": (with_manifest("policy", {"mode": "open"}), "its policy cannot be used"),
    "policy in the wrong order": (wrong_owner_of_rules, "its policy cannot be used"),
    "policy with a bad pattern": (bad_pattern, "its policy cannot be used"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing_behind(
    case: str,
    workspace: Path,
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tamper, complaint = HOSTILE[case]
    archive = tamper(honest())
    before = capture(tmp_path)
    assert import_over(workspace, archive) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("sandboxfs: cannot import ")
    assert complaint in shown.err
    assert not store.locations.state.exists()
    (tmp_path / "changes.archive").unlink()
    assert_same_tree(capture(tmp_path), before, ignoring=frozenset({"mtime_ns", "ctime_ns"}))


def test_a_listing_with_another_digest_is_refused(
    workspace: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = honest()

    def change(sections: dict[str, bytes]) -> None:
        sections["changes.jsonl"] = sections["changes.jsonl"].replace(b'"mtime_ns": 5', b'"mtime_ns": 6')

    assert import_over(workspace, parts.packed(change)) == 2
    assert "'changes.jsonl' is not what it was" in capsys.readouterr().err
    assert not store.locations.state.exists()


def test_saved_bytes_with_another_digest_are_refused(
    workspace: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_over(workspace, with_member("saved.bin", b"OLD\n")(honest())) == 2
    assert "what it saved of the workspace is not what it was" in capsys.readouterr().err
    assert not store.locations.state.exists()


def test_an_archive_that_announces_too_much_is_refused_before_it_is_unpacked(
    workspace: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_over(workspace, with_manifest("files", {"count": 1, "size": 9 << 40})(honest())) == 2
    assert "more than the 8589934592 that are allowed" in capsys.readouterr().err
    assert import_over(workspace, honest().packed(), "--max-size", "10") == 2
    assert not store.locations.state.exists()
    assert import_over(workspace, honest().packed(), "--max-size", "1M") == 0


def test_an_archive_that_unpacks_to_far_more_than_it_is_needs_a_word(
    workspace: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(archive_stream, "_RATE_COUNTS_FROM", 1 << 20)
    parts = honest()
    parts.changes[1] = file("a", b"\0" * (8 << 20))
    parts.files["a"] = b"\0" * (8 << 20)
    bomb = gzip.compress(parts.packed())
    assert import_over(workspace, bomb) == 2
    assert "more than 100 times its size" in capsys.readouterr().err
    assert not store.locations.state.exists()
    assert import_over(workspace, bomb, "--max-size", "20M") == 0


def test_zeros_without_end_after_an_archive_are_refused(
    workspace: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_over(workspace, gzip.compress(honest().packed() + b"\0" * (1 << 20))) == 2
    assert "it holds more than it says" in capsys.readouterr().err
    assert not store.locations.state.exists()


def test_an_import_that_fails_on_the_way_leaves_nothing_behind(
    workspace: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    assert import_over(workspace, honest().packed()) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not store.locations.state.exists()


def test_an_interrupted_import_leaves_nothing_behind(
    workspace: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "ftruncate", interrupt)
    assert import_over(workspace, honest().packed()) == 130
    assert not store.locations.state.exists()


@given(data=st.data())
def test_an_archive_with_any_bytes_changed_is_refused_or_whole(data: st.DataObject) -> None:
    """Checksums and digests catch nearly everything; what they do not must be as harmless."""
    archive = bytearray(honest().packed())
    for _ in range(data.draw(st.integers(1, 3))):
        archive[data.draw(st.integers(0, len(archive) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(archive), len(archive) // 2, 512, 1000]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDBOXFS_STATE_DIR", f"{folder}/state")
        status = import_over(build(Path(folder, "copy"), {"a": "old\n"}), bytes(archive[:end]))
        made = Store(Locations.from_environment()).names()
    assert (status, made) in ((0, ["app"]), (2, []))


@given(data=st.data())
def test_an_archive_with_any_value_changed_is_refused_or_whole(data: st.DataObject) -> None:
    parts = honest()
    lines = [*parts.changes, *parts.baseline, parts.manifest]
    line = data.draw(st.sampled_from(lines))
    key = data.draw(st.sampled_from(sorted(line)))
    line[key] = data.draw(VALUES)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDBOXFS_STATE_DIR", f"{folder}/state")
        workspace = build(Path(folder, "copy"), {"a": "old\n"})
        before = capture(workspace)
        status = import_over(workspace, parts.packed())
        assert_same_tree(capture(workspace), before)
        made = Store(Locations.from_environment()).names()
    assert (status, len(made)) in ((0, 1), (2, 0))
