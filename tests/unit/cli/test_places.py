"""A person names a path as it is called where they stand."""

from pathlib import Path

import pytest

from sandboxfs.cli.places import inside, is_directory
from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import UsageError

NOTHING_MOUNTED = MountTable([])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "home" / "app"
    (workspace / "src" / "deep").mkdir(parents=True)
    (workspace / "link").symlink_to("src")
    (workspace / "out").symlink_to("/usr")
    (tmp_path / "way").symlink_to(workspace)
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
        # A rule is asked about what links on the way lead to; the last name stands for itself.
        ("home/app", "link/a", "src/a"),
        ("home/app", "link", "link"),
        ("home/app", "out", "out"),
        ("view", "link/a", "src/a"),
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


def test_links_that_lead_in_circles_are_refused(workspace: Path) -> None:
    (workspace / "one").symlink_to("two")
    (workspace / "two").symlink_to("one")
    with pytest.raises(UsageError, match="Too many levels"):
        inside("one/a", workspace, None, None, NOTHING_MOUNTED)


def test_a_directory_is_told_by_the_upper_layer_first(workspace: Path, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "src").touch()
    assert not is_directory(upper, workspace, "src")
    assert is_directory(upper, workspace, "src/deep") is False
    (upper / "src").unlink()
    assert is_directory(upper, workspace, "src/deep")
    assert not is_directory(upper, workspace, "nowhere")
