"""Is a very large tree served whole, and do memory and descriptors stay bounded?

One workspace serves all tests of this module: a directory of 100,000 files and 5,000 directories of one each.
"""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import conditions
from tests.support.dirstream import DirStream
from tests.support.mount_driver import MountDriver
from tests.support.mounted import INSIDE, eventually, package_found, run, serving

DIRECTORIES, WIDTH = 5_000, 100_000
MEGABYTE = 1 << 20
PATIENCE = 300.0


class Counts(NamedTuple):
    nodes: int
    files: int
    listings: int


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountDriver]:
    conditions.require_fuse()
    place = tmp_path_factory.mktemp("large")
    workspace = place / "workspace"
    (workspace / "wide").mkdir(parents=True)
    for number in range(WIDTH):
        make_file(workspace / "wide" / f"{number}")
    for number in range(DIRECTORIES):
        leaf(workspace, number).mkdir(parents=True)
        make_file(leaf(workspace, number) / "file")
    with package_found(INSIDE) as environment:
        environment.setenv("SANDBOXFS_COUNTS", str(place / "counts"))
        mount = MountDriver(place, workspace)
        with serving(mount):
            yield mount


def leaf(root: Path, number: int) -> Path:
    return root / f"{number // 100}" / f"{number % 100}"


def make_file(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def resident(mount: MountDriver) -> int:
    """The memory that the daemon takes, in bytes."""
    for line in Path(f"/proc/{mount.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def counts(mount: MountDriver) -> Counts:
    """What the daemon's tables hold now."""
    os.statvfs(mount.root)
    return Counts(**json.loads((mount.root.parent / "counts").read_text()))


def descriptors(mount: MountDriver) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{mount.pid}/fd")]


def open_files(mount: MountDriver) -> list[str]:
    """The files of the layers that the daemon holds open."""
    found = []
    for fd in descriptors(mount):
        path = f"/proc/{mount.pid}/fd/{fd}"
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                found.append(os.readlink(path))
        except FileNotFoundError:
            continue
    return [path for path in found if path.startswith((str(mount.lower), str(mount.upper), str(mount.work)))]


def walk(mount: MountDriver) -> None:
    # Sizes make find look at every file.
    listed = run("find", ".", "-type", "f", "-size", "0", cwd=mount.root, timeout=PATIENCE)
    assert listed.count("\n") == DIRECTORIES + WIDTH


def walk_and_remember(mount: MountDriver) -> None:
    """Walk until the daemon knows much: a test beside this one may have the kernel forget it all."""
    for _ in range(5):
        walk(mount)
        if counts(mount).nodes > 1000:
            return
    raise AssertionError(f"{counts(mount)} after a walk")


@pytest.fixture(scope="module")
def walked(large: MountDriver) -> MountDriver:
    walk(large)
    return large


def test_a_walk_of_a_hundred_thousand_files_leaves_the_daemon_under_200_megabytes(
    walked: MountDriver,
) -> None:
    assert resident(walked) < 200 * MEGABYTE


def test_a_walk_of_five_thousand_directories_leaves_the_daemon_few_descriptors(walked: MountDriver) -> None:
    assert len(descriptors(walked)) < 700


def test_a_directory_of_a_hundred_thousand_entries_is_listed_whole(large: MountDriver) -> None:
    wide = large.root / "wide"
    with DirStream(wide) as stream:
        listed = [entry.name for entry in stream.rest()]
    assert len(listed) == len(set(listed)) == WIDTH + 2
    assert set(listed) - {b".", b".."} == {b"%d" % number for number in range(WIDTH)}
    # The same when the upper has its part in it.
    (wide / "99999").unlink()
    (wide / "new").touch()
    again = os.listdir(wide)
    assert len(again) == len(set(again)) == WIDTH
    assert {"99999", "new"} & set(again) == {"new"}
    (wide / "new").unlink()
    (wide / "99999").touch()


def test_many_directories_open_at_once_bring_the_daemon_no_more_descriptors(large: MountDriver) -> None:
    held = [os.open(leaf(large.root, number), os.O_RDONLY | os.O_DIRECTORY) for number in range(900)]
    try:
        for fd in held:
            assert os.listdir(fd) == ["file"]
        assert len(descriptors(large)) < 700
    finally:
        for fd in held:
            os.close(fd)


def test_memory_does_not_grow_when_the_kernel_forgets_between_walks(walked: MountDriver) -> None:
    after_first = resident(walked)
    for _ in range(2):
        walked.forget()
        # The kernel tells what it has forgotten in its own time.
        eventually(lambda: counts(walked).nodes < 1000, "the daemon forgets too", within=20)
        walk_and_remember(walked)
    assert resident(walked) < after_first * 1.15 + 8 * MEGABYTE


def test_the_daemon_holds_no_file_once_everything_is_closed(large: MountDriver) -> None:
    held = []
    for number in range(0, 600, 6):
        path = large.root / "wide" / f"{number}"
        held.append(os.open(path, os.O_RDONLY))
        held.append(os.open(path.with_name(f"{number + 1}"), os.O_RDWR))
        held.append(os.open(path.with_name(f"new{number}"), os.O_RDWR | os.O_CREAT))
        held.append(os.open(path.with_name(f"{number + 2}"), os.O_RDWR))
        path.with_name(f"{number + 2}").unlink()
        os.truncate(path.with_name(f"{number + 3}"), 10)
        path.with_name(f"{number + 4}").chmod(0o600)
    assert len(open_files(large)) >= 400
    for fd in held:
        os.close(fd)
    # The kernel tells the daemon of a close without waiting for it.
    eventually(lambda: open_files(large) == [], "no file is open", within=5)
    assert len(descriptors(large)) < 700
    assert counts(large)[1:] == (0, 0), "handles are left"
