"""A person names a path as it is called where they stand."""

import errno
import os
import pwd
from pathlib import Path

import pytest

from sandboxfs.control.mount_table import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.service.workspace import holds_home, inside, user_path

NOTHING_MOUNTED = MountTable([])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "home" / "app"
    (workspace / "src" / "deep").mkdir(parents=True)
    (workspace / "link").symlink_to("src")
    (workspace / "out").symlink_to("/usr")
    (workspace / "circle").symlink_to("circle")
    (tmp_path / "way").symlink_to(workspace)
    (tmp_path / "around").symlink_to("home")
    (tmp_path / "shortcut").symlink_to("home/app/src/deep")
    (tmp_path / "through").symlink_to("home/app/link/deep")
    (tmp_path / "way-to-view").symlink_to("view")
    return workspace


@pytest.mark.parametrize(
    ("standing", "given", "expected"),
    [
        ("home/app", "src", "src"),
        ("home/app/src", "a", "src/a"),
        ("home/app/src", "../a", "a"),
        ("home/app/src", "..", ""),
        ("home/app", ".", ""),
        ("home/app", "src/", "src"),
        ("home/app", "..", None),
        ("home/app", "../app-evil", None),
        ("home/app/src", "../../app/x", "x"),
        ("home", "app/src", "src"),
        ("home", "src", "src"),
        ("elsewhere", "src/a", "src/a"),
        ("elsewhere", "not/there/yet", "not/there/yet"),
        ("view", "src/a", "src/a"),
        ("view/src", "../b", "b"),
        ("home/app", "TMP/view/src/a", "src/a"),
        ("home/app", "TMP/view", ""),
        ("home/app", "TMP/home/app/src", "src"),
        ("elsewhere", "TMP/way/src/a", "src/a"),
        ("elsewhere", "/etc/passwd", None),
        ("elsewhere", "/", None),
        ("home/app", "TMP/home/app-evil/x", None),
        # Links that lead there are followed, up to the top.
        ("elsewhere", "TMP/way", ""),
        ("elsewhere", "TMP/way/link/a", "link/a"),
        ("elsewhere", "TMP/around/app/link/a", "link/a"),
        ("elsewhere", "TMP/shortcut/a", "src/deep/a"),
        ("elsewhere", "TMP/through/a", "link/deep/a"),
        ("elsewhere", "TMP/way-to-view/link/a", "link/a"),
        # Below it every name stands for itself.
        ("home/app", "link/a", "link/a"),
        ("home/app", "link", "link"),
        ("home/app", "out", "out"),
        ("home/app", "out/bin", "out/bin"),
        ("home/app", "link/../a", "a"),
        ("home/app", "circle/a", "circle/a"),
        ("home/app", "circle", "circle"),
        ("elsewhere", "TMP/view/circle/a", "circle/a"),
        ("view", "link/a", "link/a"),
        ("view/link", "a", "link/a"),
    ],
)
def test_a_path_is_meant_as_it_is_called(
    workspace: Path, tmp_path: Path, standing: str, given: str, expected: str | None
) -> None:
    given = given.replace("TMP", str(tmp_path))
    current = str(tmp_path / standing)
    assert inside(given, workspace, tmp_path / "view", current, NOTHING_MOUNTED) == expected


def test_without_a_current_directory_a_path_starts_at_the_workspace(workspace: Path) -> None:
    assert inside("src/a", workspace, None, None, NOTHING_MOUNTED) == "src/a"


def test_a_view_inside_the_workspace_shows_the_workspace(workspace: Path) -> None:
    view = workspace / "view"
    assert inside("src/a", workspace, view, str(view), NOTHING_MOUNTED) == "src/a"
    assert inside(str(view / "b"), workspace, view, "/", NOTHING_MOUNTED) == "b"


def test_a_home_directory_is_understood(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(workspace.parent))
    assert inside("~/app/src", workspace, None, "/", NOTHING_MOUNTED) == "src"


@pytest.mark.parametrize("given", ["", "a\0b", "~nobody-at-all/x"])
def test_what_is_no_path_is_refused(workspace: Path, given: str) -> None:
    with pytest.raises(UsageError):
        inside(given, workspace, None, "/", NOTHING_MOUNTED)


def test_links_on_the_way_there_that_lead_in_circles_are_refused(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(UsageError, match="Too many levels"):
        inside(str(tmp_path / "circle" / "a"), workspace, None, None, NOTHING_MOUNTED)


def test_a_link_where_one_stands_is_not_in_the_way_of_what_the_workspace_has(
    workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "src").symlink_to("src")
    assert inside("src/a", workspace, None, str(tmp_path), NOTHING_MOUNTED) == "src/a"


def test_nothing_below_the_top_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mountpoint whose daemon is hung would keep whoever looks at it."""
    view = tmp_path / "view"
    looked: list[Path] = []

    def readlink(path: Path) -> Path:
        looked.append(path)
        raise OSError(errno.EINVAL, "no link")

    monkeypatch.setattr(Path, "readlink", readlink)
    assert inside(str(view / "deep/a"), tmp_path / "app", view, "/", NOTHING_MOUNTED) == "deep/a"
    assert tmp_path in looked
    assert not [path for path in looked if path.is_relative_to(view)]


def test_a_relative_path_without_a_current_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="'x': the current directory is gone"):
        user_path("x")
    assert user_path(str(tmp_path)) == tmp_path


def test_the_home_of_the_user_is_one_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [*pwd.getpwuid(os.getuid())]
    fields[5] = str(tmp_path / "of-the-system")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(fields))
    monkeypatch.setenv("HOME", str(tmp_path / "of-the-environment"))
    assert holds_home(tmp_path / "of-the-system")
    assert holds_home(tmp_path / "of-the-environment")
    assert holds_home(tmp_path)
    assert not holds_home(tmp_path / "elsewhere")


def test_a_home_at_the_root_is_held_by_the_root_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [*pwd.getpwuid(os.getuid())]
    fields[5] = "/"
    monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(fields))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert holds_home(Path("/"))
    assert not holds_home(Path("/usr"))
