"""`list`: all sandboxes with the work in them, the last used first, in lines that fit."""

import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from sandboxfs.control.mount_table import Mount, MountTable
from sandboxfs.service import listing
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def store() -> Store:
    return Store(Locations.from_environment())


def made(
    store: Store, name: str, workspace: Path, *, used: timedelta, companion_of: str | None = None
) -> SandboxRecord:
    workspace.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    created = (now - used - timedelta(days=3)).replace(microsecond=0)
    record = SandboxRecord(name, workspace, workspace.parent / f"{name}-view", created)
    record = replace(record, companion_of=companion_of)
    store.create(record).release()
    when = (now - used).timestamp()
    os.utime(store.places(name).lock, (when, when))
    return record


def change(store: Store, name: str, *paths: str) -> None:
    for path in paths:
        (store.places(name).upper / path).write_text("x" * 5000)


def lines(capsys: Captured) -> list[list[str]]:
    assert main(["list"]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_last_used_comes_first_and_companions_under_their_sandbox(
    store: Store, tmp_path: Path, capsys: Captured
) -> None:
    made(store, "alpha", tmp_path / "a", used=timedelta(hours=2))
    made(store, "beta", tmp_path / "b", used=timedelta(minutes=5))
    made(store, "alpha.home", tmp_path / "h", used=timedelta(minutes=1), companion_of="alpha")
    made(store, "lost.home", tmp_path / "l", used=timedelta(days=2), companion_of="lost")
    assert [line[0] for line in lines(capsys)] == ["NAME", "beta", "alpha", "alpha.home", "lost.home"]
    assert main(["list"]) == 0
    assert "\n  alpha.home  " in capsys.readouterr().out


def test_each_line_has_changes_conflicts_size_age_and_last_use(
    store: Store, tmp_path: Path, capsys: Captured
) -> None:
    made(store, "app", tmp_path / "w", used=timedelta(minutes=5))
    change(store, "app", "one", "two")
    made(store, "empty", tmp_path / "v", used=timedelta(hours=3))
    header, app, empty = lines(capsys)
    assert header == [
        "NAME",
        "STATE",
        "CHANGES",
        "CONFLICTS",
        "SIZE",
        "AGE",
        "USED",
        "WORKSPACE",
        "MOUNTPOINT",
    ]
    assert app[:4] == ["app", "unmounted", "2", "-"]
    assert app[4].endswith("KiB")
    assert app[5:] == ["3d", "5m", str(tmp_path / "w"), "-"]
    assert empty[:4] == ["empty", "unmounted", "-", "-"]
    assert empty[6] == "3h"


def test_a_conflict_with_the_workspace_is_counted(store: Store, tmp_path: Path, capsys: Captured) -> None:
    made(store, "app", tmp_path / "w", used=timedelta())
    change(store, "app", "one")
    (tmp_path / "w" / "one").write_text("made in the workspace meanwhile")
    assert main(["list", "--json"]) == 0
    (app,) = json.loads(capsys.readouterr().out)["sandboxes"]
    assert (app["changes"], app["conflicts"]) == (1, 1)


def test_what_is_listed_can_be_read_by_a_program(store: Store, tmp_path: Path, capsys: Captured) -> None:
    made(store, "app", tmp_path / "w", used=timedelta(minutes=5))
    made(store, "app.home", tmp_path / "h", used=timedelta(minutes=5), companion_of="app")
    change(store, "app", "one")
    assert main(["list", "--json"]) == 0
    app, home = json.loads(capsys.readouterr().out)["sandboxes"]
    assert (app["name"], app["changes"], app["conflicts"], app["companion_of"]) == ("app", 1, 0, None)
    assert app["left_out"] == {"ignored": 0, "git": 0}
    assert app["bytes"] >= 5000
    assert app["bytes_complete"] is True
    assert app["last_used"].endswith("Z")
    assert (home["name"], home["changes"], home["companion_of"]) == ("app.home", 0, "app")


def test_changes_that_cannot_be_counted_are_not_guessed_at(
    store: Store, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = made(store, "app", tmp_path / "w", used=timedelta())
    change(store, "app", "one")
    # The workspace lies in a view, whose daemon may be hung.
    mount = Mount(7, "0:50", record.workspace, "fuse.sandboxfs", "sandboxfs")
    with monkeypatch.context() as patched:
        patched.setattr(MountTable, "read", classmethod(lambda cls: MountTable([mount])))
        assert lines(capsys)[1][2:6] == ["in", "a", "view", "?"]
    change(store, "app", "two", "three")
    with monkeypatch.context() as patched:
        patched.setattr(listing, "_MOST", 1)
        assert lines(capsys)[1][2:4] == ["many", "?"]
    record.workspace.rename(tmp_path / "elsewhere")
    assert main(["list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["sandboxes"]
    assert (listed["changes"], listed["uncounted"]) == (None, "unreadable")


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_on_a_terminal_no_line_is_wider_than_it(
    store: Store, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    deep = tmp_path / ("directory-with-a-long-name-" * 4)
    made(store, "app", deep / "app", used=timedelta())
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= columns
    assert shown[1].endswith("/app")


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("changed", [False, True])
def test_a_long_name_does_not_make_a_line_wider_than_the_terminal(
    store: Store,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    changed: bool,
) -> None:
    name = "n" * 60 + "-end"
    made(store, name, tmp_path / "app", used=timedelta(hours=1))
    home = f"{name[:32]}.home"
    made(store, home, tmp_path / "home", used=timedelta(hours=2), companion_of=name)
    if changed:
        change(store, name, *map(str, range(1234)))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["list"]) == 0
    header, first, companion = capsys.readouterr().out.splitlines()
    assert max(map(len, (header, first, companion))) <= columns
    assert header.split()[:3] == ["NAME", "STATE", "CHANGES"]
    assert first.split()[0].endswith("-end")
    assert companion.startswith("  ")
    assert companion.split()[0].endswith(".home")
    assert ("1,234" in first) is changed


def test_the_home_is_written_short(store: Store, capsys: Captured) -> None:
    made(store, "app", Path(os.environ["HOME"], "projects", "app"), used=timedelta())
    assert lines(capsys)[1][7] == "~/projects/app"


def test_times_are_local_for_people_and_utc_for_programs(
    store: Store, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    store.create(
        SandboxRecord("app", workspace, tmp_path / "m", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    ).release()
    monkeypatch.setenv("TZ", "UTC-5")
    time.tzset()
    try:
        assert main(["status", "-s", "app"]) == 0
        assert "created:    2026-01-02 08:04:05\n" in capsys.readouterr().out
        assert main(["status", "-s", "app", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["created"] == "2026-01-02T03:04:05Z"
    finally:
        monkeypatch.undo()
        time.tzset()
