"""Is the floor of the benchmark a filesystem? What is done in it comes to what it would in a directory."""

import os
import subprocess
from pathlib import Path

import pytest

from scripts.benches.competitors import Failed, Thinnest, shown
from scripts.benches.timing import everything
from scripts.benches.trees import Sizes, make_project
from scripts.benches.whole import bench_environment
from tests.support.mounts import mountpoints
from tests.support.tree import Symlink, Tree, build

pytestmark = pytest.mark.any_user

TREE: Tree = {
    "file": "text\n",
    "removed": "removed\n",
    "dir/one": "1\n",
    "dir/two": "2\n",
    "dir/deep/leaf": "leaf\n",
    "link": Symlink("file"),
}


def thinnest(place: Path) -> Thinnest:
    (place / "home").mkdir()
    return Thinnest(place / "floor", bench_environment(place))


def change(place: Path) -> list[object]:
    """Change a tree in every way that the benchmark does; what was seen meanwhile."""
    seen: list[object] = [sorted(os.listdir(place)), (place / "file").read_text()]
    (place / "made").write_text("made")
    with open(place / "file", "a") as file:
        file.write("appended\n")
    (place / "folder").mkdir(mode=0o700)
    os.symlink("made", place / "folder" / "pointer")
    # The first name goes, and another file gets it.
    os.link(place / "file", place / "folder" / "second")
    os.unlink(place / "file")
    (place / "file").write_text("another")
    seen += [(place / "folder" / "second").read_text(), os.stat(place / "folder" / "second").st_nlink]
    os.chmod(place / "made", 0o640)
    os.utime(place / "made", ns=(1_000, 2_000))
    os.truncate(place / "dir" / "one", 1)
    # What is open in a directory that moves stays what it is, as does what is below it.
    with open(place / "dir" / "deep" / "leaf", "r+") as leaf:
        os.rename(place / "dir", place / "moved")
        os.unlink(place / "moved" / "deep" / "leaf")
        os.rmdir(place / "moved" / "deep")
        leaf.write("longer than before")
        leaf.flush()
        os.fchmod(leaf.fileno(), 0o600)
        os.fsync(leaf.fileno())
        seen += [os.fstat(leaf.fileno()).st_size, os.fstat(leaf.fileno()).st_nlink]
        leaf.seek(0)
        seen.append(leaf.read())
    os.rename(place / "made", place / "moved" / "two")
    os.unlink(place / "removed")
    seen += [(place / "removed").exists(), sorted(os.listdir(place)), sorted(os.listdir(place / "moved"))]
    seen += [os.readlink(place / "folder" / "pointer"), os.stat(place / "moved" / "two").st_mtime_ns]
    return seen


def test_the_floor_passes_on_what_is_done_in_it(tmp_path: Path) -> None:
    tree, plain = build(tmp_path / "tree", TREE), build(tmp_path / "plain", TREE)
    before = everything(tree, True)
    competitor = thinnest(tmp_path)
    with shown(competitor, tree) as view:
        assert everything(view.path, True) == before
        assert change(view.path) == change(plain)
        assert everything(view.path, True) == everything(plain, True)
    assert everything(tmp_path / "floor" / "tree", True) == everything(plain, True)
    assert everything(tree, True) == before


def test_the_floor_begins_each_time_with_the_tree_and_leaves_nothing_mounted(tmp_path: Path) -> None:
    tree = build(tmp_path / "tree", TREE)
    competitor = thinnest(tmp_path)
    for _ in range(2):
        with shown(competitor, tree) as view:
            assert everything(view.path, True) == everything(tree, True)
            assert view.path in mountpoints()
            (view.path / "file").write_text("another")
        assert view.path not in mountpoints()
        assert view.daemon is not None
        assert not Path(f"/proc/{view.daemon}").exists()


def test_numbers_of_removed_files_are_used_again_without_their_content(tmp_path: Path) -> None:
    with shown(thinnest(tmp_path), build(tmp_path / "tree", {"kept": ""})) as view:
        for number in range(200):
            path = view.path / f"file{number % 3}"
            path.write_text(f"text of {number}")
            assert path.read_text() == f"text of {number}"
            path.unlink()
        assert os.listdir(view.path) == ["kept"]


def test_git_finds_the_files_of_the_floor_as_its_index_knows_them(tmp_path: Path) -> None:
    competitor = thinnest(tmp_path)
    environment = competitor.environment
    make_project(tmp_path / "tree", Sizes(assets=20, sources=40, modules=2, units=2), environment)
    with shown(competitor, tmp_path / "tree") as view:
        # It says which files differ from the index in what stat tells of them, without reading any.
        words = ["git", "diff-files", "--name-only"]
        said = subprocess.run(words, cwd=view.path, env=environment, capture_output=True, check=True)
    assert len(said.stdout.splitlines()) == 20


def test_a_floor_that_cannot_be_mounted_is_left_out_with_its_last_words(tmp_path: Path) -> None:
    tree = build(tmp_path / "tree", TREE)
    (tmp_path / "home").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "__init__.py").write_text("")
    environment = {**bench_environment(tmp_path), "PYTHONPATH": str(tmp_path)}
    with (
        pytest.raises(Failed, match="No module named"),
        shown(Thinnest(tmp_path / "floor", environment), tree),
    ):
        pass
