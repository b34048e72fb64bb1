"""Which sandbox a verb is about: by name, by the current directory, and for reading verbs the only one."""

import io
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import NoSuchSandbox, SandboxError, UsageError
from sandboxfs.service.select import select
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.delenv("SANDBOXFS_SANDBOX", raising=False)
    monkeypatch.chdir("/")
    return Store(Locations(tmp_path / "state", tmp_path / "run", tmp_path / "config.toml"))


def create(
    store: Store, name: str, workspace: Path, mountpoint: Path, companion_of: str | None = None
) -> SandboxRecord:
    record = SandboxRecord(name, workspace, mountpoint, datetime(2026, 1, 2, tzinfo=UTC))
    record = replace(record, companion_of=companion_of)
    store.create(record).release()
    return record


def reading(store: Store, name: str | None = None) -> str:
    return select(store, name, caller_context(as_json=False), TerminalEvents(), changing=False).name


def changing(store: Store, name: str | None = None) -> str:
    return select(store, name, caller_context(as_json=False), TerminalEvents(), changing=True).name


@pytest.mark.parametrize("verb", [reading, changing])
def test_without_any_sandbox_there_is_none_to_select(
    store: Store, verb: Callable[[Store, str | None], str]
) -> None:
    with pytest.raises(NoSuchSandbox):
        verb(store, None)


def test_a_verb_that_reads_falls_back_to_the_only_sandbox_and_says_which(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(store, "app", tmp_path / "w", tmp_path / "m")
    assert reading(store) == "app"
    assert f"'app' of '{tmp_path / 'w'}'" in capsys.readouterr().err


def test_a_program_that_reads_json_gets_no_note(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(store, "app", tmp_path / "w", tmp_path / "m")
    assert select(store, None, caller_context(as_json=True), TerminalEvents(), changing=False).name == "app"
    assert capsys.readouterr().err == ""


def test_a_verb_that_changes_something_never_falls_back_to_the_only_sandbox(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "app", tmp_path / "w", tmp_path / "m")
    with pytest.raises(UsageError, match="there is app") as caught:
        changing(store)
    assert caught.value.details == {"sandboxes": ["app"]}
    assert changing(store, "app") == "app"
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "app")
    assert changing(store) == "app"


@pytest.mark.parametrize("here", ["w", "w/sub", "m/sub"])
def test_a_verb_that_changes_something_takes_the_sandbox_around_the_current_directory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    create(store, "app", tmp_path / "w", tmp_path / "m")
    (tmp_path / here).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / here)
    assert changing(store) == "app"


@pytest.mark.parametrize("verb", [reading, changing])
def test_a_companion_is_never_meant_without_being_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[[Store, str | None], str]
) -> None:
    create(store, "app", tmp_path / "elsewhere", tmp_path / "m")
    create(store, "app.home", tmp_path / "home", tmp_path / "n", companion_of="app")
    (tmp_path / "home" / "other").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "home" / "other")
    if verb is changing:
        with pytest.raises(UsageError, match=r"there is app$"):
            verb(store, None)
    else:
        assert verb(store, None) == "app"
    assert verb(store, "app.home") == "app.home"


@pytest.mark.parametrize("verb", [reading, changing])
def test_a_companion_alone_is_no_sandbox_to_fall_back_to(
    store: Store, tmp_path: Path, verb: Callable[[Store, str | None], str]
) -> None:
    create(store, "app.home", tmp_path / "home", tmp_path / "n", companion_of="app")
    with pytest.raises(NoSuchSandbox):
        verb(store, None)


def test_a_given_name_beats_the_environment_and_an_unknown_one_is_an_error(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "one", tmp_path / "w", tmp_path / "m")
    create(store, "two", tmp_path / "w", tmp_path / "n")
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "two")
    assert reading(store, "one") == "one"
    assert reading(store) == "two"
    monkeypatch.setenv("SANDBOXFS_SANDBOX", "three")
    with pytest.raises(NoSuchSandbox):
        reading(store)


def used(store: Store, name: str, when: int) -> None:
    os.utime(store.places(name).lock, (when, when))


def test_several_sandboxes_are_an_error_that_lists_them_the_last_used_first(
    store: Store, tmp_path: Path
) -> None:
    create(store, "one", tmp_path / "v", tmp_path / "m")
    create(store, "two", tmp_path / "w", tmp_path / "n")
    used(store, "one", 1_900_000_000)
    used(store, "two", 2_000_000_000)
    with pytest.raises(UsageError, match="two, one"):
        reading(store)


class Typed(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "name"), [("1\n", "two"), ("2\n", "one"), ("one\n", "one")])
def test_where_several_match_a_person_is_asked_the_last_used_first(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, name: str
) -> None:
    for one, when in (("one", 1_900_000_000), ("two", 2_000_000_000)):
        create(store, one, tmp_path, tmp_path / one)
        used(store, one, when)
    monkeypatch.chdir(tmp_path)
    screen = Typed()
    monkeypatch.setattr("sys.stdin", Typed(typed))
    monkeypatch.setattr("sys.stderr", screen)
    assert changing(store) == name
    assert screen.getvalue().index("1  two") < screen.getvalue().index("2  one")


@pytest.mark.parametrize("typed", ["", "\n", "0\n", "3\n", "x\n", "-1\n"])
def test_an_answer_that_names_no_sandbox_selects_none(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    create(store, "one", tmp_path, tmp_path / "m")
    create(store, "two", tmp_path, tmp_path / "n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", Typed(typed))
    monkeypatch.setattr("sys.stderr", Typed())
    with pytest.raises(UsageError, match="no sandbox was chosen"):
        changing(store)


@pytest.mark.parametrize(
    ("here", "name"),
    [("w", "outer"), ("w/sub", "outer"), ("w/view", "inner"), ("w/view/deep", "inner"), ("m/sub", "outer")],
)
def test_the_sandbox_that_most_closely_holds_the_current_directory_is_selected(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, name: str
) -> None:
    create(store, "outer", tmp_path / "w", tmp_path / "m")
    create(store, "inner", tmp_path / "x", tmp_path / "w" / "view")
    (tmp_path / here).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / here)
    assert reading(store) == changing(store) == name


def test_a_directory_that_only_starts_like_a_workspace_does_not_count(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "one", tmp_path / "app", tmp_path / "m")
    create(store, "two", tmp_path / "other", tmp_path / "n")
    (tmp_path / "app-evil").mkdir()
    monkeypatch.chdir(tmp_path / "app-evil")
    for verb in (reading, changing):
        with pytest.raises(SandboxError):
            verb(store, None)


def test_a_current_directory_that_is_gone_does_not_matter_for_reading(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, "app", tmp_path / "w", tmp_path / "m")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert reading(store) == "app"
    with pytest.raises(UsageError):
        changing(store)


def test_a_sandbox_that_cannot_be_read_is_told_of_and_not_passed_over(store: Store, tmp_path: Path) -> None:
    create(store, "app", tmp_path / "w", tmp_path / "m")
    store.places("app").record.write_text("broken")
    with pytest.raises(UsageError, match="sandbox record"):
        reading(store)


CHANGING = [
    ["commit", "--yes"],
    ["commit", "--yes", "--json"],
    ["commit", "--dry-run"],
    ["discard", "--all", "--yes"],
    ["undo", "--yes"],
    ["unmount"],
    ["gc"],
    ["allow", "x"],
    ["ro"],
    ["rw"],
    ["enable"],
    ["disable"],
]


@pytest.mark.parametrize("words", CHANGING, ids=" ".join)
def test_no_verb_that_changes_something_takes_the_only_sandbox_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    store = Store(Locations.from_environment())
    (tmp_path / "w").mkdir()
    create(store, "app", tmp_path / "w", tmp_path / "m")
    (store.places("app").upper / "new").write_text("made in the sandbox")
    monkeypatch.chdir("/usr")
    assert main(words) == 2
    assert "which sandbox is meant?" in capsys.readouterr().err
    assert list((tmp_path / "w").iterdir()) == []


def test_a_commit_names_the_sandbox_and_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(Locations.from_environment())
    (tmp_path / "w").mkdir()
    create(store, "app", tmp_path / "w", tmp_path / "m")
    (store.places("app").upper / "new").write_text("made in the sandbox")
    monkeypatch.chdir(tmp_path / "w")
    assert main(["commit", "--yes"]) == 0
    assert f"committed 1 change of 'app' to '{tmp_path / 'w'}'" in capsys.readouterr().err
    assert main(["undo", "--yes"]) == 0
    assert f"commit 1 of sandbox 'app' of '{tmp_path / 'w'}'" in capsys.readouterr().err
    assert main(["discard", "--all", "--yes"]) == 0
    assert f"discarded 1 change of 'app' for '{tmp_path / 'w'}'" in capsys.readouterr().err
