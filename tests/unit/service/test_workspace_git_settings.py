"""The user's own git configuration, read as git reads it and never from a repository."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.review.git_files import parse_settings
from sandboxfs.service.workspace import as_boolean, user_excludes, user_setting

LINES = [
    "[core]",
    "[Core]",
    '[core "sub"]',
    "[core.sub]",
    "[user]",
    "pager = delta",
    "  pager=less -FRX ; a comment",
    "pager",
    "Pager =",
    'pager = "a # b"  # c',
    "pager = a\\",
    "\tb  c\t",
    'pager = a \\\\ \\t\\"x\\" ',
    'pager = "  kept  "  ',
    "# pager = no",
    "; pager = no",
    "",
    "[core] pager = inline",
    "pager = a\\x",
    'pager = "open',
]


def asked_of_git(path: Path, name: str) -> tuple[int, str]:
    command = ["git", "config", "--file", str(path), "--get", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    return done.returncode, done.stdout.removesuffix("\n")


@pytest.fixture(scope="module")
def verbatim(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether the installed git keeps tabs within a value, as it does since 2.45."""
    path = tmp_path_factory.mktemp("tabs") / "config"
    path.write_text("[core]\npager = a\tb\n")
    status, value = asked_of_git(path, "core.pager")
    assert (status, value) in ((0, "a\tb"), (0, "a b"))
    return "\t" in value


@given(st.lists(st.sampled_from(LINES), max_size=6))
def test_a_file_says_what_git_takes_it_to_say(
    tmp_path_factory: pytest.TempPathFactory, verbatim: bool, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("config") / "config"
    path.write_text("\n".join(lines) + "\n")
    status, value = asked_of_git(path, "core.pager")
    settings = dict(parse_settings(path.read_text(), verbatim=verbatim))
    if status == 0:
        # Git tells a key without a value as nothing, and means yes.
        assert settings.get("core.pager") in (value, "true")
        assert settings["core.pager"] == value or not value
    elif status == 1:
        assert "core.pager" not in settings


@pytest.mark.parametrize(("verbatim", "value"), [(True, "a\tb  c"), (False, "a b  c")])
def test_tabs_within_a_value_are_read_as_each_version_of_git_does(verbatim: bool, value: str) -> None:
    text = '[core]\npager = a\\\n\tb  c\t\n[x]\ny = "\t" \\t'
    assert dict(parse_settings(text, verbatim=verbatim)) == {"core.pager": value, "x.y": "\t \t"}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "home/.config/git").mkdir(parents=True)
    return tmp_path / "home"


def test_the_later_file_and_what_it_includes_win(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_setting("core.pager") is None
    (home / ".config/git/config").write_text("[core]\npager = first\n")
    assert user_setting("core.pager") == "first"
    (home / ".gitconfig").write_text("[core]\npager = second\n[include]\npath = more\npath = ~/none\n")
    assert user_setting("core.pager") == "second"
    (home / "more").write_text("[core]\npager = third\n[include]\npath = more\n")
    assert user_setting("core.pager") == "third"
    (home / "system").write_text("[core]\npager = system\n[pager]\ndiff = of diff\n")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(home / "system"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "0")
    assert (user_setting("core.pager"), user_setting("pager.diff")) == ("third", "of diff")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    assert user_setting("core.pager") == "system"


def test_a_repository_has_no_say(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = home / "repository"
    (repository / ".git").mkdir(parents=True)
    (repository / ".git/config").write_text("[core]\npager = evil\nexcludesFile = /etc/passwd\n")
    monkeypatch.chdir(repository)
    assert user_setting("core.pager") is None
    assert user_excludes() == b""


def test_the_users_ignore_file_is_the_configured_one_or_the_default(home: Path) -> None:
    (home / ".config/git/ignore").write_text("*.swp\n")
    assert user_excludes() == b"*.swp\n"
    (home / ".gitconfig").write_text("[core]\nexcludesFile = ~/mine\n")
    assert user_excludes() == b""
    (home / "mine").write_text("*.bak\n")
    assert user_excludes() == b"*.bak\n"


def test_booleans_are_told_from_words() -> None:
    assert [as_boolean(word) for word in ("Yes", "1", "off", "0", "", "delta")] == [
        True,
        True,
        False,
        False,
        False,
        None,
    ]
