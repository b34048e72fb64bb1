"""The audit log keeps what it is given, says what it lost, and never troubles whoever records."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import pytest

from sandboxfs.state.audit import KEEP, QUEUE_LIMIT, SIZE_LIMIT, AuditLog, Level
from sandboxfs.state.audit_file import kept_files
from sandboxfs.state.audit_reader import RecordFilter, verify
from sandboxfs.state.audit_record import process_of

# Seconds, for what a busy machine may take long to write.
PATIENCE = 60.0
# As the kernel keeps it; a test may run as `python`, `pytest` or anything else.
OWN_COMMAND = Path("/proc/self/comm").read_text().strip()


class Access(StrEnum):
    READ = "read"
    WRITE = "write"
    DELETE = "delete"


@dataclass(frozen=True)
class Rule:
    pattern: str
    source: str

    def __str__(self) -> str:
        return f"{self.pattern} = ro"


RULE = Rule("src/**", ".sandboxfs.toml:4")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


class OpenLog(Protocol):
    def __call__(
        self, *, level: Level = ..., size_limit: int = ..., keep: int = ..., queue_limit: int = ...
    ) -> AuditLog: ...


@pytest.fixture
def open_log(path: Path) -> Iterator[OpenLog]:
    """Opens the log at the path; it is closed after the test."""
    opened: list[AuditLog] = []

    def open_(
        *,
        level: Level = Level.WRITES,
        size_limit: int = SIZE_LIMIT,
        keep: int = KEEP,
        queue_limit: int = QUEUE_LIMIT,
    ) -> AuditLog:
        opened.append(
            AuditLog(path, "app", level=level, size_limit=size_limit, keep=keep, queue_limit=queue_limit)
        )
        return opened[-1]

    yield open_
    for log in opened:
        log.close()


def note(
    log: AuditLog, path: bytes, *, op: str = "write", access: str = "write", allowed: bool = True
) -> None:
    log.record(op, access, path, "rw" if allowed else "ro", RULE, allowed, os.getpid(), os.getuid())


def records(path: Path) -> list[dict[str, object]]:
    lines = [line for file in reversed(kept_files(path)) for line in file.read_bytes().split(b"\n")[:-1]]
    return [json.loads(line) for line in lines]


def gaps(path: Path) -> list[dict[str, object]]:
    return [record for record in records(path) if record.get("event") == "gap"]


def test_a_record_has_everything_that_was_decided(path: Path, open_log: OpenLog) -> None:
    log = open_log()
    before = time.time()
    log.record(
        "rename", Access.WRITE, b"src/a", "ro", RULE, False, os.getpid(), 7, errno.EROFS, b"src/b", "git"
    )
    log.close()
    (record,) = records(path)
    moment, prev, crc = record.pop("time"), record.pop("prev"), record.pop("crc")
    assert record == {
        "seq": 1,
        "pid": os.getpid(),
        "command": "git",
        "uid": 7,
        "op": "rename",
        "access": "write",
        "path": "src/a",
        "to": "src/b",
        "decision": "ro",
        "allowed": False,
        "rule": "src/** = ro",
        "source": ".sandboxfs.toml:4",
        "errno": "EROFS",
    }
    assert time.strftime("%Y-%m-%dT%H:%M", time.gmtime(before)) <= str(moment)
    assert str(moment).endswith("Z")
    assert len(str(moment)) == len("2026-01-01T00:00:00.000000Z")
    assert len(str(prev)) == 64
    assert len(str(crc)) == 8


def test_a_very_long_path_takes_no_more_room_than_the_longest_that_can_be_named(
    path: Path, open_log: OpenLog
) -> None:
    log = open_log()
    ends = b"d/" * 500_000 + b"one", b"d/" * 500_000 + b"two"
    log.record("rename", Access.WRITE, ends[0], "ro", RULE, False, os.getpid(), 7, errno.EROFS, ends[1], "mv")
    log.close()
    (record,) = records(path)
    assert path.stat().st_size < 10_000
    assert record["path"] == record["to"] == ends[0][:4095].decode()
    assert record["path_sha256"] == hashlib.sha256(ends[0]).hexdigest()
    assert record["to_sha256"] == hashlib.sha256(ends[1]).hexdigest()
    # It is found by what is written of it.
    assert RecordFilter(path="d/d").wants(record)
    assert not RecordFilter(path="d/e").wants(record)


def test_an_event_is_a_record_in_the_same_chain(path: Path, open_log: OpenLog) -> None:
    log = open_log()
    log.event("mounted", mountpoint=path, rules=["a = ro"])
    note(log, b"x")
    log.event("unmounted")
    log.close()
    assert [record.get("event") for record in records(path)] == ["mounted", None, "unmounted"]
    assert records(path)[0]["mountpoint"] == str(path)
    assert verify(path, "app").broken is None


@pytest.mark.parametrize(
    ("level", "kept"),
    [
        (Level.DENIALS, ["refused"]),
        (Level.WRITES, ["written", "deleted", "refused"]),
        (Level.ALL, ["read", "written", "deleted", "refused"]),
    ],
)
def test_a_level_keeps_what_it_says(level: Level, kept: list[str], path: Path, open_log: OpenLog) -> None:
    log = open_log(level=level)
    note(log, b"read", access=Access.READ)
    note(log, b"written", access=Access.WRITE)
    note(log, b"deleted", access=Access.DELETE)
    note(log, b"refused", access=Access.READ, allowed=False)
    log.close()
    assert [record["path"] for record in records(path)] == kept


def test_the_level_can_be_changed_while_running(path: Path, open_log: OpenLog) -> None:
    log = open_log(level=Level.DENIALS)
    note(log, b"before")
    log.set_level(Level.WRITES)
    note(log, b"after")
    log.close()
    assert [record["path"] for record in records(path)] == ["after"]


def test_a_path_in_no_valid_encoding_survives(path: Path, open_log: OpenLog) -> None:
    odd = bytes(range(1, 256)).replace(b"/", b"") + "ü\u2028😀".encode()
    log = open_log()
    note(log, odd)
    log.close()
    assert path.read_bytes().isascii()
    assert path.read_bytes().count(b"\n") == 1
    found = records(path)[0]["path"]
    assert isinstance(found, str)
    assert found.encode("utf-8", "surrogateescape") == odd


def test_the_command_is_that_of_the_process(path: Path, open_log: OpenLog) -> None:
    log = open_log()
    note(log, b"mine")
    log.close()
    assert records(path)[0]["command"] == OWN_COMMAND


def test_a_thread_is_recorded_as_its_process(path: Path, open_log: OpenLog) -> None:
    log = open_log()

    def ask() -> None:
        Path("/proc/thread-self/comm").write_text("worker")
        log.record("write", "write", b"x", "rw", RULE, True, threading.get_native_id(), 0)
        log.flush()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    log.close()
    assert (records(path)[0]["pid"], records(path)[0]["command"]) == (os.getpid(), OWN_COMMAND)


def test_a_process_that_ended_soon_after_asking_has_a_name_all_the_same(
    path: Path, open_log: OpenLog
) -> None:
    log = open_log()
    with subprocess.Popen(["sleep", "60"]) as child:
        while (seen := process_of(child.pid)) is None or seen.command != "sleep":
            time.sleep(0.01)
        log.record("write", "write", b"x", "rw", RULE, True, child.pid, 0)
        # The log looks who is asking before it gathers what was asked, while the process waits.
        while child.pid not in log._writer.commands._seen:
            time.sleep(0.001)
        child.kill()
    log.close()
    assert (records(path)[0]["pid"], records(path)[0]["command"]) == (child.pid, "sleep")


def test_a_process_that_is_gone_has_no_name(path: Path, open_log: OpenLog) -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    log = open_log()
    log.record("write", "write", b"x", "rw", None, True, child.pid, 0)
    log.close()
    assert (records(path)[0]["pid"], records(path)[0]["command"]) == (child.pid, None)
    assert (records(path)[0]["rule"], records(path)[0]["source"]) == (None, None)


def test_a_log_that_is_opened_again_goes_on(path: Path, open_log: OpenLog) -> None:
    for session in range(3):
        log = open_log()
        log.event("mounted")
        note(log, b"%d" % session)
        log.event("unmounted")
        log.close()
    assert [record["seq"] for record in records(path)] == list(range(1, 10))
    assert gaps(path) == []
    assert verify(path, "app").broken is None


def test_rotation_keeps_the_chain_and_bounds_the_files(path: Path, open_log: OpenLog) -> None:
    log = open_log(size_limit=5000, keep=3)
    for number in range(400):
        note(log, b"file-%d" % number)
        if number % 10 == 0:
            assert log.flush()
    log.close()
    files = kept_files(path)
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size < 5000 + 10 * 400 for file in files)
    verdict = verify(path, "app")
    assert verdict.broken is None
    assert verdict.first is not None
    assert verdict.first > 1
    assert records(path)[-1]["path"] == "file-399"
    assert [json.loads(file.read_bytes().split(b"\n")[0]).get("event") for file in files] == ["rotated"] * 3


def test_a_log_goes_on_where_a_crash_came_between_two_files(path: Path, open_log: OpenLog) -> None:
    log = open_log()
    log.event("unmounted")
    log.close()
    path.rename(path.with_name("audit.jsonl.1"))
    log = open_log()
    note(log, b"x")
    log.close()
    assert [record["seq"] for record in records(path)] == [1, 2]
    assert verify(path, "app").broken is None


def test_a_torn_last_line_is_cut_off_and_told(path: Path, open_log: OpenLog) -> None:
    log = open_log()
    note(log, b"whole")
    log.close()
    with path.open("ab") as file:
        file.write(path.read_bytes()[:-40])
    log = open_log()
    note(log, b"later")
    log.close()
    assert [record.get("path") for record in records(path)] == ["whole", None, "later"]
    (gap,) = gaps(path)
    assert gap["reason"] == "a crash left part of a record"
    assert gap["lost"] is None
    assert verify(path, "app").broken is None


def test_a_log_that_is_nothing_but_a_torn_line_begins_anew(path: Path, open_log: OpenLog) -> None:
    path.write_bytes(b'{"time":"2026')
    log = open_log()
    note(log, b"x")
    log.close()
    assert [record["seq"] for record in records(path)] == [1, 2]
    assert len(gaps(path)) == 1
    assert verify(path, "app").broken is None


def test_a_daemon_that_was_killed_leaves_a_gap(path: Path, open_log: OpenLog) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom sandboxfs.state.audit import AuditLog\n"
        "log = AuditLog(Path(sys.argv[1]), 'app')\nlog.event('mounted')\nlog.flush()\n"
        "log.record('write', 'write', b'lost', 'rw', None, True, 1, 0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    log = open_log()
    log.event("mounted")
    log.close()
    assert [record["event"] for record in records(path)] == ["mounted", "gap", "mounted"]
    assert gaps(path)[0]["reason"] == "the daemon ended without closing the log"
    assert verify(path, "app").broken is None


def test_a_damaged_last_line_is_left_for_verification_and_built_upon(path: Path, open_log: OpenLog) -> None:
    log = open_log()
    note(log, b"good")
    log.close()
    with path.open("ab") as file:
        file.write(b"\xff rubbish\n")
    log = open_log()
    note(log, b"later")
    log.close()
    assert path.read_bytes().split(b"\n")[1] == b"\xff rubbish"
    broken = verify(path, "app").broken
    assert broken is not None
    assert (broken.line, broken.problem) == (2, "not a record")


def failing_write(monkeypatch: pytest.MonkeyPatch, number: int) -> threading.Event:
    """Let the log's writes write half of what they should and then fail, while the event is set."""
    failing = threading.Event()
    failing.set()
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if threading.current_thread().name != "audit" or not failing.is_set():
            return real(descriptor, data)
        if len(data) > 100:
            return real(descriptor, data[: len(data) // 2])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", write)
    return failing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_leaves_a_gap_record_and_a_whole_chain(
    number: int, path: Path, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    note(log, b"before")
    assert log.flush()
    failing = failing_write(monkeypatch, number)
    for _ in range(3):
        note(log, b"lost")
        assert log.flush()
    failing.clear()
    note(log, b"after")
    log.close()
    assert [record.get("path") for record in records(path)] == ["before", None, "after"]
    (gap,) = gaps(path)
    assert (gap["lost"], gap["reason"]) == (3, f"cannot write: {errno.errorcode[number]}")
    assert str(gap["first"]) <= str(gap["last"]) <= str(gap["time"])
    assert verify(path, "app").broken is None


def test_half_a_write_that_cannot_be_taken_back_is_removed_later(
    path: Path, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    note(log, b"before")
    assert log.flush()
    failing = failing_write(monkeypatch, errno.EIO)
    real = os.ftruncate

    def truncate(descriptor: int, length: int) -> None:
        if failing.is_set():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor, length)

    monkeypatch.setattr(os, "ftruncate", truncate)
    for number in range(5):
        note(log, b"lost-%d" % number)
    assert log.flush()
    assert path.read_bytes().count(b"lost") > 0
    failing.clear()
    note(log, b"after")
    log.close()
    assert [record.get("path") for record in records(path)] == ["before", None, "after"]
    assert gaps(path)[0]["lost"] == 5
    assert verify(path, "app").broken is None


def test_a_gap_is_told_although_nothing_more_is_recorded(
    path: Path, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    failing = failing_write(monkeypatch, errno.ENOSPC)
    note(log, b"lost")
    assert log.flush()
    failing.clear()
    deadline = time.monotonic() + PATIENCE
    while not gaps(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gaps(path)[0]["lost"] == 1


def test_a_log_whose_directory_is_missing_troubles_nobody(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "missing" / "audit.jsonl", "app")
    note(log, b"lost")
    assert log.flush()
    (tmp_path / "missing").mkdir()
    note(log, b"kept")
    log.close()
    found = records(tmp_path / "missing" / "audit.jsonl")
    assert [record.get("lost", record.get("path")) for record in found] == [1, "kept"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_file_that_is_taken_away_is_made_again_and_told(
    replaced: bool, path: Path, open_log: OpenLog
) -> None:
    log = open_log()
    note(log, b"before")
    assert log.flush()
    path.rename(path.with_name("stolen"))
    if replaced:
        path.write_bytes(b"")
    note(log, b"after")
    log.close()
    assert [record.get("reason", record.get("path")) for record in records(path)] == [
        "the log file was removed or replaced",
        "after",
    ]
    assert verify(path, "app").broken is not None


def test_more_than_the_queue_holds_is_counted(
    path: Path, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(queue_limit=50)
    let_go = threading.Event()
    real = os.write

    def slow(descriptor: int, data: bytes) -> int:
        if threading.current_thread().name == "audit":
            let_go.wait()
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    for _ in range(1000):
        note(log, b"x")
    let_go.set()
    log.close()
    kept = sum("path" in record for record in records(path))
    assert 50 <= kept < 1000
    lost = [gap["lost"] for gap in gaps(path)]
    assert all(isinstance(count, int) for count in lost)
    assert kept + sum(count for count in lost if isinstance(count, int)) == 1000
    assert verify(path, "app").broken is None


def test_a_rule_that_cannot_be_written_loses_its_batch_and_nothing_else(
    path: Path, open_log: OpenLog
) -> None:
    class Bad:
        source = "x"

        def __str__(self) -> str:
            raise ZeroDivisionError

    log = open_log()
    log.record("write", "write", b"bad", "rw", Bad(), True, 1, 0)
    assert log.flush()
    note(log, b"good")
    log.close()
    assert [record.get("reason", record.get("path")) for record in records(path)] == [
        "cannot write: ZeroDivisionError",
        "good",
    ]


def test_closing_writes_everything_that_was_recorded(path: Path, open_log: OpenLog) -> None:
    log = open_log()
    for number in range(20_000):
        note(log, b"%d" % number)
    log.close(PATIENCE)
    assert [record["path"] for record in records(path)] == [str(number) for number in range(20_000)]


def test_what_is_recorded_after_closing_is_ignored(path: Path, open_log: OpenLog) -> None:
    log = open_log()
    note(log, b"before")
    log.close()
    note(log, b"after")
    log.close()
    assert [record["path"] for record in records(path)] == ["before"]


def test_several_threads_may_record(path: Path, open_log: OpenLog) -> None:
    log = open_log()

    def record() -> None:
        for _ in range(2000):
            note(log, b"x")

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close(PATIENCE)
    assert len(records(path)) == 8000
    assert verify(path, "app").broken is None


def test_the_file_is_for_its_owner_alone(path: Path, open_log: OpenLog) -> None:
    umask = os.umask(0)
    log = open_log()
    note(log, b"x")
    log.close()
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_is_a_link_is_not_followed(path: Path, open_log: OpenLog) -> None:
    target = path.with_name("precious")
    target.write_text("precious")
    path.symlink_to(target)
    log = open_log()
    note(log, b"x")
    log.close()
    assert target.read_text() == "precious"
