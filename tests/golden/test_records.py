"""Records of sandboxes, `sandbox.toml`, of earlier versions."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.hostfs.identity import DirectoryIdentity
from sandboxfs.state.store import PolicyOptions, SandboxRecord, dump_record, parse_record
from tests.golden.checking import HERE, agree, load
from tests.golden.placing import put_records

VERSIONS = sorted(HERE.glob("v*/records"))
FILES = sorted(HERE.glob("v*/records/*.toml"))


def read(name: str) -> SandboxRecord:
    return parse_record((HERE / "v1/records" / f"{name}.toml").read_bytes(), name)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.parent.name)
def test_commands_say_of_a_record_what_they_said(tmp_path: Path, version: Path) -> None:
    root = tmp_path / "golden"
    put_records(version, root)
    agree(load(next(version.parent.glob("records.json*")))["steps"], root, os.environ)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}-{file.stem}")
def test_a_record_that_is_read_is_written_as_it_was(file: Path) -> None:
    """All that an earlier version wrote is known, and it reads what this one writes."""
    content = file.read_bytes()
    assert dump_record(parse_record(content, "here")) == content


def test_a_plain_record() -> None:
    record = read("plain")
    assert (record.name, record.workspace) == ("plain", Path("/nowhere/golden/workspace"))
    assert record.mountpoint == Path("/nowhere/environment/run/sandboxfs/mnt/plain")
    assert record.created.tzinfo == UTC
    assert record.created > datetime(2026, 1, 1, tzinfo=UTC)
    assert (record.own_mountpoint, record.read_only, record.allow_other) == (True, False, False)
    assert (record.companion_of, record.companions, record.readable, record.covered) == (None, (), (), ())
    assert record.options == PolicyOptions()
    assert isinstance(record.identity, DirectoryIdentity)
    assert record.identity.filesystem == 0xEF53
    assert not record.identity.mount_root


def test_a_record_with_options_and_a_policy() -> None:
    record = read("options")
    assert record.options == PolicyOptions(
        mode="ro",
        preset="workspace-write",
        rules=("docs/**=ro", "50%=hide", "/nowhere/golden/link/gone=ro"),
        allows=("/nowhere/golden/workspace/dir:rw", "/nowhere/golden/workspace/edited:rw"),
        symlinks="deny",
        config="/nowhere/golden/config.toml",
        read_only=True,
    )
    own = [
        (
            rule.pattern,
            rule.mode.value,
            rule.place,
            rule.source.kind.value,
            rule.source.file,
            rule.source.line,
        )
        for rule in record.settings.policy.rules
        if rule.source.kind.value != "built-in"
    ]
    assert own == [
        ("docs/**", "ro", None, "command line", None, None),
        ("50%", "hide", None, "command line", None, None),
        ("/nowhere/golden/link/gone", "ro", "/nowhere/golden/workspace/gone", "command line", None, None),
        ("./dir", "rw", None, "command line", "--allow", None),
        ("./edited", "rw", None, "command line", "--allow", None),
        ("docs", "ro", None, "project", ".sandboxfs.toml", 1),
        ("a%b", "deny", None, "user", "/nowhere/golden/config.toml", 3),
    ]
    assert (record.settings.policy.mode.value, record.settings.policy.enabled) == ("ro", True)
    assert record.settings.policy.mode_source.file == "--mode"
    assert record.settings.symlinks.value == "deny"
    audit = record.settings.audit
    assert (audit.level.value, audit.size, audit.keep) == ("all", 16777216, 4)


def test_records_of_sandboxes_that_serve_beside_each_other() -> None:
    first, beside = read("workspace"), read("workspace.beside")
    assert first.companions == ("workspace.beside",)
    assert first.readable == (Path("/nowhere/golden/config.toml"),)
    assert beside.companion_of == "workspace"
    assert read("project").companions == ("project.home",)
    assert read("project.home").covered == (Path("/nowhere/golden/home/project"),)


def test_a_workspace_whose_name_is_not_utf8() -> None:
    assert os.fsencode(read("odd").workspace) == b"/nowhere/golden/odd \xff%"
