"""Is a path as good as new once its change was committed or discarded, while the sandbox stays mounted?"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import Tree

pytestmark = pytest.mark.any_user

TREE: Tree = {"d/a": "first\n", "d/b": "b\n", "other": "other\n"}


def review(mounted: MountDriver, *words: str) -> str:
    done = run_sandboxfs(words[0], "-s", "test", *words[1:], state=mounted.state)
    assert done.returncode == 0, done.stderr
    mounted.host_changed()
    return done.stdout


def commit(mounted: MountDriver) -> None:
    review(mounted, "commit", "--yes")


def discard(mounted: MountDriver) -> None:
    review(mounted, "discard", "--yes", "--all")


def undo(mounted: MountDriver) -> None:
    review(mounted, "undo", "--yes")


def edit(mounted: MountDriver) -> None:
    with (mounted.root / "d/a").open("a") as file:
        file.write("edited\n")


def replace_whole(mounted: MountDriver) -> None:
    """Save as most editors do."""
    (mounted.root / "d/.a.new").write_text("replaced\n")
    (mounted.root / "d/.a.new").rename(mounted.root / "d/a")


def delete(mounted: MountDriver) -> None:
    (mounted.root / "d/a").unlink()


def make(mounted: MountDriver) -> None:
    (mounted.root / "d").mkdir(exist_ok=True)
    (mounted.root / "d/a").write_text("made\n")


def host_edits(mounted: MountDriver) -> None:
    (mounted.lower / "d/a").write_text("the host's\n")
    mounted.host_changed()


def host_deletes(mounted: MountDriver) -> None:
    (mounted.lower / "d/a").unlink()
    mounted.host_changed()


def host_deletes_all(mounted: MountDriver) -> None:
    for name in ("a", "b"):
        (mounted.lower / "d" / name).unlink()
    (mounted.lower / "d").rmdir()
    mounted.host_changed()


Act = Callable[[MountDriver], None]
STORIES: dict[str, tuple[Act, ...]] = {
    "edited, committed, edited": (edit, commit, edit),
    "edited, committed, replaced": (edit, commit, replace_whole),
    "deleted, committed, made": (delete, commit, make),
    "edited, discarded, edited": (edit, discard, edit),
    "deleted, discarded, edited": (delete, discard, edit),
    "edited, committed, edited by the host, edited": (edit, commit, host_edits, edit),
    "edited, discarded, edited by the host, edited": (edit, discard, host_edits, edit),
    "edited, committed, deleted by the host, made": (edit, commit, host_deletes, make),
    "edited, discarded, deleted by the host, made": (edit, discard, host_deletes, make),
    "edited, committed, all deleted by the host, made": (edit, commit, host_deletes_all, make),
    "edited, committed, undone": (edit, commit, undo),
    "edited, discarded, undone": (edit, discard, undo),
    "edited, committed, edited, committed, undone": (edit, commit, edit, commit, undo),
    "edited, discarded, undone, edited": (edit, discard, undo, edit),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_is_over_is_no_conflict_later(mount: Mount, story: str) -> None:
    mounted = mount(TREE)
    for act in STORIES[story]:
        act(mounted)
    shown = content(mounted.root)
    assert conflicts(mounted) == {"d/a": None}
    commit(mounted)
    assert content(mounted.lower) == content(mounted.root) == shown
    assert conflicts(mounted) == {}


def conflicts(mounted: MountDriver) -> dict[str, object]:
    """What conflicts in each change of a file."""
    changes = json.loads(review(mounted, "diff", "--json"))["changes"]
    return {change["path"]: change["conflict"] for change in changes if change["path"] != "d"}


def content(root: Path) -> str:
    return (root / "d/a").read_text()
