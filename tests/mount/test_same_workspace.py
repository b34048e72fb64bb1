"""A sandbox writes into the directory that it was made for, and into no other that has its place."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.conditions import require_root, require_tool
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounts import detach_mount
from tests.support.tree import build


class Desk:
    """A state directory, a workspace and two places to mount at."""

    def __init__(self, place: Path) -> None:
        self.state = place / "state"
        self.workspace = build(place / "workspace", {"file": "old\n", "gone": "gone\n"})
        self.disk = place / "disk"
        self.view = place / "view"
        self.disk.mkdir()
        self.view.mkdir()

    def run(self, *words: str | Path, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        return run_sandboxfs(*words, state=self.state, cwd=cwd)

    def done(self, *words: str | Path) -> str:
        finished = self.run(*words)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def refused(self, *words: str | Path) -> str:
        finished = self.run(*words)
        assert finished.returncode == 2, (finished.returncode, finished.stderr)
        return finished.stderr

    def change(self, workspace: Path) -> None:
        """Leave changes in the sandbox `app` of *workspace*, which is not mounted afterwards."""
        self.done("mount", "--name", "app", workspace, self.view)
        (self.view / "file").write_text("new\n")
        (self.view / "gone").unlink(missing_ok=True)
        self.done("unmount", "-s", "app")

    def replace(self) -> None:
        """Put another directory in the place of the workspace."""
        self.workspace.rename(self.workspace.with_name("away"))
        build(self.workspace, {"file": "old\n"})


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for mountpoint in (made.view, made.disk, made.workspace / "data"):
        with suppress(OSError, subprocess.SubprocessError):
            detach_mount(mountpoint)


def test_a_commit_does_not_write_below_a_mount_that_is_gone(desk: Desk) -> None:
    desk.done("mount", "--name", "disk", desk.workspace, desk.disk)
    desk.change(desk.disk)
    desk.done("unmount", "-s", "disk")
    for words in (["commit", "--yes"], ["discard", "--all", "--yes"], ["undo", "--yes"]):
        told = desk.refused(*words, "-s", "app")
        assert f"'{desk.disk}' is not the directory that sandbox 'app' was made for" in told
        assert "it was on a disk or a view that is not mounted now" in told
    assert "not mounted now" in desk.refused("mount", "--name", "app", desk.disk, desk.view)
    assert os.listdir(desk.disk) == []
    desk.done("mount", "--name", "disk", desk.workspace, desk.disk)
    desk.done("commit", "--yes", "-s", "app")
    assert (desk.disk / "file").read_text() == "new\n"
    assert not (desk.disk / "gone").exists()
    desk.done("unmount", "-s", "disk")


def test_an_undo_does_not_write_into_another_directory(desk: Desk) -> None:
    desk.change(desk.workspace)
    desk.done("commit", "--yes", "-s", "app")
    desk.replace()
    assert "another directory has its place" in desk.refused("undo", "--yes", "-s", "app")
    assert sorted(os.listdir(desk.workspace)) == ["file"]


def test_a_directory_that_was_replaced_on_purpose_is_taken_when_a_person_says_so(desk: Desk) -> None:
    desk.change(desk.workspace)
    desk.replace()
    told = desk.refused("commit", "--yes", "-s", "app")
    assert "'sandboxfs mount --name app --workspace-replaced'" in told
    desk.refused("mount", "--name", "app", desk.workspace, desk.view)
    desk.done("mount", "--name", "app", "--workspace-replaced", desk.workspace, desk.view)
    assert (desk.view / "file").read_text() == "new\n"
    desk.done("unmount", "-s", "app")
    desk.done("commit", "--yes", "-s", "app", "--on-conflict", "theirs")
    assert (desk.workspace / "file").read_text() == "new\n"


def test_a_sandbox_without_changes_takes_the_directory_that_is_there(desk: Desk) -> None:
    desk.done("mount", "--name", "app", desk.workspace, desk.view)
    desk.done("unmount", "-s", "app")
    desk.replace()
    desk.change(desk.workspace)
    desk.done("commit", "--yes", "-s", "app")
    assert (desk.workspace / "file").read_text() == "new\n"


def test_a_sandbox_whose_workspace_was_replaced_can_be_removed(desk: Desk) -> None:
    desk.change(desk.workspace)
    desk.replace()
    desk.done("rm", "--force", "app")
    assert (desk.workspace / "file").read_text() == "old\n"


def test_a_record_without_identity_learns_it_at_the_next_mount(desk: Desk) -> None:
    desk.change(desk.workspace)
    record = desk.state / "sandboxes" / "app" / "sandbox.toml"
    text = record.read_text()
    before, table = text.split("[identity]\n")
    record.write_text(before + table[table.index("[") :])
    desk.done("mount", "--name", "app", desk.workspace, desk.view)
    desk.done("unmount", "-s", "app")
    assert record.read_text() == text


# Disks


class Disk:
    """An image of a disk, mounted at a place with a loop device."""

    def __init__(self, image: Path, place: Path) -> None:
        require_root()
        for tool in ("mkfs.ext4", "losetup"):
            require_tool(tool)
        self.image, self.place = image, place
        with image.open("wb") as file:
            file.truncate(8 << 20)
        # All made at one time: on the day of a copy, the birth tells as little.
        environment = {**os.environ, "E2FSPROGS_FAKE_TIME": "1700000000"}
        subprocess.run(["mkfs.ext4", "-q", image], check=True, env=environment, timeout=60)

    def mount(self) -> None:
        done = subprocess.run(["mount", "-o", "loop", self.image, self.place], check=False, timeout=60)
        if done.returncode:
            pytest.skip("no loop device can be had")

    def unmount(self) -> None:
        subprocess.run(["umount", self.place], check=True, timeout=60)


def test_another_disk_mounted_at_the_same_place_is_not_the_same_workspace(desk: Desk, tmp_path: Path) -> None:
    first, second = (Disk(tmp_path / name, desk.disk) for name in ("first", "second"))
    for one in (first, second):
        one.mount()
        (desk.disk / "file").write_text("old\n")
        numbers = os.stat(desk.disk).st_ino
        one.unmount()
        assert numbers == 2
    first.mount()
    desk.change(desk.disk)
    first.unmount()
    second.mount()
    for words in (["commit", "--yes"], ["discard", "--all", "--yes"], ["undo", "--yes"]):
        assert "it was on another disk" in desk.refused(*words, "-s", "app")
    assert "it was on another disk" in desk.refused("mount", "--name", "app", desk.disk, desk.view)
    assert (desk.disk / "file").read_text() == "old\n"
    second.unmount()
    first.mount()
    desk.done("commit", "--yes", "-s", "app")
    assert (desk.disk / "file").read_text() == "new\n"
    first.unmount()


def test_a_record_without_the_volume_of_its_disk_learns_it_at_the_next_mount(
    desk: Desk, tmp_path: Path
) -> None:
    disk = Disk(tmp_path / "image", desk.disk)
    disk.mount()
    (desk.disk / "file").write_text("old\n")
    desk.change(desk.disk)
    record = desk.state / "sandboxes" / "app" / "sandbox.toml"
    text = record.read_text()
    lines = text.splitlines(keepends=True)
    record.write_text("".join(line for line in lines if not line.startswith("volume = ")))
    assert record.read_text() != text
    desk.done("mount", "--name", "app", desk.disk, desk.view)
    desk.done("unmount", "-s", "app")
    assert record.read_text() == text
    disk.unmount()


@pytest.mark.parametrize("meanwhile", ["gone", "another"])
def test_nothing_is_written_below_the_place_of_a_disk_in_the_workspace_that_is_gone(
    desk: Desk, tmp_path: Path, meanwhile: str
) -> None:
    place = desk.workspace / "data"
    place.mkdir()
    first, second = (Disk(tmp_path / name, place) for name in ("first", "second"))
    first.mount()
    (place / "there").write_text("old\n")
    desk.done("mount", "--name", "app", desk.workspace, desk.view)
    for name in ("file", "data/new", "data/there"):
        (desk.view / name).write_text("new\n")
    (desk.view / "data/made").mkdir()
    (desk.view / "data/made/inside").write_text("new\n")
    desk.done("unmount", "-s", "app")
    first.unmount()
    if meanwhile == "another":
        second.mount()
    before = sorted(os.listdir(place))
    for more in ([], ["data/new"], ["data/made"]):
        finished = desk.run("commit", "--yes", "-s", "app", *more, cwd=desk.workspace)
        assert finished.returncode in (2, 5), finished.stderr
    told = desk.refused("commit", "--yes", "-s", "app", "--on-conflict", "skip")
    assert "the file system that the sandbox saw is not mounted any more at 'data'" in told
    finished = desk.run("commit", "--yes", "-s", "app", "--on-conflict", "ours")
    assert finished.returncode in (2, 5), finished.stderr
    assert sorted(os.listdir(place)) == before
    desk.done("commit", "--yes", "-s", "app", desk.workspace / "file")
    assert (desk.workspace / "file").read_text() == "new\n"
    if meanwhile == "another":
        second.unmount()
    first.mount()
    desk.done("commit", "--yes", "-s", "app")
    assert sorted(os.listdir(place)) == ["lost+found", "made", "new", "there"]
    assert (place / "there").read_text() == "new\n"
    first.unmount()
