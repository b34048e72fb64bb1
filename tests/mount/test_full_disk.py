"""What happens when the disk that takes the writes is full?

The state directory lies on a small filesystem of memory, which only root can mount. Whatever is refused must
be refused whole: the view is what it was, the upper holds no part of it, and nothing stays in staging.
"""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.mount_driver import run_sandboxfs
from tests.support.mounted import serving
from tests.support.placed import PlacedMount, small_filesystem
from tests.support.tree import Snapshot, Symlink, Tree, assert_same_tree, build, capture

MEGABYTE = 1 << 20
SIZE = 8 * MEGABYTE
INODES = 150

TREE: Tree = {
    "small": "small\n",
    "large": b"large " * (2 * SIZE // 6),
    "dir/inner": "inner\n",
    "dir/deep/leaf": "leaf\n",
    "link": Symlink("small"),
    "hollow/": "",
}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[PlacedMount]:
    """A sandbox with room for 8 MB in 150 files."""
    with small_filesystem(tmp_path / "disk", str(SIZE), INODES) as disk:
        mount = PlacedMount(build(tmp_path / "ws", TREE), tmp_path / "view", disk / "state")
        mount.expected_complaints = ("the audit log cannot be written",)
        with serving(mount):
            yield mount


def fill_space(view: Path) -> Path:
    """A file that takes all the space there is."""
    fd = os.open(view / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        for block in (MEGABYTE, 4096, 1):
            with refused():
                for _ in range(10_000):
                    os.write(fd, b"f" * block)
    finally:
        os.close(fd)
    return view / "filler"


def fill_inodes(view: Path) -> list[Path]:
    """Files that take all the inodes there are."""
    made: list[Path] = []
    with refused():
        for number in range(10 * INODES):
            path = view / f"filler{number}"
            path.touch()
            made.append(path)
    return made


class refused:  # noqa: N801 - reads as a word at its place
    """The block must end with ENOSPC."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, OSError), f"not refused: {error!r}"
        assert error.errno == errno.ENOSPC, error
        return True


def contents(view: Path) -> Snapshot:
    """What the view shows, but for the fillers."""
    return {path: state for path, state in capture(view).items() if b"filler" not in path and path != b"."}


def check_intact(sandbox: PlacedMount, before: Snapshot, ignoring: frozenset[str] = frozenset()) -> None:
    assert_same_tree(contents(sandbox.root), before, ignoring=ignoring, what="the view")
    assert os.listdir(sandbox.work) == [], "left behind in staging"


def test_a_write_is_refused_and_succeeds_when_there_is_space_again(sandbox: PlacedMount) -> None:
    before = contents(sandbox.root)
    filler = fill_space(sandbox.root)
    assert set(filler.read_bytes()) == {ord("f")}
    check_intact(sandbox, before)
    filler.unlink()
    (sandbox.root / "new").write_bytes(b"n" * MEGABYTE)
    assert (sandbox.root / "new").read_bytes() == b"n" * MEGABYTE


COPYING: dict[str, Callable[[Path], object]] = {
    "opening to write": lambda path: os.close(os.open(path, os.O_RDWR)),
    "chmod": lambda path: path.chmod(0o600),
    "utime": lambda path: os.utime(path, ns=(0, 0)),
    "setting an attribute": lambda path: os.setxattr(path, "user.test", b"value"),
    "renaming": lambda path: path.rename(path.with_name("renamed")),
    "linking": lambda path: os.link(path, path.with_name("linked")),
    "truncating to most of it": lambda path: os.truncate(path, 2 * SIZE - 10),
}


def test_copying_up_a_file_that_is_too_large_is_refused_whole(sandbox: PlacedMount) -> None:
    before = contents(sandbox.root)
    for how, action in COPYING.items():
        with refused():
            action(sandbox.root / "large")
        assert os.listdir(sandbox.upper) == [], f"after {how}"
        check_intact(sandbox, before)
    # What needs no space is no less possible: truncating copies nothing, deleting neither.
    (sandbox.root / "large").write_bytes(b"no longer large")
    assert (sandbox.root / "large").read_bytes() == b"no longer large"
    (sandbox.root / "large").unlink()
    assert not (sandbox.root / "large").exists()


NEEDING_AN_INODE: dict[str, Callable[[Path], object]] = {
    "creating": lambda view: (view / "new").touch(),
    "mkdir": lambda view: (view / "new").mkdir(),
    "symlink": lambda view: (view / "new").symlink_to("x"),
    "mkfifo": lambda view: os.mkfifo(view / "new"),
    "writing to a lower file": lambda view: (view / "small").write_text("changed"),
    "chmod of a lower file": lambda view: (view / "small").chmod(0o600),
    "chmod of a lower directory": lambda view: (view / "dir").chmod(0o700),
    "unlinking a lower file": lambda view: (view / "small").unlink(),
    "unlinking a lower file in a directory": lambda view: (view / "dir/inner").unlink(),
    "unlinking a lower link": lambda view: (view / "link").unlink(),
    "removing a lower directory": lambda view: (view / "hollow").rmdir(),
    "renaming a lower file": lambda view: (view / "small").rename(view / "renamed"),
    "renaming a lower link": lambda view: (view / "link").rename(view / "renamed"),
    "renaming a lower directory": lambda view: (view / "dir").rename(view / "renamed"),
    "renaming onto another": lambda view: (view / "small").rename(view / "dir/inner"),
    "linking a lower file": lambda view: os.link(view / "small", view / "new"),
}


def test_what_needs_an_inode_is_refused_whole_when_there_is_none(sandbox: PlacedMount) -> None:
    before = contents(sandbox.root)
    fillers = fill_inodes(sandbox.root)
    names = set(os.listdir(sandbox.upper))
    for how, action in NEEDING_AN_INODE.items():
        with refused():
            action(sandbox.root)
        assert set(os.listdir(sandbox.upper)) == names, f"after {how}"
        check_intact(sandbox, before)
    for filler in fillers:
        filler.unlink()
    for name in ("new", "small", "dir", "hollow", "link", "renamed"):
        check_works_again(sandbox.root, name)


def check_works_again(view: Path, name: str) -> None:
    (view / "moved").mkdir(exist_ok=True)
    if (view / name).exists():
        (view / name).rename(view / "moved" / name)
    (view / name).mkdir()
    (view / name / "inside").write_text(name)
    assert (view / name / "inside").read_text() == name


def test_a_few_free_inodes_never_make_half_a_change(sandbox: PlacedMount) -> None:
    before = contents(sandbox.root)
    fillers = fill_inodes(sandbox.root)
    # With each inode more, an operation of several steps gets one step further before it fails.
    for _ in range(6):
        try:
            (sandbox.root / "dir/deep").rename(sandbox.root / "renamed")
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # A parent may have been copied up on the way, which shows only here.
            check_intact(sandbox, before, ignoring=frozenset({"ctime_ns", "nlink"}))
            fillers.pop().unlink()
        else:
            break
    assert (sandbox.root / "renamed/leaf").read_text() == "leaf\n"
    assert not (sandbox.root / "dir/deep").exists()
    assert os.listdir(sandbox.work) == []


def test_what_a_map_could_not_write_is_told(sandbox: PlacedMount) -> None:
    fd = os.open(sandbox.root / "sparse", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 2 * SIZE)
    with mmap.mmap(fd, 2 * SIZE) as memory:
        for offset in range(0, 2 * SIZE, mmap.PAGESIZE):
            memory[offset] = 1
        with pytest.raises(OSError) as told:
            memory.flush()
        assert told.value.errno in (errno.ENOSPC, errno.EIO)
    os.close(fd)
    (sandbox.root / "sparse").unlink()
    (sandbox.root / "small").write_text("works")


def test_the_sandbox_can_be_mounted_again_while_the_disk_is_full(sandbox: PlacedMount) -> None:
    (sandbox.root / "small").write_text("changed")
    before = contents(sandbox.root)
    fill_space(sandbox.root)
    sandbox.remount()
    check_intact(sandbox, before)
    (sandbox.root / "filler").unlink()
    (sandbox.root / "small").write_text("again")
    assert (sandbox.root / "small").read_text() == "again"


def told(sandbox: PlacedMount, *words: str, status: int = 0) -> str:
    """Run a verb about the sandbox, and return what it said to a person."""
    finished = run_sandboxfs(words[0], *words[1:], state=sandbox.state, cwd=sandbox.lower)
    assert finished.returncode == status, finished.stderr
    return finished.stderr


FILLING = {"blocks": lambda view: [fill_space(view)], "inodes": fill_inodes}


@pytest.mark.parametrize("what", FILLING)
@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "unmounted"])
def test_a_full_disk_is_emptied_by_a_discard_and_gc(sandbox: PlacedMount, what: str, mounted: bool) -> None:
    (sandbox.root / "small").write_text("changed")
    fillers = FILLING[what](sandbox.root)
    if not mounted:
        sandbox.command("unmount", "-s", "test")
    names = [path.name for path in fillers]
    assert "gc -s test --older-than 0s" in told(sandbox, "discard", "-s", "test", "--yes", *names)
    told(sandbox, "gc", "-s", "test", "--older-than", "0s")
    if not mounted:
        sandbox.start()
    assert not set(names) & set(os.listdir(sandbox.root))
    assert (sandbox.root / "small").read_text() == "changed"
    (sandbox.root / "new").write_bytes(b"n" * MEGABYTE)


@pytest.mark.parametrize("what", FILLING)
def test_a_commit_that_a_full_disk_refuses_says_what_gives_room_back(sandbox: PlacedMount, what: str) -> None:
    (sandbox.root / "small").write_text("changed")
    FILLING[what](sandbox.root)
    complaint = told(sandbox, "commit", "-s", "test", "--yes", "small", status=2)
    assert f"the file system of '{sandbox.state}' is full" in complaint
    assert "sandboxfs gc --older-than 0s" in complaint


@pytest.mark.parametrize("what", FILLING)
def test_a_sandbox_on_a_full_disk_can_be_removed(sandbox: PlacedMount, what: str) -> None:
    FILLING[what](sandbox.root)
    sandbox.command("unmount", "-s", "test")
    told(sandbox, "rm", "--force", "test")
    sandbox.start()


@pytest.mark.parametrize("what", FILLING)
def test_every_verb_that_a_full_disk_refuses_says_what_gives_room_back(
    sandbox: PlacedMount, what: str, tmp_path: Path
) -> None:
    archive = tmp_path / "archive.tar"
    (sandbox.root / "small").write_bytes(b"n" * 100_000)
    told(sandbox, "export", "-s", "test", str(archive))
    told(sandbox, "commit", "-s", "test", "--yes")
    sandbox.host_changed()
    (sandbox.root / "dir/inner").write_bytes(b"other")
    (tmp_path / "other").mkdir()
    FILLING[what](sandbox.root)
    for words, status in (
        (["commit", "-s", "test", "--yes", "dir/inner"], 2),
        (["undo", "-s", "test", "--yes"], 2),
        (["import", str(archive), str(sandbox.lower), "--name", "again"], 2),
        (["export", "-s", "test", str(sandbox.state.parent / "archive.tar")], 2),
        (["mount", "--name", "other", str(sandbox.lower), str(tmp_path / "other")], 6),
        (["run", "--new", "--workspace", str(sandbox.lower), "true"], 125),
    ):
        complaint = told(sandbox, *words, status=status)
        assert "sandboxfs rm NAME" in complaint.splitlines()[-1], words
        assert "hint: " in complaint.splitlines()[-1], words
        assert "bug" not in complaint, words


def test_the_reserve_is_there_again_after_a_clean_up(sandbox: PlacedMount) -> None:
    before = sorted(os.listdir(sandbox.state / "reserve"))
    filler = fill_space(sandbox.root)
    told(sandbox, "discard", "-s", "test", "--yes", filler.name)
    told(sandbox, "gc", "-s", "test", "--older-than", "0s")
    assert sorted(os.listdir(sandbox.state / "reserve")) == before
    assert (sandbox.state / "reserve" / "0").stat().st_blocks * 512 == MEGABYTE


def test_a_disk_error_is_no_bug(sandbox: PlacedMount) -> None:
    for file in (sandbox.state / "reserve").iterdir():
        file.unlink()
    # Fills whatever is left: the daemon, which writes its log meanwhile, may have taken some of it.
    fill_inodes(sandbox.root)
    for words in (["discard", "--yes", "--all"], ["commit", "--yes"], ["undo", "--yes"]):
        finished = run_sandboxfs(words[0], "-s", "test", *words[1:], state=sandbox.state, cwd=sandbox.lower)
        assert finished.returncode == 2, finished.stderr
        assert "bug:" not in finished.stderr
        assert "is full" in finished.stderr
