"""Audit logs of earlier versions: they are read, they are found to be whole, and they go on."""

import json
import os
from pathlib import Path

import pytest

from tests.golden.checking import HERE, agree, load
from tests.golden.placing import put_audit
from tests.golden.replaying import run

FILES = sorted(HERE.glob("v*/audit/*.tar.gz"))
named = pytest.mark.parametrize("archive", FILES, ids=lambda file: f"{file.parts[-3]}-{file.name}")


@pytest.fixture
def root(tmp_path: Path, archive: Path) -> Path:
    put_audit(archive, tmp_path / "golden")
    return tmp_path / "golden"


def folder(root: Path) -> Path:
    return root / "state/sandboxes/golden"


@named
def test_a_log_of_an_earlier_version_says_what_it_said(root: Path, archive: Path) -> None:
    expected = load(next(archive.parent.glob(f"{archive.name.split('.')[0]}.json*")))
    agree(expected["steps"], root, os.environ)


@named
def test_the_records_are_shown_as_they_were_written(root: Path, archive: Path) -> None:
    done = run(["log", "-s", "golden", "--json"], root, os.environ)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    own = [
        line
        for name in ("audit.jsonl.1", "audit.jsonl")
        for line in (folder(root) / name).read_bytes().splitlines()
    ]
    # Those with a name that is not UTF-8 are shown with its bytes, and copies of what is older come before.
    plain = [line for line in own if b"\\udc" not in line]
    assert len(plain) > len(own) / 3
    assert [line for line in shown[-len(own) :] if b"_bytes" not in line] == plain
    older = [json.loads(line)["seq"] for line in shown[: -len(own)]]
    assert older == sorted(older)
    assert older


@named
@pytest.mark.parametrize(
    "file", ["audit.jsonl", "audit.jsonl.1", "audit.denials.jsonl", "audit.events.jsonl"]
)
def test_a_change_is_found_in_every_file(root: Path, archive: Path, file: str) -> None:
    changed = folder(root) / file
    content = changed.read_bytes()
    middle = content.index(b'"seq":') + 6
    digit = b"8" if content[middle : middle + 1] != b"8" else b"9"
    changed.write_bytes(content[:middle] + digit + content[middle + 1 :])
    assert run(["log", "-s", "golden", "--verify"], root, os.environ).returncode == 1


@named
@pytest.mark.mount
def test_a_log_of_an_earlier_version_goes_on(root: Path, archive: Path) -> None:
    # Where the sandbox was is nowhere here; the chain knows of its name only.
    record = folder(root) / "sandbox.toml"
    text = record.read_text().replace("/tmp/golden/", f"{root}/")
    record.write_text("\n".join(line for line in text.splitlines() if line.partition(" ")[0] not in IDENTITY))
    (root / "view").mkdir()
    (root / "config.toml").unlink(missing_ok=True)
    before = len((folder(root) / "audit.jsonl").read_bytes().splitlines())
    for words in (
        ["mount", "--name", "golden", "--replace-policy", "@root@/workspace", "@root@/view"],
        ["unmount", "-s", "golden"],
        ["log", "-s", "golden", "--verify"],
    ):
        done = run(words, root, os.environ)
        assert done.returncode == 0, (words, done.stderr.decode())
    lines = (folder(root) / "audit.jsonl").read_bytes().splitlines()
    assert len(lines) > before
    assert not any(b'"event":"gap"' in line for line in lines[before:])


IDENTITY = ("[identity]", "filesystem", "inode", "born", "mount_root")
