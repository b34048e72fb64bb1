"""`commit`, `discard` and `undo` beside a mount in which programs are at work."""

import json
import mmap
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.dialogue import Dialogue
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import File, HardLink, Snapshot, Tree, capture

pytestmark = pytest.mark.any_user

LINES = [f"line {number}\n" for number in range(40)]
TREE: Tree = {
    "text": "".join(LINES),
    "other": "other\n",
    "src/a": "a\n",
    "src/b": "b\n",
    "old/x": "x\n",
    ".git/config": "[core]\n",
    ".git/HEAD": "ref: refs/heads/main\n",
    "tool": File("#!/bin/sh\n", mode=0o755),
}


def edited(*places: int, word: str = "edited") -> str:
    return "".join(f"{word} {at}\n" if at in places else line for at, line in enumerate(LINES))


def review(mount: MountDriver, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_sandboxfs(words[0], "-s", "test", *words[1:], state=mount.state)


def done(mount: MountDriver, *words: str) -> str:
    finished = review(mount, *words)
    assert finished.returncode == 0, finished.stderr
    mount.host_changed()
    return finished.stdout


def restorable(root: Path) -> Snapshot:
    """All that can be brought back: everything but when inodes last changed."""
    return {path: replace(state, ctime_ns=0) for path, state in capture(root).items()}


def names(mount: MountDriver) -> list[str]:
    return done(mount, "diff", "--name-status").splitlines()


def test_json_lists_and_counts_the_changes_that_a_person_is_told(mount: Mount) -> None:
    mounted = mount(TREE)
    view = mounted.root
    (view / "made/deep").mkdir(parents=True)
    (view / "made/deep/file").touch()
    (view / "made/empty").mkdir()
    (view / "old/x").unlink()
    (view / "old").rmdir()
    (view / "src").chmod(0o700)
    (view / "tool").chmod(0o700)
    expected = [
        ("made/deep/file", "added", None),
        ("made/empty", "added", None),
        ("old/x", "deleted", "100644"),
        ("src", "mode", "40755"),
        ("tool", "mode", "100755"),
    ]
    counts = {"added": 2, "deleted": 1, "mode": 2}
    for words in (["commit"], ["discard", "--all"]):
        assert "5 changes of 'test'" in done(mounted, *words, "--dry-run")
        for how in ("--dry-run", "--yes"):
            found = json.loads(done(mounted, *words, how, "--json"))
            listed = [(one["path"], one["kind"], one["old_mode"]) for one in found["changes"]]
            assert (sorted(listed), found["counts"]) == (expected, counts), words
        done(mounted, "undo", "--yes")


def test_every_verb_counts_the_same_changes(mount: Mount) -> None:
    mounted = mount({**TREE, ".gitignore": "*.log\nbuild/\n"})
    view = mounted.root
    (view / "text").write_text(edited(3))
    (view / ".git/HEAD").write_text("ref: refs/heads/other\n")
    (view / ".git/info").mkdir()
    (view / ".git/info/exclude").write_text("*\n")
    (view / "new.log").touch()
    (view / "build/deep").mkdir(parents=True)
    (view / "build/deep/object").touch()
    left_out = {"ignored": 2, "git": 2}
    status, diff, plan = (
        json.loads(done(mounted, *words, "--json"))
        for words in (("status",), ("diff",), ("commit", "--dry-run"))
    )
    assert (status["changes"], status["left_out"]) == (1, left_out)
    assert ([change["path"] for change in diff["changes"]], diff["left_out"]) == (["text"], left_out)
    assert ([change["path"] for change in plan["changes"]], plan["left_out"]) == (["text"], left_out)
    told = review(mounted, "commit", "--yes")
    mounted.host_changed()
    assert told.stderr.startswith("committed 1 change")
    assert told.stderr.splitlines()[1:] == [
        "left out of commit: 2 ignored changes in '.', 'build'; --ignored takes them",
        "left out of commit: 2 changes in '.git'; --include-git takes them",
    ]
    assert (view / "build/deep/object").exists()
    assert not (mounted.lower / "build").exists()


@pytest.mark.parametrize("words", [("commit",), ("discard", "--all"), ("commit", "--json")])
def test_that_there_is_nothing_to_do_is_said_without_asking_anybody(
    mount: Mount, words: tuple[str, ...]
) -> None:
    mounted = mount(TREE)
    said = review(mounted, *words)
    assert (said.returncode, "refusing" in said.stderr) == (0, False)
    assert ("nothing to" in said.stderr) is ("--json" not in words)
    (mounted.root / "text").write_text("changed\n")
    refused = review(mounted, *words)
    assert (refused.returncode, "refusing to" in refused.stderr) == (2, True)


def test_a_commit_by_revision_takes_what_was_seen_or_nothing(mount: Mount) -> None:
    mounted = mount({**TREE, ".gitignore": "*.log\n"})
    view, lower = mounted.root, mounted.lower
    (view / "text").write_text(edited(3))
    (view / "new").write_text("1\n")
    seen = json.loads(done(mounted, "diff", "--json"))["revision"]
    assert done(mounted, "diff", "--revision").strip() == seen
    (view / "new.log").touch()
    assert (view / "text").read_text() == edited(3)
    assert done(mounted, "diff", "--revision").strip() == seen, "reading and ignored files change nothing"
    before = (view / "new").stat()
    (view / "new").write_text("2\n")
    os.utime(view / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    refused = review(mounted, "commit", "--yes", "--json", "--if-match", seen)
    assert refused.returncode == 5
    assert json.loads(refused.stderr)["error"]["if_match"] == seen
    now = done(mounted, "diff", "--revision").strip()
    (lower / "other").write_text("the host was here\n")
    assert done(mounted, "diff", "--revision").strip() == now, "nothing is taken there"
    (lower / "text").touch()
    assert review(mounted, "commit", "--yes", "--if-match", now).returncode == 5
    now = done(mounted, "diff", "--revision").strip()
    of_one = done(mounted, "diff", "--revision", str(view / "new")).strip()
    assert of_one != now
    assert review(mounted, "commit", "--yes", "--if-match", now, str(view / "new")).returncode == 5
    done(mounted, "commit", "--yes", "--if-match", of_one, str(view / "new"))
    assert ((lower / "new").read_text(), (lower / "text").read_text()) == ("2\n", "".join(LINES))


def test_a_path_is_committed_with_what_it_needs_and_nothing_else(mount: Mount) -> None:
    mounted = mount(TREE)
    view, workspace = mounted.root, mounted.lower
    os.rename(view / "src", view / "lib")
    (view / "lib/a").write_text("changed\n")
    (view / "lib/b").write_text("changed too\n")
    (view / "new").mkdir()
    (view / "new/file").write_text("new\n")
    (view / "other").unlink()
    shown = capture(view).keys()
    done(mounted, "commit", "--yes", "-m", "first", str(view / "lib/a"), str(view / "new/file"))
    assert (workspace / "lib/a").read_text() == "changed\n"
    assert (workspace / "lib/b").read_text() == "b\n"
    assert (workspace / "new/file").read_text() == "new\n"
    assert (workspace / "other").exists()
    assert not (workspace / "src").exists()
    assert capture(view).keys() == shown
    assert names(mounted) == ["M\tlib/b", "D\tother"]
    records = json.loads(done(mounted, "undo", "--list", "--json"))["records"]
    assert [(record["kind"], record["message"]) for record in records] == [("commit", "first")]


def test_names_of_one_file_are_so_in_the_workspace_and_stay_so_in_the_view(
    mount: Mount,
) -> None:
    mounted = mount(TREE)
    view, workspace = mounted.root, mounted.lower
    before = restorable(workspace)
    os.link(view / "src/a", view / "second")
    os.link(view / "other", view / "src/another")
    (view / "other").write_text("changed\n")
    done(mounted, "commit", "--yes")
    for here in (workspace, view):
        assert os.path.samefile(here / "src/a", here / "second")
        assert os.path.samefile(here / "other", here / "src/another")
        assert (here / "second").stat().st_nlink == 2
    assert (workspace / "src/another").read_text() == "changed\n"
    assert names(mounted) == []
    done(mounted, "undo", "--yes")
    assert restorable(workspace) == before
    assert os.path.samefile(view / "src/a", view / "second")


def test_a_renamed_name_stays_a_name_of_its_file_for_programs_that_have_it_open(mount: Mount) -> None:
    mounted = mount({"a": "shared\n", "b": HardLink("a")})
    view, workspace = mounted.root, mounted.lower
    (view / "a").rename(view / "c")
    number = (view / "c").stat().st_ino
    with (view / "c").open("a") as file:
        done(mounted, "commit", "--yes")
        for here in (workspace, view):
            assert os.path.samefile(here / "b", here / "c")
        assert (view / "c").stat().st_ino == number
        file.write("more\n")
    assert (view / "b").read_text() == (view / "c").read_text() == "shared\nmore\n"
    assert (workspace / "b").read_text() == "shared\n"
    assert names(mounted) == ["M\tb", "M\tc"]
    done(mounted, "discard", "--all", "--yes")
    done(mounted, "undo", "--yes", "1")
    assert os.path.samefile(workspace / "a", workspace / "b")


def test_undo_brings_the_workspace_back_with_its_times_and_the_changes_to_the_sandbox(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(3))
    (mounted.root / "added").write_text("added\n")
    (mounted.root / "old/x").unlink()
    (mounted.root / "old").rmdir()
    before, changed = restorable(mounted.lower), names(mounted)
    done(mounted, "commit", "--yes")
    assert names(mounted) == []
    done(mounted, "undo", "--yes")
    assert restorable(mounted.lower) == before
    assert names(mounted) == changed
    assert (mounted.root / "text").read_text() == edited(3)
    assert not (mounted.root / "old").exists()


def test_a_program_that_keeps_its_files_open_loses_nothing_through_commit_and_discard(mount: Mount) -> None:
    mounted = mount(TREE)
    log = mounted.root / "other"
    with log.open("ab", buffering=0) as writer, log.open("rb", buffering=0) as reader:
        numbers = {os.fstat(writer.fileno()).st_ino}
        for turn in range(4):
            writer.write(b"turn %d\n" % turn)
            done(mounted, "commit", "--yes")
            numbers |= {os.fstat(writer.fileno()).st_ino, log.stat().st_ino}
        expected = b"other\n" + b"".join(b"turn %d\n" % turn for turn in range(4))
        assert reader.read() == expected == (mounted.lower / "other").read_bytes()
        assert len(numbers) == 1
        writer.write(b"not wanted\n")
        done(mounted, "discard", "--all", "--yes")
        assert log.read_bytes() == expected
        writer.write(b"after\n")
        assert log.read_bytes() == expected + b"after\n"
    assert (mounted.lower / "other").read_bytes() == expected


def test_what_is_mapped_goes_on_being_shared_after_a_commit(mount: Mount) -> None:
    mounted = mount(TREE)
    path = mounted.root / "text"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:4] = b"LINE"
        mapped.flush()
        done(mounted, "commit", "--yes")
        assert (mounted.lower / "text").read_bytes().startswith(b"LINE 0\n")
        mapped[0:4] = b"MORE"
        mapped.flush()
        assert path.read_bytes().startswith(b"MORE 0\n")
    assert (mounted.lower / "text").read_bytes().startswith(b"LINE 0\n")
    assert names(mounted) == ["M\ttext"]


def test_a_conflict_applies_nothing_and_names_every_one(mount: Mount) -> None:
    mounted = mount(TREE)
    for name in ("text", "other", "tool"):
        (mounted.root / name).write_text("sandbox\n")
    (mounted.lower / "text").write_text(edited(20, word="host"))
    (mounted.lower / "other").unlink()
    before = capture(mounted.lower)
    refused = review(mounted, "commit", "--yes")
    assert refused.returncode == 5
    assert "'text'" in refused.stderr
    assert "'other'" in refused.stderr
    assert "'tool'" not in refused.stderr
    assert capture(mounted.lower) == before
    mounted.host_changed()


def test_touched_times_and_edits_elsewhere_are_no_conflict(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(3))
    (mounted.root / "old/x").unlink()
    os.utime(mounted.lower / "text")
    os.utime(mounted.lower / "old/x")
    (mounted.lower / "src/a").write_text("host\n")
    done(mounted, "commit", "--yes")
    assert (mounted.lower / "text").read_text() == edited(3)
    assert not (mounted.lower / "old/x").exists()
    assert (mounted.lower / "src/a").read_text() == "host\n"


def test_a_clean_merge_is_committed_and_an_overlap_gets_markers_in_the_view_only(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(3))
    (mounted.root / "other").write_text("sandbox\n")
    host = edited(30, word="host")
    (mounted.lower / "text").write_text(host)
    (mounted.lower / "other").write_text("host\n")
    merged = review(mounted, "commit", "--yes", "--on-conflict", "merge")
    assert merged.returncode == 5
    assert "'other'" in merged.stderr
    both = host.replace("line 3\n", "edited 3\n")
    assert (mounted.lower / "text").read_text() == (mounted.root / "text").read_text() == both
    assert (mounted.lower / "other").read_text() == "host\n"
    assert (mounted.root / "other").read_text() == (
        "<<<<<<< sandbox\nsandbox\n=======\nhost\n>>>>>>> workspace\n"
    )
    (mounted.root / "other").write_text("both\n")
    done(mounted, "commit", "--yes")
    assert (mounted.lower / "other").read_text() == "both\n"


def test_markers_are_never_committed_by_chance_and_undo_takes_them_out_of_the_view(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "other").write_text("sandbox\n")
    (mounted.lower / "other").write_text("host\n")
    mounted.host_changed()
    assert review(mounted, "commit", "--yes", "--on-conflict", "merge").returncode == 5
    marked = (mounted.root / "other").read_text()
    record = json.loads(done(mounted, "undo", "--list", "--json"))["records"][0]
    assert (record["count"], record["counts"]) == (1, {"marked": 1})
    again = review(mounted, "commit", "--yes")
    assert again.returncode == 5
    assert "'other': unresolved conflict markers" in again.stderr
    assert "resolve" in again.stderr
    assert (mounted.lower / "other").read_text() == "host\n"
    assert names(mounted) == ["M\tother\t[conflict]"]
    with (mounted.root / "other").open() as reader:
        done(mounted, "undo", "--yes")
        assert (mounted.root / "other").read_text() == reader.read() == "sandbox\n"
    assert names(mounted) == ["M\tother\t[conflict]"]
    assert review(mounted, "commit", "--yes", "--on-conflict", "merge").returncode == 5
    assert (mounted.root / "other").read_text() == marked
    done(mounted, "commit", "--yes", "--on-conflict", "ours")
    assert (mounted.lower / "other").read_text() == marked


def test_conflicts_that_cannot_be_merged_are_named_and_never_pass_for_nothing_to_commit(mount: Mount) -> None:
    mounted = mount(TREE)
    for path in (mounted.root, mounted.lower):
        (path / "new").write_text(f"of {path}\n")
        (path / "raw").write_bytes(b"\0" + os.fsencode(path))
    mounted.host_changed()
    for more in ([], ["--dry-run"], ["--json"], ["--dry-run", "--json"]):
        ended = review(mounted, "commit", "--yes", "--on-conflict", "merge", *more)
        assert ended.returncode == 5, more
        assert "nothing to commit" not in ended.stderr
        assert "new" in ended.stderr
        assert "raw" in ended.stderr
        if "--json" in more:
            named = json.loads(ended.stdout)["conflicts"]
            assert [conflict["path"] for conflict in named] == ["new", "raw"]
        elif "--dry-run" in more:
            assert "in conflict with the workspace:\n  A new\n  A raw\n" in ended.stdout
    assert json.loads(done(mounted, "undo", "--list", "--json"))["records"] == []


@pytest.mark.parametrize("how", ["ours", "merge"])
def test_a_hunk_in_conflict_is_named_where_it_cannot_be_committed(mount: Mount, how: str) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(3, 30))
    (mounted.lower / "text").write_text(edited(3, word="host"))
    mounted.host_changed()
    found = json.loads(done(mounted, "diff", "--json"))["changes"]
    first = found[0]["hunks"][0]["id"]
    for more in ([], ["--dry-run"]):
        ended = review(mounted, "commit", "--yes", "--on-conflict", how, "--hunk", first, *more)
        assert ended.returncode == 5
        assert "'text'" in ended.stderr
    assert (mounted.root / "text").read_text() == edited(3, 30)
    assert (mounted.lower / "text").read_text() == edited(3, word="host")


def test_a_dry_run_of_a_merge_ends_as_the_merge_would(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "src/a").write_text("sandbox\n")
    (mounted.root / "other").write_text("sandbox\n")
    (mounted.lower / "other").write_text("host\n")
    mounted.host_changed()
    planned = review(mounted, "commit", "--dry-run", "--on-conflict", "merge")
    assert planned.returncode == 5
    assert "conflict markers go into the view:\n  M other\n" in planned.stdout
    assert "'other'" in planned.stderr


def test_a_directory_deleted_here_in_which_the_host_made_a_file_is_a_conflict(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "old/x").unlink()
    (mounted.root / "old").rmdir()
    (mounted.lower / "old/precious").write_text("precious\n")
    assert review(mounted, "commit", "--yes").returncode == 5
    done(mounted, "commit", "--yes", "--on-conflict", "skip")
    assert (mounted.lower / "old/precious").read_text() == "precious\n"


def test_git_and_special_things_stay_behind_unless_they_are_asked_for(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / ".git/HEAD").write_text("ref: refs/heads/other\n")
    (mounted.root / "tool").chmod(0o4755)
    refused = review(mounted, "commit", "--yes")
    assert refused.returncode == 2
    assert "--allow-special" in refused.stderr
    done(mounted, "commit", "--yes", "--allow-special")
    assert (mounted.lower / "tool").stat().st_mode & 0o7777 == 0o4755
    assert (mounted.lower / ".git/HEAD").read_text() == "ref: refs/heads/main\n"
    (mounted.lower / ".git/index.lock").touch()
    assert review(mounted, "commit", "--yes", "--include-git").returncode == 4
    (mounted.lower / ".git/index.lock").unlink()
    done(mounted, "commit", "--yes", "--include-git")
    assert (mounted.lower / ".git/HEAD").read_text() == "ref: refs/heads/other\n"


def test_programs_commit_single_hunks_and_a_stale_id_is_refused(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(3, 30))
    changes = json.loads(done(mounted, "diff", "--json"))["changes"]
    first, second = (hunk["id"] for hunk in changes[0]["hunks"])
    done(mounted, "commit", "--yes", "--hunk", second)
    assert (mounted.lower / "text").read_text() == edited(30)
    assert (mounted.root / "text").read_text() == edited(3, 30)
    (mounted.root / "text").write_text(edited(3, 30).replace("edited 3\n", "edited again\n"))
    before = capture(mounted.lower)
    for name in (first, "no-such-id"):
        refused = review(mounted, "commit", "--yes", "--hunk", name)
        assert refused.returncode == 2
        assert name in refused.stderr
    assert capture(mounted.lower) == before


def test_bad_paths_and_a_missing_person_change_nothing(mount: Mount, tmp_path: Path) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(3))
    for words in (
        ["commit"],
        ["discard", "--all"],
        ["commit", "--yes", str(mounted.root / "other")],
        ["commit", "--yes", str(tmp_path / "elsewhere")],
        ["discard", "--yes"],
        ["undo", "--yes", "17"],
    ):
        assert review(mounted, *words).returncode == 2, words
    planned = json.loads(done(mounted, "commit", "--dry-run", "--json"))
    assert [change["path"] for change in planned["changes"]] == ["text"]
    assert names(mounted) == ["M\ttext"]


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_a_person_is_shown_the_plan_and_asked_once(mount: Mount, answer: str, status: int) -> None:
    mounted = mount(TREE)
    (mounted.root / "tool").write_text("#!/bin/sh\nexit 1\n")
    (mounted.root / "run").write_text("#!/bin/sh\n")
    (mounted.root / "run").chmod(0o755)
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(mounted.state), "NO_COLOR": "1"}
    with Dialogue([sys.executable, "-m", "sandboxfs", "commit", "-s", "test"], environment) as talk:
        shown = talk.answer("[y/N]", answer)
        assert "run" in shown
        assert "executable" in shown
        talk.finish()
        assert talk.process.returncode == status
    assert (mounted.lower / "run").exists() == (status == 0)
    mounted.host_changed()


def test_without_a_daemon_the_same_is_done_by_the_command_itself(mount: Mount) -> None:
    mounted = mount(TREE)
    (mounted.root / "text").write_text(edited(3))
    os.rename(mounted.root / "src", mounted.root / "lib")
    (mounted.root / "other").unlink()
    before = restorable(mounted.lower)
    mounted.stop()
    done(mounted, "commit", "--yes")
    assert (mounted.lower / "text").read_text() == edited(3)
    assert (mounted.lower / "lib/a").exists()
    done(mounted, "undo", "--yes")
    assert restorable(mounted.lower) == before
    done(mounted, "discard", "--all", "--yes")
    assert names(mounted) == []
    mounted.start()
    assert (mounted.root / "src/a").read_text() == "a\n"
