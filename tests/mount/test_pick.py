"""`commit -p` and `discard -p`, as a person at a terminal meets them."""

import os
import sys
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.dialogue import CTRL_C, Dialogue
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import Tree

pytestmark = pytest.mark.any_user

LINES = [f"line {number}\n" for number in range(40)]
TREE: Tree = {"text": "".join(LINES), "gone/a": "a\n", "gone/b": "b\n", "plain": "plain\n"}


def edited(*places: int) -> str:
    return "".join(f"edited {at}\n" if at in places else line for at, line in enumerate(LINES))


def change(view: Path) -> None:
    (view / "text").write_text(edited(5, 30))
    (view / "new").mkdir()
    (view / "new/file").write_text("new\n")
    (view / "gone/a").unlink()
    (view / "gone/b").unlink()
    (view / "gone").rmdir()


def dialogue(mount: MountDriver, *words: str) -> Dialogue:
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(mount.state), "NO_COLOR": "1", "TERM": "dumb"}
    return Dialogue([sys.executable, "-m", "sandboxfs", *words, "-s", "test"], environment)


def names(mount: MountDriver) -> list[str]:
    done = run_sandboxfs("diff", "-s", "test", "--name-status", state=mount.state)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_accepted_hunks_land_in_the_workspace_and_the_rest_stays_in_the_sandbox(mount: Mount) -> None:
    mounted = mount(TREE)
    change(mounted.root)
    with dialogue(mounted, "commit", "-p") as talk:
        talk.answer("Commit this deletion", "n")
        talk.answer("Commit this deletion", "n")
        talk.answer("Commit this addition", "y")
        shown = talk.answer("(1/2) Commit this hunk", "n")
        assert "edited 5" in shown
        talk.answer("(2/2) Commit this hunk", "y")
        assert "committed" in talk.finish()
        assert talk.process.returncode == 0
    assert (mounted.lower / "text").read_text() == edited(30)
    assert (mounted.lower / "new/file").read_text() == "new\n"
    assert (mounted.lower / "gone/a").exists()
    assert (mounted.root / "text").read_text() == edited(5, 30)
    assert names(mounted) == ["D\tgone/a", "D\tgone/b", "M\ttext"]
    mounted.host_changed()


def test_theirs_drops_the_accepted_hunks_and_no_others(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(5, 18, 30))
    (mounted.lower / "text").write_text("the host's\n" + "".join(LINES))
    with dialogue(mounted, "commit", "-p", "--on-conflict", "theirs") as talk:
        talk.answer("(1/3) Commit this hunk", "n")
        talk.answer("(2/3) Commit this hunk", "y")
        talk.answer("(3/3) Commit this hunk", "n")
        assert "dropped in part" in talk.finish()
        assert talk.process.returncode == 0
    assert (mounted.root / "text").read_text() == edited(5, 30)
    mounted.host_changed()
    undone = run_sandboxfs("undo", "-s", "test", "--yes", state=mounted.state)
    assert undone.returncode == 0, undone.stderr
    assert (mounted.root / "text").read_text() == edited(5, 18, 30)


@pytest.mark.parametrize("answers", ["ny", "yy"])
def test_accepted_hunks_are_merged_with_what_the_host_did(mount: Mount, answers: str) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(5, 30))
    (mounted.lower / "text").write_text("the host's\n" + "".join(LINES))
    with dialogue(mounted, "commit", "-p", "--on-conflict", "merge") as talk:
        for number, answer in enumerate(answers, 1):
            talk.answer(f"({number}/2) Commit this hunk", answer)
        assert "committed 1 change" in talk.finish()
        assert talk.process.returncode == 0
    landed = edited(30) if answers == "ny" else edited(5, 30)
    assert (mounted.lower / "text").read_text() == "the host's\n" + landed
    assert (mounted.root / "text").read_text() == "the host's\n" + edited(5, 30)
    assert names(mounted) == (["M\ttext"] if answers == "ny" else [])
    mounted.host_changed()
    undone = run_sandboxfs("undo", "-s", "test", "--yes", state=mounted.state)
    assert undone.returncode == 0, undone.stderr
    assert (mounted.root / "text").read_text() == edited(5, 30)
    assert (mounted.lower / "text").read_text() == "the host's\n" + "".join(LINES)
    assert names(mounted) == ["M\ttext\t[conflict]"]
    mounted.host_changed()


def test_a_directory_goes_when_all_deletions_in_it_are_accepted(mount: Mount) -> None:
    mounted = mount(TREE)
    change(mounted.root)
    with dialogue(mounted, "commit", "-p", str(mounted.root / "gone")) as talk:
        talk.answer("Commit this deletion", "y")
        talk.answer("Commit this deletion", "y")
        talk.finish()
    assert not (mounted.lower / "gone").exists()
    assert names(mounted) == ["A\tnew/file", "M\ttext"]
    mounted.host_changed()


def test_discarded_hunks_leave_the_view_and_undo_brings_them_back(mount: Mount) -> None:
    mounted = mount(TREE)
    change(mounted.root)
    with dialogue(mounted, "discard", "-p", str(mounted.root / "text")) as talk:
        talk.answer("(1/2) Discard this hunk", "y")
        talk.answer("(2/2) Discard this hunk", "n")
        assert "discarded" in talk.finish()
    assert (mounted.root / "text").read_text() == edited(30)
    done = run_sandboxfs("undo", "-s", "test", "--yes", state=mounted.state)
    assert done.returncode == 0, done.stderr
    assert (mounted.root / "text").read_text() == edited(5, 30)


def test_interrupted_at_the_prompt_nothing_at_all_is_done(mount: Mount) -> None:
    mounted = mount(TREE)
    change(mounted.root)
    before = names(mounted)
    with dialogue(mounted, "commit", "-p") as talk:
        talk.answer("Commit this deletion", "y")
        talk.expect("Commit this deletion")
        talk.type(CTRL_C)
        talk.finish()
        assert talk.process.returncode == 130
    assert names(mounted) == before


def test_without_a_terminal_it_is_refused_and_names_the_other_way(mount: Mount) -> None:
    mounted = mount(TREE)
    change(mounted.root)
    for verb in ("commit", "discard"):
        done = run_sandboxfs(verb, "-s", "test", "-p", state=mounted.state)
        assert done.returncode == 2
        assert "no terminal" in done.stderr


def test_from_inside_the_view_nothing_is_committed_or_discarded(mount: Mount) -> None:
    mounted = mount(TREE)
    change(mounted.root)
    before = names(mounted)
    for words in (["commit", "--yes"], ["discard", "--all", "--yes"], ["undo", "--yes"]):
        done = run_sandboxfs(*words, "-s", "test", state=mounted.state, cwd=mounted.root)
        assert done.returncode == 2
        assert "inside the view" in done.stderr
    assert names(mounted) == before
