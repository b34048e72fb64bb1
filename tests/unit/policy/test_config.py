"""The configuration is understood or refused, never guessed at."""

from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.policy.config import UserConfig, load_config


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_a_missing_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_config(tmp_path / "nowhere" / "config.toml") == UserConfig(root=None, mode="rw")


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "")) == UserConfig()


def test_root_and_mode_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, '[workspace]\nroot = "/srv/app"\nmode = "ro"\n')
    assert load_config(path) == UserConfig(root=Path("/srv/app"), mode="ro")


def test_a_tilde_in_root_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert load_config(write(tmp_path, 'workspace.root = "~/app"')).root == Path("/home/someone/app")


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("[workspace\n", 1, "malformed TOML"),
        ('[workspace]\nroot = "/a"\nmode = rw\n', 3, "malformed TOML"),
        ('[workspace]\n\nroots = "/a"\n', 3, "'workspace.roots': unknown key; expected 'mode' or 'root'"),
        ("[workspaces]\n", 1, "'workspaces': unknown key; expected 'workspace'"),
        ('colour = "red"\n', 1, "'colour': unknown key"),
        ("[workspace]\nroot = 3\n", 2, "'workspace.root': expected a string, found a number"),
        ('[workspace]\nroot = "app"\n', 2, "'workspace.root': expected an absolute path"),
        ('[workspace]\nmode = "rwx"\n', 2, "'workspace.mode': expected 'ro' or 'rw', found 'rwx'"),
        ("[workspace]\nmode = true\n", 2, "'workspace.mode': expected 'ro' or 'rw', found a boolean"),
        ("workspace = 1\n", 1, "'workspace': expected a table, found a number"),
        ("workspace.mode = 1979-05-27\n", 1, "'workspace.mode': expected 'ro' or 'rw', found a date"),
        ('# note\n[[rule]]\npath = "x"\n', 2, "'rule': not supported yet"),
        ('[workspace]\nmode = "rw"\n[[workspace.allow]]\n', 3, "'workspace.allow': not supported yet"),
        ("[workspace]\nenabled = true\n", 2, "'workspace.enabled': not supported yet"),
        ('"workspace" . "mode" = "no"\n', 1, "'workspace.mode': expected 'ro' or 'rw'"),
    ],
)
def test_what_is_not_understood_is_refused_with_file_line_key_and_expectation(
    tmp_path: Path, text: str, line: int, complaint: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        load_config(path)
    assert refused.value.message.startswith(f"{path}:{line}: ")
    assert complaint in refused.value.message


def test_a_key_written_in_an_unusual_way_is_refused_without_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, 'workspace = { "mo\\u0064e" = "no" }\n')
    with pytest.raises(UsageError, match=r"'workspace\.mode': expected 'ro' or 'rw'"):
        load_config(path)


def test_a_file_that_is_no_text_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"[workspace]\n# \xff\n")
    with pytest.raises(UsageError, match=":2: configuration is not UTF-8 text"):
        load_config(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read configuration"):
        load_config(tmp_path)
