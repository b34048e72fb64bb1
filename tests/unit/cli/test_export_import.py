"""An archive becomes a sandbox over a copy of the workspace, and touches nothing else."""

import gzip
import json
import os
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import holder
from sandboxfs.state.store import Store
from tests.support.archived import HONEST_POLICY, honest, import_over
from tests.support.tree import assert_same_tree, build, capture


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "copy", {"a": "old\n", "gone": "gone\n"})


@pytest.fixture
def store() -> Store:
    return Store(Locations.from_environment())


def test_an_honest_archive_becomes_a_sandbox(
    workspace: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    before = capture(workspace)
    assert import_over(workspace, honest().packed()) == 0
    assert capsys.readouterr().out == "app\n"
    record, places = store.load("app"), store.places("app")
    assert (record.workspace, record.own_mountpoint) == (workspace, True)
    assert (places.upper / "a").read_bytes() == b"new\n"
    assert (places.upper / "link").readlink() == Path("a")
    assert os.path.samefile(places.upper / "d" / "b", places.upper / "d" / "same")
    assert holder(places.lock) is None
    assert os.listdir(store.locations.sandboxes) == ["app"]
    assert_same_tree(capture(workspace), before)


def test_a_sandbox_of_the_same_name_is_left_alone(workspace: Path, store: Store) -> None:
    assert [import_over(workspace, honest().packed()) for _ in range(2)] == [0, 0]
    assert store.names() == ["app", "app-2"]
    assert import_over(workspace, honest().packed(), "--name", "app") == 2
    assert import_over(workspace, honest().packed(), "--name", "mine") == 0
    assert store.names() == ["app", "app-2", "mine"]


def test_what_was_imported_is_told_as_json(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_over(workspace, honest().packed(), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["workspace"], told["entries"]) == ("app", str(workspace), 7)
    assert told["origin"]["workspace"] == "/nowhere/app"


def test_without_a_workspace_the_one_in_the_archive_is_meant(
    tmp_path: Path, workspace: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = honest()
    (tmp_path / "archive").write_bytes(parts.packed())
    assert main(["import", str(tmp_path / "archive")]) == 2
    assert "'/nowhere/app': no such directory" in capsys.readouterr().err
    parts.manifest["workspace"] = str(workspace)
    (tmp_path / "archive").write_bytes(parts.packed())
    assert main(["import", str(tmp_path / "archive")]) == 0
    assert store.load("app").workspace == workspace


def test_an_archive_can_come_through_a_pipe(
    workspace: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.write(writing, gzip.compress(honest().packed()))
    os.close(writing)
    with open(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["import", "-", str(workspace)]) == 0
    assert store.names() == ["app"]


def test_set_id_bits_are_kept_and_told(
    workspace: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = honest()
    parts.entry("a")["mode"] = 0o4755
    assert import_over(workspace, parts.packed()) == 0
    assert "'a' would run with other rights" in capsys.readouterr().err
    assert (store.places("app").upper / "a").stat().st_mode & 0o7777 == 0o4755


def test_the_policy_comes_along(workspace: Path, store: Store) -> None:
    parts = honest()
    rule = {
        "pattern": "*.key",
        "mode": "hide",
        "source": {"kind": "user", "file": "/x/config.toml", "line": 3},
    }
    parts.manifest["policy"] = {**HONEST_POLICY, "mode": "ro", "rule": [rule]}
    assert import_over(workspace, parts.packed()) == 0
    policy = store.load("app").settings.policy
    assert policy.mode.value == "ro"
    assert str(policy.rules[0]) == "*.key = hide"


@pytest.mark.parametrize("workspace_name", ["missing", "copy/a", ""])
def test_a_workspace_that_is_none_is_refused(tmp_path: Path, workspace: Path, workspace_name: str) -> None:
    (tmp_path / "archive").write_bytes(honest().packed())
    place = str(tmp_path / workspace_name) if workspace_name else ""
    assert main(["import", str(tmp_path / "archive"), place]) == 2


@pytest.mark.parametrize("size", ["", "x", "1X", "-1", "1.5G", "9" * 30])
def test_a_size_that_is_none_is_refused(workspace: Path, size: str) -> None:
    assert import_over(workspace, honest().packed(), f"--max-size={size}") == 2
