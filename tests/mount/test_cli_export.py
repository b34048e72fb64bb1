"""Changes go from a mounted sandbox to another machine, and can be worked with there."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archived import copied
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounts import detach_mount, mountpoints
from tests.support.tree import assert_same_tree, build, capture

pytestmark = pytest.mark.any_user


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "app", {"a": "old\n", "gone": "gone\n", "dir/inner": "inner\n"})


@pytest.fixture
def view(tmp_path: Path, workspace: Path) -> Iterator[Path]:
    """The view of a sandbox that did something; gone at the end, with the workspace untouched."""
    before = capture(workspace)
    view = tmp_path / "view"
    done("mount", "--mkdir", workspace, view)
    (view / "a").write_text("new\n")
    (view / "gone").unlink()
    (view / "dir").rename(view / "moved")
    (view / "link").symlink_to("a")
    yield view
    for place in reversed([place for place in mountpoints() if place.is_relative_to(tmp_path)]):
        detach_mount(place)
    assert_same_tree(capture(workspace), before)


def done(*arguments: str | Path) -> str:
    result = run_sandboxfs(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_what_is_exported_from_a_view_is_seen_in_the_view_of_the_copy(
    workspace: Path, view: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "changes.tgz"
    done("export", "-s", "app", archive)
    copy = copied(workspace, tmp_path / "copy")
    before = capture(copy)
    name = done("import", archive, copy).strip()
    assert name == "app-2"
    place = tmp_path / "other"
    done("mount", "--mkdir", "--name", name, copy, place)
    assert sorted(os.listdir(place)) == sorted(os.listdir(view))
    assert (place / "a").read_text() == "new\n"
    assert (place / "moved" / "inner").read_text() == "inner\n"
    assert os.readlink(place / "link") == "a"
    # It goes on like any other.
    (place / "moved" / "inner").write_text("further\n")
    done("unmount", place)
    assert_same_tree(capture(copy), before)


def test_an_archive_does_not_go_into_a_view(view: Path) -> None:
    result = run_sandboxfs("export", "-s", "app", view / "changes.tgz")
    assert result.returncode == 2
    assert "it would be in the view of a sandbox" in result.stderr
    assert not (view / "changes.tgz").exists()


def test_exporting_while_a_program_appends_takes_what_was_there(view: Path, tmp_path: Path) -> None:
    (view / "log").write_text("first line\n")
    script = 'while :; do echo another line >> "$1"; done'
    writer = subprocess.Popen(["sh", "-c", script, "sh", view / "log"])
    try:
        done("export", "-s", "app", tmp_path / "changes.tar")
    finally:
        writer.kill()
        writer.wait()
    listing = subprocess.run(
        ["tar", "-xOf", tmp_path / "changes.tar", "files/log"], capture_output=True, check=True
    )
    assert listing.stdout.startswith(b"first line\n")
