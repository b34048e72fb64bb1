"""A record says the same after it was written and read, and anything else is refused."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.hostfs.identity import DirectoryIdentity
from sandboxfs.state.store import PolicyOptions, SandboxRecord, dump_record, parse_record

RECORD = SandboxRecord(
    name="app",
    workspace=Path("/srv/app"),
    mountpoint=Path("/mnt/app"),
    created=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    read_only=True,
    allow_other=True,
    own_mountpoint=False,
)


def test_a_record_survives_being_written_and_read() -> None:
    assert parse_record(dump_record(RECORD), "sandbox.toml") == RECORD


@pytest.mark.parametrize("name", [b"caf\xc3\xa9", b"\xff\xfe", b"new\nline", b'quote"back\\slash', b" "])
def test_a_path_of_any_bytes_survives_being_written_and_read(name: bytes) -> None:
    path = Path(os.fsdecode(b"/srv/" + name))
    record = SandboxRecord("app", path, path / "view", RECORD.created, readable=(path / "a", path / "b"))
    assert parse_record(dump_record(record), "sandbox.toml") == record


def test_the_options_of_a_record_survive_being_written_and_read() -> None:
    odd = os.fsdecode(b"100%\xff=hide")
    options = PolicyOptions("ro", "read-only", (odd, "b=ro"), ("/srv/app/x:rw",), "deny", "/etc/c.toml", True)
    for one in (options, PolicyOptions(rules=(odd,)), PolicyOptions(read_only=True)):
        record = replace(RECORD, options=one)
        assert parse_record(dump_record(record), "sandbox.toml") == record


def test_the_identity_of_a_record_survives_being_written_and_read() -> None:
    record = replace(RECORD, identity=DirectoryIdentity(0xEF53, 2**63 - 1, 10**18 + 1, mount_root=True))
    assert parse_record(dump_record(record), "sandbox.toml") == record


def test_the_record_starts_with_its_format() -> None:
    assert dump_record(RECORD).startswith(b"format = 1\n")


@pytest.mark.parametrize(
    "form", [b"format = 2", b'format = "1"', b"format = true", b"format = 1.0", b"", b"x = 1"]
)
def test_an_unknown_format_is_refused_before_anything_else_is_looked_at(form: bytes) -> None:
    content = form + b"\nwhatever = 1\n"
    with pytest.raises(UsageError, match=r"sandbox\.toml: unknown format"):
        parse_record(content, "sandbox.toml")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (b'name = "app"', b"name = 1", "'name' in sandbox record: expected str"),
        (b'name = "app"', b"", "'name' in sandbox record: expected str"),
        (b'"/srv/app"', b'"srv/app"', "'workspace' in sandbox record: expected an absolute path"),
        (b'"/srv/app"', b'{ hex = "zz" }', "'workspace' in sandbox record: bad hex digits"),
        (b'"/srv/app"', b'{ hex = "2f", base = 2 }', "'workspace' in sandbox record: expected a path"),
        (b"read_only = true", b'read_only = "yes"', "'read_only' in sandbox record: expected bool"),
        (b"allow_other = true", b"allow_other = true\ncolour = 1", "unknown key 'colour'"),
        (
            b"allow_other = true",
            b"allow_other = true\nreadable = 1",
            "'readable' in sandbox record",
        ),
        (b"allow_other = true", b'allow_other = true\nreadable = ["a"]', "expected an absolute path"),
        (b'name = "app"', b"name = app", "malformed sandbox record"),
        (b'name = "app"', b'name = "\xff"', "malformed sandbox record"),
    ],
)
def test_a_record_with_a_wrong_or_unknown_value_is_refused(old: bytes, new: bytes, complaint: str) -> None:
    content = dump_record(RECORD)
    assert old in content
    with pytest.raises(UsageError, match=complaint):
        parse_record(content.replace(old, new), "sandbox.toml")
