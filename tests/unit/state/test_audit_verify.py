"""Whatever is done to a log that was written, verification names the first record that shows it."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.state.audit import AuditLog
from sandboxfs.state.audit_file import kept_files
from sandboxfs.state.audit_verify import Verdict, verify

COUNT = 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of one file with thirty records."""
    made = tmp_path / "audit.jsonl"
    log = AuditLog(made, "app")
    for number in range(COUNT):
        log.record("write", "write", b"src/file-%d" % number, "rw", None, True, os.getpid(), 0, command="x")
    log.close()
    return made


@pytest.fixture
def rotated(tmp_path: Path) -> Path:
    """A log of four files whose oldest records are gone."""
    made = tmp_path / "rotated" / "audit.jsonl"
    made.parent.mkdir()
    log = AuditLog(made, "app", size_limit=2000, keep=4)
    for number in range(200):
        log.record("write", "write", b"src/file-%d" % number, "rw", None, True, os.getpid(), 0, command="x")
        if number % 4 == 0:
            log.flush()
    log.close()
    assert len(kept_files(made)) == 4
    return made


def edited(path: Path, edit: Callable[[list[bytes]], list[bytes]]) -> Verdict:
    """Change the lines of the file at *path* and verify it."""
    lines = path.read_bytes().split(b"\n")[:-1]
    path.write_bytes(b"".join(line + b"\n" for line in edit(lines)))
    return verify(path, "app")


def test_a_whole_log_verifies_and_has_a_head(path: Path) -> None:
    verdict = verify(path, "app")
    assert verdict.broken is None
    assert (verdict.records, verdict.first, verdict.last) == (COUNT, 1, COUNT)
    assert len(verdict.head) == 64


def test_an_empty_or_missing_log_verifies(tmp_path: Path) -> None:
    assert verify(tmp_path / "audit.jsonl", "app") == verify(tmp_path / "nowhere" / "audit.jsonl", "app")
    assert verify(tmp_path / "audit.jsonl", "app").broken is None


def test_the_log_of_another_sandbox_does_not_verify(path: Path) -> None:
    broken = verify(path, "other").broken
    assert broken is not None
    assert (broken.line, broken.seq) == (1, 1)


def test_any_change_of_a_single_byte_is_named(path: Path) -> None:
    original = path.read_bytes()
    chosen = random.Random(5)
    places = {*chosen.sample(range(len(original)), 400), *range(len(original) - 300, len(original))}
    for place in sorted(places):
        changed = bytearray(original)
        changed[place] ^= 1 << chosen.randrange(8)
        path.write_bytes(changed)
        broken = verify(path, "app").broken
        assert broken is not None, f"byte {place}"
        line = original.count(b"\n", 0, place) + 1
        assert broken.line == line, f"byte {place}: {broken}"
        assert broken.file == "audit.jsonl"


def test_a_deleted_record_is_named(path: Path) -> None:
    broken = edited(path, lambda lines: lines[:9] + lines[10:]).broken
    assert str(broken) == "audit.jsonl:10 (seq 10): seq 11 is here instead: 1 record is missing"


def test_deleted_records_at_the_beginning_are_named(path: Path) -> None:
    broken = edited(path, lambda lines: lines[3:]).broken
    assert str(broken) == "audit.jsonl:1 (seq 4): the records before it are missing"


def test_exchanged_records_are_named(path: Path) -> None:
    broken = edited(path, lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]]).broken
    assert broken is not None
    assert (broken.line, broken.seq) == (5, 5)


def test_a_repeated_record_is_named(path: Path) -> None:
    broken = edited(path, lambda lines: [*lines[:5], lines[4], *lines[5:]]).broken
    assert broken is not None
    assert broken.line == 6
    assert "repeated" in broken.problem


def test_a_record_replaced_by_a_well_made_one_is_named(path: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    log = AuditLog(forged, "app")
    for _ in range(COUNT):
        log.record("write", "write", b"innocent", "rw", None, True, os.getpid(), 0)
    log.close()
    other = forged.read_bytes().split(b"\n")
    broken = edited(path, lambda lines: [*lines[:7], other[7], *lines[8:]]).broken
    assert broken is not None
    assert (broken.line, broken.seq) == (8, 8)


def test_a_truncation_in_the_middle_is_named(rotated: Path) -> None:
    middle = rotated.with_name("audit.jsonl.2")
    os.truncate(middle, middle.stat().st_size - 30)
    broken = verify(rotated, "app").broken
    assert broken is not None
    assert (broken.file, broken.problem) == ("audit.jsonl.2", "the last line is not whole")


def test_a_truncation_between_two_records_in_the_middle_is_named(rotated: Path) -> None:
    middle = rotated.with_name("audit.jsonl.2")
    middle.write_bytes(b"".join(line + b"\n" for line in middle.read_bytes().split(b"\n")[:-2]))
    broken = verify(rotated, "app").broken
    assert broken is not None
    assert (broken.file, broken.line) == ("audit.jsonl.1", 1)
    assert "1 record is missing" in broken.problem


def test_a_truncated_end_inside_a_line_is_named(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)
    broken = verify(path, "app").broken
    assert broken is not None
    assert (broken.line, broken.seq, broken.problem) == (COUNT, COUNT, "the last line is not whole")


def test_a_missing_file_in_the_middle_is_named(rotated: Path) -> None:
    assert verify(rotated, "app").broken is None
    rotated.with_name("audit.jsonl.2").unlink()
    broken = verify(rotated, "app").broken
    assert broken is not None
    assert (broken.file, broken.line) == ("audit.jsonl.1", 1)
    assert "missing" in broken.problem


def test_a_missing_old_end_is_what_rotation_does_unless_a_file_begins_in_the_middle(rotated: Path) -> None:
    oldest = rotated.with_name("audit.jsonl.3")
    lines = oldest.read_bytes().split(b"\n")
    oldest.write_bytes(b"\n".join(lines[1:]))
    broken = verify(rotated, "app").broken
    assert broken is not None
    assert (broken.file, broken.line, broken.problem) == (
        "audit.jsonl.3",
        1,
        "the records before it are missing",
    )
    oldest.unlink()
    assert verify(rotated, "app").broken is None


@pytest.mark.parametrize(
    "rubbish", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"seq":"1"}', b"1" * 10_000]
)
def test_rubbish_is_named_and_crashes_nothing(rubbish: bytes, path: Path) -> None:
    broken = edited(path, lambda lines: [*lines[:2], rubbish, *lines[3:]]).broken
    assert str(broken) == "audit.jsonl:3 (seq 3): not a record"
