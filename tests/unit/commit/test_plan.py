"""What a commit takes, what it needs, and what it does not do."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.commit.apply import apply_plan
from sandboxfs.commit.plan import OnConflict, Options, busy_repository, plan_commit
from sandboxfs.commit.selection import SelectedPart
from sandboxfs.errors import UsageError
from sandboxfs.review import change
from sandboxfs.review.change import PathChange
from sandboxfs.review.scan import survey
from tests.support.committed import Committed
from tests.support.reviewed import in_short, view_states
from tests.support.tree import HardLink, Tree, assert_same_tree, capture

Make = Callable[[Tree], Committed]
LINES = "".join(f"line {number}\n" for number in range(20))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Committed] = []
    umask = os.umask(0)

    def sandbox(tree: Tree) -> Committed:
        made.append(Committed(tmp_path / str(len(made)), tree))
        return made[-1]

    yield sandbox
    for one in made:
        one.abandon()
    os.umask(umask)


def taken(sandbox: Committed, *paths: str, **options: object) -> list[str]:
    return [in_short(finding) for finding in sandbox.plan(*paths, **options).findings]


def edited(text: str, **lines: str) -> bytes:
    """*text* with other words for some of its lines."""
    for number, words in lines.items():
        text = text.replace(f"line {number.removeprefix('_')}\n", f"{words}\n")
    return text.encode()


# What belongs together


def test_a_change_takes_the_new_directories_around_it_and_not_what_else_is_in_them(make: Make) -> None:
    sandbox = make({})
    sandbox.mkdir("new")
    sandbox.mkdir("new/er")
    sandbox.write("new/er/a", b"a")
    sandbox.write("new/b", b"b")
    assert taken(sandbox, "new/er/a") == ["added new/", "added new/er/", "added new/er/a"]


def test_a_change_in_a_renamed_directory_takes_the_rename(make: Make) -> None:
    sandbox = make({"d/a": "a", "d/b": "b"})
    sandbox.rename("d", "e")
    sandbox.write("e/a", b"A")
    sandbox.write("e/b", b"B")
    assert taken(sandbox, "e/a") == ["renamed d -> e/", "modified e/a"]


def test_deleting_a_directory_takes_what_was_moved_out_of_it(make: Make) -> None:
    sandbox = make({"d/a": "a", "d/b": "b"})
    sandbox.rename("d/a", "a")
    sandbox.unlink("d/b")
    sandbox.rmdir("d")
    assert taken(sandbox, "d/b") == ["deleted d/b"]
    assert taken(sandbox, "d") == ["renamed d/a -> a", "deleted d/", "deleted d/b"]


def test_what_takes_a_place_takes_along_what_left_it(make: Make) -> None:
    sandbox = make({"d/a": "a"})
    sandbox.rename("d", "e")
    sandbox.mkdir("d")
    sandbox.write("d/n", b"n")
    assert taken(sandbox, "d/n") == ["added d/", "added d/n", "renamed d -> e/"]


def test_names_of_one_file_go_together(make: Make) -> None:
    sandbox = make({"a": "text", "b": HardLink("a")})
    sandbox.write("a", b"other")
    assert taken(sandbox, "b") == ["modified a", "modified b"]
    sandbox.commit("a")
    first, second = (sandbox.host / "a").stat(), (sandbox.host / "b").stat()
    assert first.st_ino == second.st_ino
    assert (sandbox.host / "b").read_text() == "other"


def test_a_second_name_of_an_unchanged_file_becomes_a_second_name_in_the_workspace(make: Make) -> None:
    sandbox = make({"d/a": "text", "b": "other"})
    sandbox.link("d/a", "second")
    assert sandbox.found() == ["added second"]
    before = capture(sandbox.host)
    sandbox.commit()
    assert os.path.samefile(sandbox.host / "d/a", sandbox.host / "second")
    assert sandbox.lstat("d/a").st_ino == sandbox.lstat("second").st_ino
    sandbox.undo()
    assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
    assert sandbox.lstat("d/a").st_ino == sandbox.lstat("second").st_ino


def test_a_second_name_of_a_file_that_the_host_changed_since_is_what_the_sandbox_saw(make: Make) -> None:
    sandbox = make({"a": "text"})
    sandbox.link("a", "second")
    (sandbox.host / "a").write_text("the host's")
    sandbox.commit()
    assert (sandbox.host / "a").read_text() == "the host's"
    assert (sandbox.host / "second").read_text() == "text"


def test_a_second_name_in_a_renamed_directory_becomes_a_second_name_in_the_workspace(make: Make) -> None:
    sandbox = make({"d/a": "text"})
    sandbox.rename("d", "e")
    sandbox.link("e/a", "second")
    sandbox.commit()
    assert os.path.samefile(sandbox.host / "e/a", sandbox.host / "second")
    assert sandbox.found() == []


def test_a_name_outside_the_workspace_keeps_the_old_content(make: Make, tmp_path: Path) -> None:
    sandbox = make({"a": "old"})
    os.link(sandbox.host / "a", tmp_path / "outside")
    sandbox.host_changed()
    sandbox.write("a", b"new")
    sandbox.commit()
    assert (sandbox.host / "a").read_text() == "new"
    assert (tmp_path / "outside").read_text() == "old"
    sandbox.undo()
    assert os.path.samefile(sandbox.host / "a", tmp_path / "outside")


# What is left out or refused


def test_git_directories_stay_behind_also_nested_ones(make: Make) -> None:
    sandbox = make({".git/config": "c", "sub/.git/HEAD": "h", "a": "a"})
    for path in (".git/config", "sub/.git/HEAD", "a"):
        sandbox.write(path, b"changed")
    plan = sandbox.plan()
    assert [in_short(finding) for finding in plan.findings] == ["modified a"]
    assert [(line.directory, line.reason, line.changes) for line in plan.left_out] == [
        (b".git", "git", 1),
        (b"sub/.git", "git", 1),
    ]
    assert taken(sandbox, include_git=True) == [
        "modified .git/config",
        "modified a",
        "modified sub/.git/HEAD",
    ]


def test_a_directory_with_a_repository_in_it_is_not_deleted_without_git(make: Make) -> None:
    sandbox = make({"sub/.git/HEAD": "h", "sub/a": "a"})
    for path in ("sub/.git/HEAD", "sub/a"):
        sandbox.unlink(path)
    for path in ("sub/.git", "sub"):
        sandbox.rmdir(path)
    assert taken(sandbox) == ["deleted sub/a"]


def test_a_repository_that_git_is_working_in_is_busy(make: Make) -> None:
    sandbox = make({"sub/.git/HEAD": "h"})
    sandbox.write("sub/.git/HEAD", b"other")
    (sandbox.host / "sub/.git/index.lock").touch()
    sandbox.host_changed()
    with sandbox.layers() as layers:
        plan = plan_commit(sandbox.selected(survey(layers), (), {"include_git": True}), Options())
        assert busy_repository(plan) == b"sub/.git/index.lock"
        assert busy_repository(plan_commit(sandbox.selected(survey(layers)), Options())) is None


def test_setuid_and_setgid_are_refused_unless_allowed(make: Make) -> None:
    sandbox = make({"had": "had"})
    sandbox.create("suid", b"", 0o755)
    sandbox.chmod("suid", 0o4755)
    sandbox.create("sgid", b"", 0o755)
    sandbox.chmod("sgid", 0o2755)
    assert [why for _, why in sandbox.plan().refusals] == ["setgid", "setuid"]
    assert sandbox.plan().is_blocked
    assert not sandbox.plan(allow_special=True).is_blocked
    sandbox.commit(allow_special=True)
    assert stat.S_IMODE((sandbox.host / "suid").stat().st_mode) == 0o4755


# Conflicts


def conflicting(make: Make, theirs: bytes, ours: bytes) -> Committed:
    sandbox = make({"text": LINES, "other": "other"})
    sandbox.write("text", ours)
    sandbox.write("other", b"changed")
    (sandbox.host / "text").write_bytes(theirs)
    sandbox.host_changed()
    return sandbox


def test_a_conflict_keeps_everything_from_being_applied(make: Make) -> None:
    sandbox = conflicting(make, edited(LINES, _1="host"), edited(LINES, _1="box"))
    plan = sandbox.plan()
    assert plan.is_blocked
    assert [in_short(finding) for finding in plan.conflicts] == ["modified text!"]


def test_skip_applies_the_rest(make: Make) -> None:
    sandbox = conflicting(make, edited(LINES, _1="host"), edited(LINES, _1="box"))
    sandbox.commit(on_conflict="skip")
    assert (sandbox.host / "other").read_text() == "changed"
    assert b"host" in (sandbox.host / "text").read_bytes()
    assert sandbox.found() == ["modified text!"]


def test_ours_applies_the_sandboxs_side_and_undo_brings_the_workspaces_back(make: Make) -> None:
    theirs, ours = edited(LINES, _1="host"), edited(LINES, _1="box")
    sandbox = conflicting(make, theirs, ours)
    before = capture(sandbox.host)
    sandbox.commit(on_conflict="ours")
    assert (sandbox.host / "text").read_bytes() == ours
    assert sandbox.found() == []
    sandbox.undo()
    assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
    assert sandbox.read("text") == ours


def test_theirs_drops_the_sandboxs_side_and_undo_brings_it_back(make: Make) -> None:
    theirs, ours = edited(LINES, _1="host"), edited(LINES, _1="box")
    sandbox = conflicting(make, theirs, ours)
    view = view_states(sandbox)
    sandbox.commit(on_conflict="theirs")
    assert (sandbox.host / "text").read_bytes() == sandbox.read("text") == theirs
    assert (sandbox.host / "other").read_text() == "changed"
    assert sandbox.found() == []
    sandbox.undo()
    assert view_states(sandbox) == view


def test_merge_puts_edits_of_different_lines_together(make: Make) -> None:
    sandbox = conflicting(make, edited(LINES, _1="host"), edited(LINES, _15="box"))
    sandbox.commit(on_conflict="merge")
    both = edited(LINES, _1="host", _15="box")
    assert (sandbox.host / "text").read_bytes() == sandbox.read("text") == both
    assert sandbox.found() == []


@pytest.mark.parametrize("ours", [LINES.encode(), edited(LINES, _15="box")], ids=["moved", "edited too"])
@pytest.mark.parametrize("how", ["merge", "ours"])
def test_a_renamed_file_that_the_host_edited_is_in_conflict_again_after_undo(
    make: Make, ours: bytes, how: str
) -> None:
    sandbox = make({"old": LINES, "other": "other"})
    sandbox.rename("old", "new")
    sandbox.write("new", ours)
    sandbox.write("other", b"changed")
    (sandbox.host / "old").write_bytes(edited(LINES, _1="host"))
    sandbox.host_changed()
    before, found = capture(sandbox.host), sandbox.found()
    sandbox.commit(on_conflict=how)
    both = ours.replace(b"line 1\n", b"host\n")
    assert sorted(os.listdir(sandbox.host)) == ["new", "other"]
    assert (sandbox.host / "new").read_bytes() == sandbox.read("new") == (both if how == "merge" else ours)
    assert sandbox.found() == []
    sandbox.undo()
    assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
    assert sandbox.read("new") == ours
    assert sandbox.found() == found == ["renamed old -> new!", "modified other"]
    sandbox.commit(on_conflict="merge")
    assert (sandbox.host / "new").read_bytes() == both


def test_a_renamed_file_gets_markers_where_edits_overlap(make: Make) -> None:
    sandbox = make({"old": LINES, "other": "other"})
    sandbox.rename("old", "new")
    sandbox.write("new", edited(LINES, _1="box"))
    (sandbox.host / "old").write_bytes(edited(LINES, _1="host"))
    sandbox.host_changed()
    sandbox.commit(on_conflict="merge")
    assert sandbox.conflicts() == {"new": change.UNRESOLVED}
    assert sorted(os.listdir(sandbox.host)) == ["old", "other"]
    sandbox.write("new", edited(LINES, _1="both"))
    assert sandbox.found() == ["renamed old -> new"]
    sandbox.commit()
    assert sorted(os.listdir(sandbox.host)) == ["new", "other"]
    assert (sandbox.host / "new").read_bytes() == edited(LINES, _1="both")


@pytest.mark.parametrize("how", ["merge", "ours", "theirs"])
def test_a_part_of_a_renamed_file_in_conflict_loses_nothing(make: Make, how: str) -> None:
    sandbox = make({"old": LINES, "other": "other"})
    sandbox.rename("old", "new")
    sandbox.write("new", edited(LINES, _1="first", _15="second"))
    (sandbox.host / "old").write_bytes(edited(LINES, _9="host"))
    sandbox.host_changed()
    before = capture(sandbox.host)
    sandbox.commit(hunks=sandbox.hunk_ids("new")[:1], on_conflict=how)
    assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
    rest = {"_15": "second"} if how == "theirs" else {"_1": "first", "_15": "second"}
    assert sandbox.read("new") == edited(LINES, **rest)
    assert sandbox.found() == ["renamed old -> new!"]


def test_a_deletion_that_won_over_an_edit_is_in_conflict_again_after_undo(make: Make) -> None:
    sandbox = make({"gone": "old", "other": "other"})
    sandbox.unlink("gone")
    sandbox.write("other", b"changed")
    (sandbox.host / "gone").write_text("the host's")
    sandbox.host_changed()
    found = sandbox.conflicts()
    assert found == {"gone": change.CHANGED_AND_DELETED}
    sandbox.commit(on_conflict="ours")
    assert not (sandbox.host / "gone").exists()
    sandbox.undo()
    assert sandbox.conflicts() == found


def test_merge_writes_markers_into_the_view_where_edits_overlap(make: Make) -> None:
    theirs = edited(LINES, _1="host")
    sandbox = conflicting(make, theirs, edited(LINES, _1="box"))
    sandbox.commit(on_conflict="merge")
    assert (sandbox.host / "other").read_text() == "changed"
    assert (sandbox.host / "text").read_bytes() == theirs
    marked = sandbox.read("text")
    assert b"<<<<<<< sandbox\nbox\n=======\nhost\n>>>>>>> workspace\n" in marked
    # Resolved, it is an ordinary change.
    sandbox.write("text", edited(LINES, _1="both"))
    assert sandbox.found() == ["modified text"]
    sandbox.commit()
    assert (sandbox.host / "text").read_bytes() == edited(LINES, _1="both")


def marked(make: Make) -> tuple[Committed, bytes]:
    """A sandbox in which a merge put markers into `text`, and what the program had there."""
    ours = edited(LINES, _1="box", _15="box too")
    sandbox = conflicting(make, edited(LINES, _1="host", _9="host too"), ours)
    sandbox.commit(on_conflict="merge")
    assert b"<<<<<<< sandbox\n" in sandbox.read("text")
    return sandbox, ours


def test_undo_of_a_merge_takes_the_markers_out_of_the_view(make: Make) -> None:
    sandbox, ours = marked(make)
    with_markers = sandbox.read("text")
    undone = sandbox.undo()
    assert not undone.left
    assert (b"text", "marked") in undone.changes
    assert sandbox.read("text") == ours
    assert sandbox.read("other") == b"changed"
    assert (sandbox.host / "other").read_text() == "other"
    # It starts from what it had started from: the workspace's edits are a conflict, and can be merged again.
    assert sandbox.conflicts() == {"text": change.CHANGED}
    sandbox.commit(on_conflict="merge")
    assert sandbox.read("text") == with_markers


def test_a_merge_that_was_undone_in_part_keeps_its_conflict_when_the_rest_is_undone(make: Make) -> None:
    sandbox, ours = marked(make)
    (sandbox.host / "other").write_text("the host's")
    sandbox.host_changed()
    assert [path for path, _ in sandbox.undo().left] == [b"other"]
    assert sandbox.read("text") == ours
    (sandbox.host / "other").write_text("changed")
    sandbox.host_changed()
    assert not sandbox.undo().left
    assert sandbox.read("text") == ours
    assert sandbox.conflicts() == {"text": change.CHANGED}


def test_undo_leaves_a_text_alone_in_which_markers_were_resolved(make: Make) -> None:
    sandbox, _ = marked(make)
    sandbox.write("text", b"resolved\n")
    undone = sandbox.undo()
    assert undone.left == ((b"text", "changed in the sandbox since"),)
    assert sandbox.read("text") == b"resolved\n"
    assert sandbox.read("other") == b"changed"
    assert sandbox.conflicts() == {}


def test_markers_that_are_still_there_are_a_conflict(make: Make) -> None:
    sandbox, _ = marked(make)
    unresolved = {"text": change.UNRESOLVED}
    assert sandbox.conflicts() == unresolved
    assert sandbox.plan().is_blocked
    plan = sandbox.plan(on_conflict="merge")
    assert [in_short(finding) for finding in plan.conflicts] == ["modified text!"]
    assert not plan.marks
    # Also when some are gone, when the file was written anew, or has another name.
    half = sandbox.read("text").replace(b"<<<<<<< sandbox\n", b"").replace(b"\n", b"\r\n")
    sandbox.create("draft", half, 0o644)
    sandbox.rename("draft", "text")
    assert sandbox.conflicts() == unresolved
    # Also when the host goes on.
    (sandbox.host / "text").write_text("again\n")
    sandbox.host_changed()
    assert sandbox.conflicts() == unresolved
    sandbox.commit(on_conflict="ours")
    assert (sandbox.host / "text").read_bytes() == half
    assert sandbox.found() == []


def test_markers_in_a_file_that_was_renamed_are_a_conflict(make: Make) -> None:
    sandbox, _ = marked(make)
    sandbox.rename("text", "elsewhere")
    assert sandbox.found() == ["renamed text -> elsewhere!"]
    assert sandbox.conflicts() == {"elsewhere": change.UNRESOLVED}


def test_lines_that_look_like_markers_are_none_where_no_merge_put_them(make: Make) -> None:
    text = b"<<<<<<< sandbox\na\n=======\nb\n>>>>>>> workspace\n"
    sandbox = make({"manual": "how it looks:\n"})
    sandbox.write("manual", b"how it looks:\n" + text)
    sandbox.write("new", text)
    assert sandbox.conflicts() == {}


def test_a_merge_keeps_the_mode_that_the_host_gave(make: Make) -> None:
    sandbox = conflicting(make, edited(LINES, _1="host"), edited(LINES, _1="box"))
    (sandbox.host / "text").chmod(0o755)
    sandbox.host_changed()
    sandbox.commit(on_conflict="merge")
    assert stat.S_IMODE(sandbox.lstat("text").st_mode) == 0o755


def test_a_text_that_was_written_to_after_the_plan_gets_no_markers_and_stays_in_conflict(make: Make) -> None:
    sandbox = conflicting(make, edited(LINES, _1="host"), edited(LINES, _1="box"))
    newer = edited(LINES, _1="newer")
    result = sandbox.commit(on_conflict="merge", between=lambda: put_bytes(sandbox.upper / "text", newer))
    assert result.stayed == (b"text",)
    assert sandbox.read("text") == newer
    assert sandbox.conflicts() == {"text": change.CHANGED}
    sandbox.undo()
    assert sandbox.conflicts() == {"text": change.CHANGED}


def put_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def test_what_cannot_be_merged_stays_a_conflict(make: Make) -> None:
    sandbox = make({"binary": b"\0old", "gone": "old", "mode": "m"})
    sandbox.write("binary", b"\0box")
    sandbox.write("gone", b"box")
    (sandbox.host / "binary").write_bytes(b"\0host")
    (sandbox.host / "gone").unlink()
    sandbox.host_changed()
    plan = sandbox.plan(on_conflict="merge")
    assert [in_short(finding) for finding in plan.conflicts] == ["modified binary!", "modified gone!"]
    assert not plan.items
    assert not plan.is_blocked


def test_what_the_host_made_in_a_deleted_directory_is_never_lost(make: Make) -> None:
    sandbox = make({"d/a": "a"})
    sandbox.unlink("d/a")
    sandbox.rmdir("d")
    (sandbox.host / "d/new").write_text("precious")
    sandbox.host_changed()
    assert sandbox.plan().is_blocked
    sandbox.commit(on_conflict="skip")
    assert (sandbox.host / "d/new").read_text() == "precious"
    assert not (sandbox.host / "d/a").exists()
    sandbox.commit(on_conflict="ours")
    assert not (sandbox.host / "d").exists()
    sandbox.undo()
    assert (sandbox.host / "d/new").read_text() == "precious"


def test_ours_replaces_what_the_host_made_too(make: Make) -> None:
    sandbox = make({})
    sandbox.write("n", b"box")
    (sandbox.host / "n").mkdir()
    (sandbox.host / "n" / "inner").write_text("host")
    sandbox.host_changed()
    sandbox.commit(on_conflict="ours")
    assert (sandbox.host / "n").read_text() == "box"
    sandbox.undo()
    assert (sandbox.host / "n" / "inner").read_text() == "host"
    assert sandbox.read("n") == b"box"


# Parts


def test_one_hunk_lands_and_the_rest_stays(make: Make) -> None:
    sandbox = make({"text": LINES})
    sandbox.write("text", edited(LINES, _1="first", _15="second"))
    view, found = view_states(sandbox), sandbox.found()
    first, second = sandbox.hunk_ids("text")
    sandbox.commit(hunks=[first])
    assert (sandbox.host / "text").read_bytes() == edited(LINES, _1="first")
    assert view_states(sandbox) == view
    assert sandbox.found() == found
    assert len(sandbox.hunk_ids("text")) == 1
    sandbox.undo()
    assert (sandbox.host / "text").read_bytes() == LINES.encode()
    assert sandbox.hunk_ids("text") == [first, second]
    sandbox.commit(hunks=[first, second])
    assert sandbox.found() == []


def test_an_unknown_hunk_is_refused_and_changes_nothing(make: Make) -> None:
    sandbox = make({"text": LINES})
    sandbox.write("text", edited(LINES, _1="first"))
    stale = sandbox.hunk_ids("text")[0]
    sandbox.write("text", edited(LINES, _1="other"))
    for ids in (["00000000"], [stale]):
        with pytest.raises(UsageError, match="no such hunk"):
            sandbox.commit(hunks=ids)
    assert (sandbox.host / "text").read_text() == LINES
    assert not sandbox.commits.exists()


def test_a_part_of_a_change_can_be_discarded_and_brought_back(make: Make) -> None:
    sandbox = make({"text": LINES, "other": "o"})
    both = edited(LINES, _1="first", _15="second")
    sandbox.write("text", both)
    sandbox.write("other", b"kept")

    def choose(finding: PathChange) -> SelectedPart | bool:
        return SelectedPart(edited(LINES, _15="second")) if finding.path == b"text" else False

    sandbox.discard(choose=choose)
    assert sandbox.read("text") == edited(LINES, _15="second")
    assert sandbox.read("other") == b"kept"
    assert sandbox.found() == ["modified other", "modified text"]
    sandbox.undo()
    assert sandbox.read("text") == both
    assert sandbox.found() == ["modified other", "modified text"]


def test_merge_takes_the_chosen_hunk_and_the_rest_stays_with_what_the_host_did(make: Make) -> None:
    theirs = edited(LINES, _5="host")
    sandbox = conflicting(make, theirs, edited(LINES, _1="first", _9="second", _17="third"))
    (sandbox.host / "text").chmod(0o600)
    sandbox.host_changed()
    view, before = view_states(sandbox), capture(sandbox.host)
    _, second, _ = sandbox.hunk_ids("text")
    sandbox.commit(hunks=[second], on_conflict="merge")
    assert (sandbox.host / "text").read_bytes() == edited(LINES, _5="host", _9="second")
    assert sandbox.read("text") == edited(LINES, _1="first", _5="host", _9="second", _17="third")
    assert stat.S_IMODE(sandbox.lstat("text").st_mode) == 0o600
    assert sandbox.found() == ["modified other", "modified text"]
    assert len(sandbox.hunk_ids("text")) == 2
    undone = sandbox.undo()
    assert not undone.left
    assert_same_tree(capture(sandbox.host), before, ignoring=frozenset({"ctime_ns"}))
    assert view_states(sandbox) == view
    assert sandbox.conflicts() == {"text": change.CHANGED}
    sandbox.commit(on_conflict="merge")
    assert (sandbox.host / "text").read_bytes() == edited(
        LINES, _1="first", _5="host", _9="second", _17="third"
    )


def test_a_hunk_is_not_merged_where_the_rest_could_not_be(make: Make) -> None:
    sandbox = conflicting(make, edited(LINES, _1="host"), edited(LINES, _1="first", _15="second"))
    _, second = sandbox.hunk_ids("text")
    result = sandbox.commit(hunks=[second], on_conflict="merge")
    assert result.stayed == ()
    assert (sandbox.host / "text").read_bytes() == edited(LINES, _1="host")
    assert sandbox.read("text") == edited(LINES, _1="first", _15="second")
    assert sandbox.conflicts() == {"text": change.CHANGED}


def test_a_rest_that_was_changed_since_is_left_alone_with_what_was_merged(make: Make) -> None:
    sandbox = conflicting(make, edited(LINES, _5="host"), edited(LINES, _1="first", _15="second"))
    sandbox.commit(hunks=sandbox.hunk_ids("text")[:1], on_conflict="merge")
    merged = (sandbox.host / "text").read_bytes()
    sandbox.write("text", b"again\n")
    assert [path for path, _ in sandbox.undo().left] == [b"text"]
    assert (sandbox.host / "text").read_bytes() == merged
    assert sandbox.found() == ["modified other", "modified text"]


def test_theirs_drops_the_chosen_hunk_and_undo_brings_it_back(make: Make) -> None:
    ours = edited(LINES, _1="first", _9="second", _17="third")
    theirs = edited(LINES, _1="host")
    sandbox = conflicting(make, theirs, ours)
    view = view_states(sandbox)
    _, second, _ = sandbox.hunk_ids("text")
    sandbox.commit(hunks=[second], on_conflict="theirs")
    assert (sandbox.host / "text").read_bytes() == theirs
    assert sandbox.read("text") == edited(LINES, _1="first", _17="third")
    assert sandbox.read("other") == b"changed"
    assert sandbox.found() == ["modified other", "modified text!"]
    sandbox.undo()
    assert view_states(sandbox) == view
    assert sandbox.found() == ["modified other", "modified text!"]


def test_what_was_left_of_a_text_is_not_taken_back_when_it_was_changed_since(make: Make) -> None:
    sandbox = conflicting(make, edited(LINES, _1="host"), edited(LINES, _1="first", _15="second"))
    sandbox.commit(hunks=sandbox.hunk_ids("text")[:1], on_conflict="theirs")
    sandbox.write("text", edited(LINES, _15="again"))
    assert [path for path, _ in sandbox.undo().left] == [b"text"]
    assert sandbox.read("text") == edited(LINES, _15="again")


def test_theirs_drops_nothing_that_was_not_chosen_along_with_what_it_needs(make: Make) -> None:
    sandbox = make({})
    sandbox.mkdir("d")
    sandbox.write("d/wanted", b"1")
    sandbox.write("d/other", b"2")
    (sandbox.host / "d").write_text("the host's")
    sandbox.host_changed()
    with sandbox.layers() as layers:
        options = Options(on_conflict=OnConflict.THEIRS, choose=lambda finding: finding.path == b"d/wanted")
        plan = plan_commit(sandbox.selected(survey(layers)), options)
    assert not plan.drops
    assert [in_short(finding) for finding in plan.conflicts] == ["added d/!"]
    assert [in_short(finding) for finding in sandbox.plan(on_conflict="theirs").drops] == [
        "added d/!",
        "added d/other",
        "added d/wanted",
    ]


def test_a_part_of_a_renamed_file_takes_the_rename(make: Make) -> None:
    sandbox = make({"old": LINES})
    sandbox.rename("old", "new")
    sandbox.write("new", edited(LINES, _1="first", _15="second"))
    view, found = view_states(sandbox), sandbox.found()
    with sandbox.paused() as site, sandbox.layers() as layers:
        options = Options(choose=lambda finding: SelectedPart(edited(LINES, _1="first")))
        apply_plan(site, plan_commit(sandbox.selected(survey(layers)), options))
    assert os.listdir(sandbox.host) == ["new"]
    assert (sandbox.host / "new").read_bytes() == edited(LINES, _1="first")
    assert view_states(sandbox) == view
    assert sandbox.found() == ["modified new"]
    sandbox.undo()
    assert (sandbox.host / "old").read_text() == LINES
    assert view_states(sandbox) == view
    assert sandbox.found() == found
