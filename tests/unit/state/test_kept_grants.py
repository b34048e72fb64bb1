"""A kept answer is written to the user's file and taken out again, and every other byte of the file stays."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.policy.config import read_user_config
from sandboxfs.policy.grants import Extent, KeptGrant
from sandboxfs.policy.model import Access, SourceKind
from sandboxfs.state.kept_grants import GrantFile

OTHERS = b"""\
# My own file.\t
[[rule]]
path = "**/.env*"   # secret
mode = "ask"
[log]
level = "all" # no newline"""


def kept(
    workspace: Path, target: str = ".env", *, allows: bool = True, reason: str | None = None
) -> KeptGrant:
    return KeptGrant(
        str(workspace),
        "**/.env*",
        SourceKind.USER,
        Access.READ,
        allows,
        Extent.PATH,
        target,
        "/usr/bin/cat",
        reason,
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "app"
    made.mkdir()
    return made


@pytest.fixture
def file(tmp_path: Path, workspace: Path) -> GrantFile:
    return GrantFile(tmp_path / "config/config.toml", workspace, tmp_path / "view")


def write(file: GrantFile, content: bytes) -> None:
    file.path.parent.mkdir(exist_ok=True)
    file.path.write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [b"", OTHERS, OTHERS + b"\n", OTHERS + b"\n\n\n", OTHERS.replace(b"\n", b"\r\n") + b"\r\n", b"#"],
)
def test_a_table_is_appended_and_taken_out_and_the_rest_stays_byte_for_byte(
    file: GrantFile, workspace: Path, content: bytes
) -> None:
    write(file, content)
    file.path.chmod(0o640)
    first = file.add(kept(workspace), "today: question 3")
    second = file.add(kept(workspace, "odd \t\n\x7f'\"\\ é", reason="no"), "later")
    now = file.path.read_bytes()
    assert now.startswith(content)
    assert b"# sandboxfs, today: question 3" in now
    assert file.read() == (first, second) == (kept(workspace), second)
    for grant in file.read():
        assert grant.source is not None
        assert now.splitlines()[(grant.source.line or 0) - 1] == b"[[grant]]"
    assert file.remove([first]) == {first}
    assert [grant.target for grant in file.read()] == [second.target]
    assert file.remove([first]) == set()
    assert file.remove([second]) == {second}
    end = b"" if not content or content.endswith(b"\n") else b"\n"
    assert file.path.read_bytes() == content + end
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    assert os.listdir(file.path.parent) == ["config.toml"]


def test_what_was_written_around_the_tables_stays(file: GrantFile, workspace: Path) -> None:
    write(file, OTHERS + b"\n")
    for target in ("a", "b", "c"):
        file.add(kept(workspace, target), target)
    text = file.path.read_bytes()
    text += b"\n# about the last rule\n[[rule]]\npath = 'z'\nmode = 'ro'\n"
    text = text.replace(b'path = "b"\n', b"# in between\npath = 'b'   # quoted\n")
    write(file, text)
    file.remove([kept(workspace, "b"), kept(workspace, "c")])
    left = file.path.read_bytes()
    assert left.startswith(OTHERS + b"\n\n# sandboxfs, a\n[[grant]]\n")
    assert left.endswith(b"\n# about the last rule\n[[rule]]\npath = 'z'\nmode = 'ro'\n")
    assert [grant.target for grant in file.read()] == ["a"]


def test_a_missing_file_is_made_for_its_user_alone(file: GrantFile, workspace: Path) -> None:
    file.add(kept(workspace), "today")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert file.read() == (kept(workspace),)


def test_a_symlink_is_followed_and_what_it_names_is_replaced(
    file: GrantFile, workspace: Path, tmp_path: Path
) -> None:
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    (dotfiles / "real.toml").write_bytes(OTHERS)
    file.path.parent.mkdir()
    file.path.symlink_to("../dotfiles/real.toml")
    file.add(kept(workspace), "today")
    assert os.readlink(file.path) == "../dotfiles/real.toml"
    assert (dotfiles / "real.toml").read_bytes().startswith(OTHERS)
    assert len(file.read()) == 1
    assert os.listdir(dotfiles) == ["real.toml"]


def test_other_workspaces_have_their_own(file: GrantFile, workspace: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("app")
    other = tmp_path / "other"
    file.add(kept(link), "by another way")
    file.add(kept(other), "another")
    assert [grant.workspace for grant in file.read()] == [str(link)]
    assert GrantFile(file.path, other, file.view).read() == (kept(other),)
    assert file.remove([kept(workspace)]) == {kept(workspace)}
    assert [grant.workspace for grant in read_user_config(file.path).grants] == [str(other)]


@pytest.mark.parametrize(
    "content",
    [
        b"grant = []\n",
        b"[workspace\n",
        b"unknown = 1\n",
        b"a = 1\n[[grant]]\n",
    ],
)
def test_a_file_to_which_nothing_can_be_appended_is_left_alone(
    file: GrantFile, workspace: Path, content: bytes
) -> None:
    write(file, content)
    with pytest.raises(UsageError):
        file.add(kept(workspace), "today")
    assert file.path.read_bytes() == content
    assert os.listdir(file.path.parent) == ["config.toml"]


def test_a_table_that_is_written_otherwise_is_left_to_its_author(file: GrantFile, workspace: Path) -> None:
    grant = kept(workspace, reason="a\nb")
    keys = [line.split(" = ", 1) for line in grant.toml().splitlines()[1:]]
    one = ", ".join(f"{key} = {value}" for key, value in keys)
    inline = f"grant = [{{{one}}}, {{{one.replace('.env', 'other')}}}]\n"
    several_lines = grant.toml().replace('reason = "a\\nb"', 'reason = """a\nb"""')
    for text in (inline, several_lines):
        write(file, text.encode())
        assert grant in file.read()
        with pytest.raises(UsageError) as refused:
            file.remove([grant])
        assert refused.value.hint is not None
        assert file.path.read_text() == text


def test_a_file_of_a_project_a_file_in_the_view_and_what_is_no_file_are_refused(
    file: GrantFile, workspace: Path, tmp_path: Path
) -> None:
    for place in (workspace / ".sandboxfs.toml", file.view / "config.toml", Path("/dev/null"), tmp_path):
        with pytest.raises(UsageError):
            GrantFile(place, workspace, file.view).add(kept(workspace), "today")
    assert os.listdir(workspace) == []
    write(file, b"")
    os.link(file.path, tmp_path / "second name")
    with pytest.raises(UsageError, match="one name"):
        file.add(kept(workspace), "today")


def test_on_a_full_disk_the_file_stays_and_nothing_is_left_beside_it(
    file: GrantFile, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write(file, OTHERS)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        file.add(kept(workspace), "today")
    assert os.listdir(file.path.parent) == ["config.toml"]
    assert file.path.read_bytes() == OTHERS


Edit = Callable[[Path], None]


def appended(path: Path) -> None:
    with path.open("ab") as opened:
        opened.write(b"\n[ask]\ntimeout = 7\n")


def renamed_over(path: Path) -> None:
    new = path.with_name("editor")
    new.write_bytes(path.read_bytes() + b"\n[ask]\ntimeout = 7\n")
    new.replace(path)


@pytest.mark.parametrize("edit", [appended, renamed_over])
@pytest.mark.parametrize("moment", ["exchange", "attributes_at"])
def test_an_edit_by_another_program_meanwhile_is_kept(
    file: GrantFile, workspace: Path, edit: Edit, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandboxfs.state import kept_grants

    write(file, OTHERS + b"\n")
    owner: object = HostDir if moment == "exchange" else kept_grants
    original = getattr(owner, moment)
    edits = [edit]

    def interrupted(*args: object) -> object:
        if edits:
            edits.pop()(file.path)
        return original(*args)

    monkeypatch.setattr(owner, moment, interrupted)
    file.add(kept(workspace), "today")
    config = read_user_config(file.path)
    assert (config.ask_timeout, len(config.grants)) == (7, 1)
    assert os.listdir(file.path.parent) == ["config.toml"]


def test_a_file_that_never_rests_is_left_to_the_other_program(
    file: GrantFile, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, OTHERS + b"\n")
    original = HostDir.exchange

    def interrupted(here: HostDir, name: bytes, other: HostDir, other_name: bytes) -> None:
        with file.path.open("ab") as opened:
            opened.write(b"#\n")
        original(here, name, other, other_name)

    monkeypatch.setattr(HostDir, "exchange", interrupted)
    with pytest.raises(UsageError, match="another program"):
        file.add(kept(workspace), "today")
    assert set(file.path.read_bytes().removeprefix(OTHERS).split()) == {b"#"}
    assert os.listdir(file.path.parent) == ["config.toml"]
