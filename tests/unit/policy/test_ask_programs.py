"""What is asked is named by the user, never by a project, and nothing about it is guessed."""

from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.ask_programs import AskedPrograms, checked_url, command_words
from sandboxfs.policy.config import read_project_rules, read_user_config

URL = "https://bot.example:8443/ask?room=1"


def config(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_the_configuration_names_a_command_and_a_url(tmp_path: Path) -> None:
    text = f'[ask]\ncommand = "bot --room \'a b\'"\nurl = "{URL}"\ntoken_file = "/run/token"\n'
    asked = read_user_config(config(tmp_path, text)).asked_programs
    assert asked == AskedPrograms(("bot", "--room", "a b"), URL, Path("/run/token"))
    listed = read_user_config(config(tmp_path, '[ask]\ncommand = ["/usr/bin/bot", "a b"]\n'))
    assert listed.asked_programs == AskedPrograms(("/usr/bin/bot", "a b"))


def test_a_tilde_in_the_configuration_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    asked = read_user_config(config(tmp_path, '[ask]\ncommand = "~/bin/bot ~"\n')).asked_programs
    assert asked.command == ("/home/me/bin/bot", "~")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("command = 1", "'ask.command': expected a string or an array of strings, found a number"),
        ("command = [1]", "'ask.command': expected a string or an array of strings, found an array"),
        ('command = ""', "'ask.command': expected a command, found ''"),
        ("command = []", "'ask.command': expected a command, found ''"),
        ('command = "bot \'"', "'ask.command': expected a command"),
        ('command = "a\\u0000b"', "'ask.command': expected a command"),
        ('command = "./bot"', "'ask.command': expected a program of the PATH or an absolute path"),
        ('command = ["bots/bot"]', "'ask.command': expected a program of the PATH or an absolute path"),
        ("url = 1", "'ask.url': expected a string, found a number"),
        ('url = "file:///etc/passwd"', "'ask.url': expected a URL that starts with http:// or https://"),
        ('url = "bot.example"', "'ask.url': expected a URL"),
        ('token_file = "token"', "'ask.token_file': expected an absolute path or one starting with '~'"),
        ('tokenfile = "/token"', "'ask.tokenfile': unknown key; did you mean 'token_file'?"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(tmp_path: Path, line: str, complaint: str) -> None:
    path = config(tmp_path, f"[ask]\ntimeout = 5\n{line}\n")
    with pytest.raises(UsageError) as refused:
        read_user_config(path)
    assert refused.value.message.startswith(f"{path}:3: {complaint}")
    problems: list[str] = []
    read_user_config(path, problems)
    assert problems == [refused.value.message]


@pytest.mark.parametrize("line", ['command = "bot"', f'url = "{URL}"', 'token_file = "/token"'])
def test_a_project_cannot_say_who_is_asked(tmp_path: Path, line: str) -> None:
    (tmp_path / ".sandboxfs.toml").write_text(f"\n[ask]\n{line}\n")
    with pytest.raises(UsageError) as refused:
        read_project_rules(tmp_path)
    assert refused.value.message == ".sandboxfs.toml:2: 'ask': unknown key; expected 'rule'"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "https:///ask",
        "ftp://bot.example/",
        "http://bot.example:port/",
        "http://bot.example:0/",
        "http://bot.example:99999/",
        "http://[::1/",
        "http://bot.example/a b",
        "http://bot.example/\n",
        "http://bot.example/\u00e4",
        "http://bot.example/#part",
    ],
)
def test_what_is_no_address_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        checked_url(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="token comes from a file") as refused:
        checked_url("https://me:s3cret@bot.example/")
    assert "s3cret" not in str(refused.value)


def test_a_command_is_words_and_no_shell_reads_it() -> None:
    assert command_words("bot 'a b' $HOME; rm *") == ("bot", "a b", "$HOME;", "rm", "*")
    assert command_words(["bot", ""]) == ("bot", "")


def test_what_the_command_line_names_is_asked_and_nothing_else() -> None:
    configured = AskedPrograms(("bot",), URL, Path("/token"))
    assert configured.given(None, None) == configured
    assert configured.given("other -x", None) == AskedPrograms(("other", "-x"))
    assert configured.given(None, "http://localhost/") == AskedPrograms(
        (), "http://localhost/", Path("/token")
    )
    # A token by itself is sent nowhere.
    assert AskedPrograms(token_file=Path("/token")).given(None, None) == AskedPrograms()
    with pytest.raises(UsageError, match="--ask-command: expected a command"):
        configured.given("", None)
    with pytest.raises(UsageError, match="--ask-url: expected a URL"):
        configured.given(None, "bot")
