"""A command to ask is found where a project cannot put one, and a token is its owner's alone."""

import os
from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.ask_programs import AskedPrograms
from sandboxfs.service.responder import check_asked, find_command, read_token
from sandboxfs.state.store import PolicySettings, dump_settings, parse_settings


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_command_is_found_in_the_path_of_whoever_mounts(tmp_path: Path) -> None:
    bot = program(tmp_path / "bin" / "bot")
    environment = {"PATH": f"/nowhere:{tmp_path / 'bin'}"}
    assert find_command("bot", environment, None) == bot
    assert find_command("bin/bot", environment, str(tmp_path)) == bot
    check_asked(AskedPrograms(("bot", "--x")), environment, None)


@pytest.mark.parametrize("path", ["", ".", "bin:.", "relative"])
def test_a_relative_directory_of_the_path_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for place in ("bot", "bin/bot", "relative/bot"):
        program(tmp_path / place)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="cannot find the command to ask, 'bot'"):
        find_command("bot", {"PATH": path}, str(tmp_path))


def test_a_command_that_cannot_be_executed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bot").write_text("")
    (tmp_path / "directory").mkdir()
    for word in ("bot", "directory", "missing"):
        with pytest.raises(UsageError, match="cannot find"):
            check_asked(AskedPrograms((str(tmp_path / word),)), {}, None)


def token(path: Path, content: str | bytes = "s3cret\n", mode: int = 0o600) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_a_token_is_one_word(tmp_path: Path) -> None:
    assert read_token(token(tmp_path / "token")) == "s3cret"
    for content in ("", "\n", "two words", "two\nlines", "\u00e4", b"\xff", b"a\0b", "x" * 5000):
        with pytest.raises(UsageError, match="one word"):
            read_token(token(tmp_path / "token", content))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_token_that_is_not_its_owners_alone_is_refused(tmp_path: Path, mode: int) -> None:
    path = token(tmp_path / "token", mode=mode)
    with pytest.raises(UsageError) as refused:
        check_asked(AskedPrograms((), "http://localhost/", path), {}, None)
    assert refused.value.hint == f"chmod 600 '{path}'"


def test_a_token_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(UsageError, match="not a regular file"):
        read_token(tmp_path / "fifo")
    with pytest.raises(UsageError, match="No such file"):
        read_token(tmp_path / "missing")


def test_a_record_says_who_is_asked_and_an_archive_cannot() -> None:
    asked = AskedPrograms(("/bin/bot", "a\udcff b"), "http://localhost/", Path("/to\udcffken"))
    written = dump_settings(PolicySettings(asked_programs=asked))
    assert parse_settings(dict(written), "here").asked_programs == asked
    # Archives carry this table alone.
    policy = {"policy": written["policy"]}
    assert parse_settings(dump_settings(PolicySettings()) | policy, "here").asked_programs == AskedPrograms()
    assert "asked" not in dump_settings(PolicySettings())
