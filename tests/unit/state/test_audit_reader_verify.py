"""Whatever is done to a log that was written, verification names the first record that shows it."""

import json
import os
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.state.audit import AuditLog
from sandboxfs.state.audit_file import (
    AuditCopies,
    AuditHead,
    Link,
    copies_paths,
    head_path,
    kept_files,
    unwrapped,
    write_head,
)
from sandboxfs.state.audit_reader import ChainVerdict, older_records, read_lines, verify
from sandboxfs.state.audit_record import digest

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


def edited(path: Path, edit: Callable[[list[bytes]], list[bytes]]) -> ChainVerdict:
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


def test_a_missing_old_end_is_named_unless_rotation_did_it(rotated: Path) -> None:
    verdict = verify(rotated, "app")
    assert verdict.broken is None
    assert verdict.first is not None
    assert verdict.first > 1
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
    broken = verify(rotated, "app").broken
    assert broken is not None
    assert (broken.file, broken.line, broken.seq) == ("audit.jsonl", None, verdict.first)


@pytest.mark.parametrize(
    "rubbish", [b"", b"null", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"seq":"1"}', b"1" * 10_000]
)
def test_rubbish_is_named_and_crashes_nothing(rubbish: bytes, path: Path) -> None:
    broken = edited(path, lambda lines: [*lines[:2], rubbish, *lines[3:]]).broken
    assert str(broken) == "audit.jsonl:3 (seq 3): not a record"


def cut_off(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join(lines[:-2]) + b"\n")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def replace_by_another(path: Path) -> None:
    """Put a well-made log of the same sandbox, with as many records, in its place."""
    other = path.parent / "forged"
    other.mkdir()
    log = AuditLog(other / path.name, "app")
    for _ in range(COUNT):
        log.record("write", "write", b"innocent", "rw", None, True, os.getpid(), 0, command="x")
    log.close()
    (other / path.name).replace(path)


def go_on(path: Path) -> None:
    """Write another session."""
    log = AuditLog(path, "app")
    log.event("mounted")
    log.record("write", "write", b"more", "rw", None, True, os.getpid(), 0, command="x")
    log.event("unmounted")
    log.close()


@pytest.mark.parametrize("do", [cut_off, empty, remove, replace_by_another])
@pytest.mark.parametrize("again", [False, True])
def test_a_log_that_was_cut_off_emptied_removed_or_replaced_does_not_verify(
    path: Path, do: Callable[[Path], None], again: bool
) -> None:
    assert verify(path, "app").broken is None
    do(path)
    if again:
        # Nor does it after another session, which says so by itself.
        go_on(path)
        reasons = [json.loads(line).get("reason") for line in path.read_bytes().splitlines()]
        assert {"records at the end are missing", "the log was replaced by another one"} & set(reasons)
    broken = verify(path, "app").broken
    assert broken is not None
    assert "missing" in broken.problem or "replaced" in broken.problem


@pytest.mark.parametrize("behind", [0, 1, 7, COUNT - 1])
def test_a_head_that_a_crash_left_behind_is_no_alarm(path: Path, behind: int) -> None:
    lines = path.read_bytes().splitlines()
    known = COUNT - behind
    write_head(path, AuditHead(Link(1, known, digest(lines[known - 1]))))
    assert verify(path, "app").broken is None
    go_on(path)
    assert verify(path, "app").broken is None


def test_killing_the_writer_at_any_moment_leaves_a_log_that_verifies(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    script = (
        "import sys\nfrom pathlib import Path\nfrom sandboxfs.state.audit import AuditLog\n"
        "log = AuditLog(Path(sys.argv[1]), 'app', size_limit=4000, keep=2)\nlog.event('mounted')\n"
        "print('up', flush=True)\n"
        "for number in range(10**9):\n"
        "    log.record('write', 'write', b'%d' % number, 'rw', None, number % 3 > 0, 1, 0, command='x')\n"
        "    number % 20 or log.flush()\n"
    )
    chance = random.Random(7)
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(chance.uniform(0.02, 0.2))
            writer.kill()
        verdict = verify(path, "app")
        assert verdict.broken is None or verdict.broken.problem == "the last line is not whole"


def test_a_program_cannot_push_denials_and_events_out_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, "app", size_limit=4000, keep=2)
    log.event("mounted")
    log.record("open", "write", b"secret", "ro", None, False, os.getpid(), 0, 30, command="x")
    for number in range(500):
        log.record("write", "write", b"%d" % number, "rw", None, True, os.getpid(), 0, command="x")
        if number % 10 == 0:
            log.flush()
    log.close()
    first = verify(path, "app").first
    assert first is not None
    assert first > 2
    kept = [json.loads(line.text) for line in older_records(path, first)]
    assert [(one["seq"], one.get("event", one.get("path"))) for one in kept] == [
        (1, "mounted"),
        (2, "secret"),
    ]
    assert verify(path, "app").broken is None


def refused(log: AuditLog, name: bytes) -> None:
    log.record("open", "read", name, "hide", None, False, os.getpid(), 0, 2, command="x")


@pytest.fixture
def flooded(tmp_path: Path) -> Path:
    """A log in which one denial was followed by so many others that some were dropped."""
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, "app", size_limit=4000, keep=4)
    log.event("mounted")
    refused(log, b"secret/key")
    for number in range(500):
        refused(log, b"other-%d" % number)
        if number % 10 == 0:
            log.flush()
    log.close()
    return path


def test_a_program_that_is_refused_very_often_does_not_push_its_first_denials_out(flooded: Path) -> None:
    assert verify(flooded, "app").broken is None
    assert sum(file.stat().st_size for file in kept_files(copies_paths(flooded)[0])) < 30_000
    kept = [json.loads(line.text) for line in older_records(flooded, verify(flooded, "app").first)]
    assert [one["path"] for one in kept if "path" in one][:2] == ["secret/key", "other-0"]
    gaps = [one for one in kept if one.get("event") == "gap"]
    assert gaps
    assert {one["reason"] for one in gaps} == {"audit.denials.jsonl: only the first and the latest are kept"}
    paths = {one["path"] for one in kept if "path" in one}
    newest = [json.loads(line.text) for line in read_lines(flooded)]
    paths |= {one["path"] for one in newest if "path" in one}
    told = sum(int(one["lost"]) for one in [*kept, *newest] if one.get("event") == "gap")
    # What was dropped and is still in the log itself is counted as well.
    assert told >= 501 - len(paths) > 0


def test_a_log_goes_on_after_denials_were_dropped(flooded: Path) -> None:
    go_on(flooded)
    log = AuditLog(flooded, "app", size_limit=4000, keep=4)
    for number in range(100):
        refused(log, b"more-%d" % number)
        log.flush()
    log.close()
    assert verify(flooded, "app").broken is None
    first = next(older_records(flooded, verify(flooded, "app").first))
    assert json.loads(first.text)["event"] == "mounted"


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("do", [cut_off, empty, remove])
def test_more_than_was_dropped_is_not_taken_for_dropped(
    flooded: Path, number: int, do: Callable[[Path], None]
) -> None:
    files = kept_files(copies_paths(flooded)[0])
    assert len(files) == 4
    do(files[number])
    broken = verify(flooded, "app").broken
    assert broken is not None
    assert broken.file.startswith("audit.denials.jsonl")


def test_the_last_of_the_first_denials_cannot_be_replaced(flooded: Path) -> None:
    """No record after it vouches for it any more."""
    oldest = kept_files(copies_paths(flooded)[0])[-1]
    lines = oldest.read_bytes().splitlines()
    copy = unwrapped(lines[-1])
    assert copy is not None
    record = copy[2].rpartition(b',"crc"')[0].replace(b"other", b"OTHER")
    forged = record + b',"crc":"%08x"}' % zlib.crc32(record)
    oldest.write_bytes(b"\n".join([*lines[:-1], lines[-1].replace(copy[2], forged), b""]))
    broken = verify(flooded, "app").broken
    assert broken is not None
    assert (broken.file, broken.line) == (oldest.name, len(lines))


def test_a_log_whose_head_was_removed_does_not_verify_while_there_are_copies(flooded: Path) -> None:
    head_path(flooded).unlink()
    broken = verify(flooded, "app").broken
    assert str(broken) == "audit.head: it is missing, or is no head"


@pytest.mark.parametrize("do", [cut_off, empty, remove])
def test_a_log_that_was_cut_off_with_its_head_does_not_verify_after_another_session(
    tmp_path: Path, do: Callable[[Path], None]
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, "app")
    log.event("mounted")
    refused(log, b"secret/key")
    log.close()
    do(path)
    head_path(path).unlink()
    assert verify(path, "app").broken is not None
    go_on(path)
    reasons = [json.loads(line.text).get("reason") for line in read_lines(path)]
    assert "the head of the log is missing" in reasons
    assert verify(path, "app").broken is not None


def test_there_is_a_head_before_there_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a crash in the first batch looks like no removal."""
    path = tmp_path / "audit.jsonl"
    seen = []
    write = AuditCopies.write

    def watched(copies: AuditCopies) -> None:
        seen.append(verify(path, "app"))
        write(copies)
        seen.append(verify(path, "app"))

    monkeypatch.setattr(AuditCopies, "write", watched)
    log = AuditLog(path, "app")
    log.event("mounted")
    refused(log, b"secret/key")
    log.close()
    assert seen
    assert [(one.broken, one.headless) for one in seen] == [(None, False)] * len(seen)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("do", [cut_off, empty, remove])
def test_copies_that_were_cut_off_emptied_or_removed_do_not_verify(
    tmp_path: Path, which: int, do: Callable[[Path], None]
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, "app")
    for number in range(5):
        log.event("mounted", number=number)
        log.record("open", "write", b"secret", "ro", None, False, os.getpid(), 0, 30, command="x")
    log.close()
    assert (verify(path, "app").broken, verify(path, "app").copies) == (None, 10)
    copies = copies_paths(path)[which]
    do(copies)
    broken = verify(path, "app").broken
    assert broken is not None
    assert broken.file == copies.name


def test_a_copy_that_says_something_else_than_the_log_does_not_verify(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, "app")
    log.record("open", "write", b"secret", "ro", None, False, os.getpid(), 0, 30, command="x")
    log.close()
    denials = copies_paths(path)[0]
    denials.write_bytes(denials.read_bytes().replace(b"secret", b"nicety"))
    assert verify(path, "app").broken is not None


def test_a_log_without_a_head_is_verified_by_its_chain_and_said_to_be_headless(path: Path) -> None:
    head_path(path).unlink()
    assert (verify(path, "app").broken, verify(path, "app").headless) == (None, True)
    go_on(path)
    assert (verify(path, "app").broken, verify(path, "app").headless) == (None, False)


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[]", b'{"version":2}', b'{"version":1,"log":{}}', b"\xff"])
def test_a_head_that_is_no_head_counts_as_none(path: Path, rubbish: bytes) -> None:
    head_path(path).write_bytes(rubbish)
    assert verify(path, "app").headless
    go_on(path)
    assert verify(path, "app").broken is None
