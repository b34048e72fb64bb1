"""`sandboxfs log` shows what is asked for, follows what is written, and is not put out by damage."""

import ast
import base64
import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

import sandboxfs
from sandboxfs.cli import log as verb
from sandboxfs.codec import restored
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.state.audit import AuditLog
from sandboxfs.state.audit_reader import OPERATIONS, follow_lines, matches, parse_since
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.store import SandboxRecord, Store

PID = os.getpid()


class Rule:
    source = "config.toml:3"

    def __str__(self) -> str:
        return "src/** = ro"


@pytest.fixture
def lock(tmp_path: Path) -> SandboxLock:
    store = Store(Locations.from_environment())
    return store.create(
        SandboxRecord("app", tmp_path / "w", tmp_path / "m", datetime(2026, 1, 2, tzinfo=UTC))
    )


@pytest.fixture
def path(lock: SandboxLock) -> Path:
    return Locations.from_environment().sandbox("app").home / "audit.jsonl"


@pytest.fixture
def written(path: Path) -> Path:
    log = AuditLog(path, "app")
    log.event("mounted")
    log.record("create", "write", b"src/new.py", "rw", Rule(), True, 10, 0, command="vim")
    log.record("unlink", "delete", b"src/old.py", "ro", Rule(), False, 11, 0, 30, None, "rm")
    log.record("rename", "write", b"docs/a b", "rw", None, True, 11, 0, 0, b"docs/\xff", "mv")
    log.event("unmounted")
    log.close()
    return path


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert verb.run(words) == 0
    return capsys.readouterr().out.splitlines()


def seqs(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[int]:
    return [json.loads(line)["seq"] for line in shown([*words, "--json"], capsys)]


def test_every_record_is_a_line_for_a_person(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split("  ", 1)[1] for line in shown([], capsys)]
    assert lines == [
        "-- mounted",
        "ok      create     src/new.py  rw by 'src/** = ro' (config.toml:3)  vim[10]",
        "denied  unlink     src/old.py  ro by 'src/** = ro' (config.toml:3)  EROFS  rm[11]",
        r"ok      rename     'docs/a b' -> 'docs/\xff'  rw by no rule  mv[11]",
        "-- unmounted",
    ]


def test_questions_answers_and_grants_are_shown_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = AuditLog(path, "app")
    log.event("mounted")
    log.event("asked", question=1, access="read", path=".env")
    log.record("open", "read", b".env", "ask", Rule(), False, 10, 0, 13, command="cat")
    log.event("answered", question=1, access="read", path=".env", decision="deny", reason="not this one")
    log.event("revoked", grant=2)
    log.event("unmounted")
    log.close()
    assert seqs(["--asks"], capsys) == [2, 4, 5]
    assert seqs(["--asks", "--path", ".env"], capsys) == [2, 4]
    assert "-- answered" in shown(["--asks"], capsys)[1]


def test_json_gives_the_lines_as_they_were_written_but_for_names_that_are_not_utf_8(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, told = written.read_text().splitlines(), shown(["--json"], capsys)
    assert [line for line in told if "_bytes" not in line] == [line for line in lines if "udcff" not in line]
    (odd,) = [json.loads(line) for line in told if "_bytes" in line]
    assert (odd["to"], base64.b64decode(odd["to_bytes"])) == ("docs/\ufffd", b"docs/\xff")
    assert restored(odd) == json.loads(lines[told.index(next(line for line in told if "_bytes" in line))])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--denied"], [3]),
        (["--op", "rename"], [4]),
        (["--pid", "11"], [3, 4]),
        (["--pid", "11", "--denied"], [3]),
        (["--path", "src/**"], [2, 3]),
        (["--path", "*.py"], [2, 3]),
        (["--path", "docs"], [4]),
        (["--path", "docs/\udcff"], [4]),
        (["--since", "1h"], [1, 2, 3, 4, 5]),
        (["--since", "2999-01-01"], []),
        (["--since", "2020-01-01T00:00:00Z", "-s", "app"], [1, 2, 3, 4, 5]),
    ],
)
def test_only_what_is_asked_for_is_shown(
    words: list[str], found: list[int], written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert seqs(words, capsys) == found


@pytest.mark.parametrize(
    "words",
    [
        ["--since", "yesterday"],
        ["--since", "10"],
        ["--path", ""],
        ["--path", "[z-a]"],
        ["--pid", "x"],
        ["--op", "frob"],
        ["--op", ""],
        ["--verify", "--denied"],
        ["--verify", "--follow"],
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], written: Path) -> None:
    with pytest.raises(UsageError):
        verb.run(words)


def test_an_operation_that_does_not_exist_is_told_with_the_nearest_and_all_that_do() -> None:
    with pytest.raises(UsageError, match="no such operation: 'ulink'; did you mean 'unlink'") as refused:
        verb.run(["--op", "ulink"])
    assert refused.value.hint is not None
    assert "rename, rmdir" in refused.value.hint


def test_the_operations_are_those_that_the_view_records() -> None:
    asked = {"check", "check_inode", "check_shown", "note", "note_inode", "record", "refusal"}
    asked |= {"_made", "_check_read", "_check_making", "_decide_again"}
    found = set()
    for path in (Path(sandboxfs.__file__).parent / "overlay").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in asked:
                constants = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
                found |= {value for value in constants if isinstance(value, str)}
    assert found == set(OPERATIONS)


def test_a_sandbox_that_is_not_there_is_told() -> None:
    with pytest.raises(NoSuchSandbox):
        verb.run(["-s", "nowhere"])


def test_a_sandbox_without_a_log_has_nothing_to_show(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown([], capsys) == []
    assert shown(["--verify"], capsys) == ["whole: nothing is logged yet"]


def test_where_nothing_is_left_that_vouches_for_the_log_it_is_said(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in written.parent.glob("audit.*"):
        file.unlink()
    capsys.readouterr()
    assert verb.run(["--verify"]) == 0
    told = capsys.readouterr()
    assert told.out == "whole: nothing is logged yet\n"
    assert "no 'audit.head'" in told.err


def test_damaged_lines_are_left_out_and_counted(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = written.read_bytes().split(b"\n")
    content[1] = b"\xff{"
    written.write_bytes(b"\n".join(content) + b"torn")
    capsys.readouterr()
    assert verb.run(["--json"]) == 0
    told = capsys.readouterr()
    assert [json.loads(line)["seq"] for line in told.out.splitlines()] == [1, 3, 4, 5]
    assert "2 damaged lines" in told.err


def test_a_hostile_record_cannot_write_to_the_terminal() -> None:
    shown = verb.human({"time": "\x1b[2J", "op": "a\nb", "path": "\x1b]0;x\x07", "command": "\r", "pid": []})
    assert shown.isprintable()


def test_gaps_are_mentioned_where_a_filter_leaves_them_out(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = AuditLog(path, "app")
    log.event("gap", lost=3, reason="test")
    log.close()
    assert verb.run(["--denied"]) == 0
    assert "1 gaps" in capsys.readouterr().err


def test_verification_of_a_whole_log_exits_with_0(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(["--verify"], capsys)
    assert lines[0] == "whole: 5 records, seq 1 to 5"
    assert lines[1].startswith("head: ")


def test_verification_of_a_broken_log_names_the_record_and_exits_with_1(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written.write_bytes(written.read_bytes().replace(b"src/old.py", b"src/odd.py"))
    assert verb.run(["--verify"]) == 1
    assert capsys.readouterr().out == "broken at audit.jsonl:3 (seq 3): the record was changed\n"
    assert verb.run(["--verify", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["whole"] is False
    assert told["broken"] == {
        "file": "audit.jsonl",
        "line": 3,
        "seq": 3,
        "problem": "the record was changed",
    }


def test_following_shows_what_is_written_meanwhile_across_files_until_unmounted(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = AuditLog(path, "app", size_limit=2000, keep=50)
    log.event("mounted")
    assert log.flush()

    def write() -> None:
        for number in range(100):
            log.record("write", "write", b"%d" % number, "rw", None, True, PID, 0)
            log.flush()
        log.event("unmounted")
        log.close()

    writer = threading.Thread(target=write)
    writer.start()
    found = seqs(["--follow"], capsys)
    writer.join()
    files = len(list(path.parent.glob("audit.jsonl*")))
    assert files > 3
    # Each file but the first begins with a record of its own.
    assert found == list(range(1, 1 + 100 + 1 + files))


def test_following_is_ended_by_an_interruption_with_130(path: Path) -> None:
    log = AuditLog(path, "app")
    log.event("mounted")
    log.close()
    script = (
        "import sys; from sandboxfs.cli import main; main.VERBS['log'] = ''; "
        "sys.exit(main.main(['log', '--follow', '-s', 'app']))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline().endswith("-- mounted\n")
        following.send_signal(signal.SIGINT)
        assert following.wait(20) == 130


def test_following_reads_a_line_that_comes_in_two_halves_as_one(path: Path) -> None:
    path.write_bytes(b"one\ntw")
    looks = 0

    def ended() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            with path.open("ab") as file:
                file.write(b"o\nthree\nfo")
        return looks > 1

    assert [line.text for line in follow_lines(path, ended)] == [b"one", b"two", b"three"]


def test_following_gives_every_line_once_although_files_are_rotated_in_between(path: Path) -> None:
    path.write_bytes(b"1\n")
    steps = iter(range(2, 12))

    def ended() -> bool:
        step = next(steps, None)
        if step is None:
            return True
        for number in (3, 2, 1):
            older = path.with_name(f"audit.jsonl.{number}")
            if older.exists():
                older.rename(path.with_name(f"audit.jsonl.{number + 1}"))
        with path.open("ab") as file:
            file.write(b"%d late\n" % (step - 1))
        path.rename(path.with_name("audit.jsonl.1"))
        path.write_bytes(b"%d\n" % step)
        return False

    texts = [line.text for line in follow_lines(path, ended)]
    assert texts == [b"1"] + [
        text for step in range(2, 12) for text in (b"%d late" % (step - 1), b"%d" % step)
    ]


def test_following_ends_when_nobody_serves_the_sandbox(
    path: Path, lock: SandboxLock, capsys: pytest.CaptureFixture[str]
) -> None:
    log = AuditLog(path, "app")
    log.event("mounted")
    log.close()
    lock.release()
    assert verb.run(["--follow"]) == 0
    assert "nobody serves the sandbox" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("a", "a", True),
        ("a", "x/a", True),
        ("a", "x/a/b", True),
        ("a", "ab", False),
        ("*.py", "src/x.py", True),
        ("src/*.py", "src/x.py", True),
        ("src/*.py", "src/deep/x.py", False),
        ("src/*.py", "other/src/x.py", False),
        ("/src", "src/x", True),
        ("/src", "lib/src", False),
        ("src/**", "src/a/b", True),
        ("src/**", "src", False),
        ("**/x", "x", True),
        ("**/x", "a/b/x", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "ax/b", False),
        ("**", "anything/at/all", True),
        ("src", "src-evil", False),
        ("f?o", "foo", True),
        ("f?o", "f/o", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[^]]x", "^x", True),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("a.c", "abc", False),
        (r"a\[", "a[", True),
        ("new\nline", "new\nline", True),
    ],
)
def test_a_glob_matches_what_it_names(glob: str, path: str, expected: bool) -> None:
    assert matches(glob, path) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", "2026-03-01T11:59:30.000000Z"),
        ("10m", "2026-03-01T11:50:00.000000Z"),
        ("2h", "2026-03-01T10:00:00.000000Z"),
        ("1d", "2026-02-28T12:00:00.000000Z"),
        ("1w", "2026-02-22T12:00:00.000000Z"),
        ("999999999d", "0001-01-01T00:00:00.000000Z"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00.000000Z"),
        ("2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00.500000Z"),
    ],
)
def test_a_time_is_a_length_before_now_or_a_moment(text: str, expected: str) -> None:
    assert parse_since(text, datetime(2026, 3, 1, 12, tzinfo=UTC)) == expected
