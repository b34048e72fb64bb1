"""Held changes: which changes a rule holds, and what an approval is good for."""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxfs.hostfs.tree import Unreadable
from sandboxfs.policy.model import Hold, Mode, Policy, Rule, RuleSource, SourceKind
from sandboxfs.review.change import PathChange
from sandboxfs.review.held import Approvals, HoldRules, approved
from sandboxfs.review.scan import ScanResult, survey
from tests.support.committed import Committed
from tests.support.reviewed import in_short
from tests.support.tree import File, HardLink, Symlink, Tree

Make = Callable[[Tree], Committed]
GIVEN = RuleSource(SourceKind.COMMAND_LINE)
DELETE, OVERWRITE = Hold.DELETE, Hold.OVERWRITE


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Committed] = []

    def sandbox(tree: Tree) -> Committed:
        made.append(Committed(tmp_path / str(len(made)), tree))
        return made[-1]

    yield sandbox
    for one in made:
        one.abandon()


def hold(pattern: str, *kinds: Hold) -> Rule:
    """A rule of mode `hold`, or of mode `rw` that holds *kinds* of change."""
    return Rule(pattern, Mode.RW if kinds else Mode.HOLD, GIVEN, hold=frozenset(kinds))


def rules(sandbox: Committed, *given: Rule | str, approvals: Approvals | None = None) -> HoldRules:
    every = [hold(rule) if isinstance(rule, str) else rule for rule in given]
    return HoldRules(Policy(tuple(every)), os.fsencode(sandbox.lower), approvals or {})


def held(sandbox: Committed, *given: Rule | str, approvals: Approvals | None = None) -> list[str]:
    with sandbox.layers() as layers:
        found = survey(layers)
        numbers = rules(sandbox, *given, approvals=approvals).held(found)
        return [in_short(found.findings[number]) for number in numbers]


def approvals_of(sandbox: Committed, *paths: str) -> Approvals:
    """Approve the changes at *paths*, or all without any."""
    with sandbox.layers() as layers:
        found = survey(layers)
        wanted = [one for one in found.findings if not paths or os.fsdecode(one.path) in paths]
        return approved(found, wanted)


# Every kind of change


def change_everything(sandbox: Committed) -> None:
    sandbox.write("new", b"1")
    sandbox.mkdir("made")
    sandbox.write("edited", b"2")
    sandbox.unlink("gone")
    sandbox.rename("moved", "moved2")
    sandbox.chmod("program", 0o755)
    sandbox.setxattr("tagged", "user.colour", b"blue")
    sandbox.unlink("link")
    sandbox.symlink("edited", "link")
    sandbox.unlink("kind")
    sandbox.mkdir("kind")


EVERYTHING: Tree = {
    "edited": "1",
    "gone": "1",
    "moved": "content that moves",
    "program": "1",
    "tagged": File("1", xattrs={"user.colour": b"red"}),
    "link": Symlink("gone"),
    "kind": "1",
    "kept": "1",
}


def test_a_rule_of_mode_hold_holds_every_kind_of_change(make: Make) -> None:
    sandbox = make(EVERYTHING)
    change_everything(sandbox)
    assert held(sandbox, "**") == sandbox.found()


def test_a_rule_that_holds_deleting_holds_what_takes_something_away(make: Make) -> None:
    sandbox = make(EVERYTHING)
    change_everything(sandbox)
    assert held(sandbox, hold("**", DELETE)) == [
        "deleted gone",
        "type kind/",
        "renamed moved -> moved2",
    ]


def test_a_rule_that_holds_overwriting_holds_what_changes_something_that_was_there(make: Make) -> None:
    sandbox = make(EVERYTHING)
    change_everything(sandbox)
    assert held(sandbox, hold("**", OVERWRITE)) == [
        "modified edited",
        "type kind/",
        "modified link",
        "mode program",
        "mode tagged",
    ]


def test_rules_hold_only_what_they_name(make: Make) -> None:
    sandbox = make({"a/x": "1", "b/x": "1"})
    sandbox.write("a/x", b"2")
    sandbox.write("b/x", b"2")
    assert held(sandbox, "a") == ["modified a/x"]
    assert held(sandbox, Rule("a/x", Mode.RW, GIVEN), "**") == ["modified b/x"]
    assert held(sandbox) == []


def test_a_switched_off_policy_holds_nothing(make: Make) -> None:
    sandbox = make({"a": "1"})
    sandbox.write("a", b"2")
    holds = rules(sandbox, "**")
    with sandbox.layers() as layers:
        assert replace(holds, policy=replace(holds.policy, enabled=False)).held(survey(layers)) == {}


def test_of_two_rules_for_one_change_the_one_is_named_that_holds_it(make: Make) -> None:
    sandbox = make({"a": "1"})
    sandbox.unlink("a")
    first, second = hold("a", DELETE), hold("*")
    with sandbox.layers() as layers:
        assert list(rules(sandbox, first, second).held(survey(layers)).values()) == [first]


# What programs do to save


def test_a_file_that_was_deleted_and_made_again_is_overwritten(make: Make) -> None:
    sandbox = make({"a": "1"})
    sandbox.unlink("a")
    sandbox.create("a", b"2")
    assert held(sandbox, hold("**", OVERWRITE)) == ["modified a"]


def test_a_file_that_is_saved_through_a_rename_is_overwritten(make: Make) -> None:
    sandbox = make({"a": "1"})
    sandbox.write("a.new", b"2")
    sandbox.rename("a.new", "a")
    assert held(sandbox, hold("**", OVERWRITE)) == ["modified a"]


def test_a_file_that_is_saved_beside_its_backup_is_overwritten(make: Make) -> None:
    sandbox = make({"a": "1"})
    sandbox.rename("a", "a.bak")
    sandbox.write("a", b"2")
    found = held(sandbox, hold("a", OVERWRITE))
    assert [one.split()[-1] for one in found] == ["a"]


def test_a_file_of_the_workspace_that_takes_anothers_place_overwrites_it(make: Make) -> None:
    sandbox = make({"a": "one", "b": "two"})
    sandbox.rename("a", "b")
    assert held(sandbox, hold("b", OVERWRITE)) == ["modified b"]
    assert held(sandbox, hold("a", DELETE)) == ["deleted a"]


def test_two_files_that_change_places_are_overwritten(make: Make) -> None:
    sandbox = make({"a": "one", "b": "two"})
    for path, other in (("a", "c"), ("b", "a"), ("c", "b")):
        sandbox.rename(path, other)
    assert held(sandbox, hold("**", OVERWRITE)) == sandbox.found()


def test_what_the_sandbox_made_may_be_overwritten_and_deleted(make: Make) -> None:
    sandbox = make({"a": "1"})
    sandbox.write("new", b"1")
    sandbox.write("new", b"2")
    sandbox.write("passing", b"1")
    sandbox.unlink("passing")
    assert held(sandbox, hold("**", DELETE, OVERWRITE)) == []


# Renames


def test_a_rename_out_of_a_held_place_is_held(make: Make) -> None:
    sandbox = make({"kept/a": "1", "free/b": "1"})
    sandbox.rename("kept/a", "free/a")
    assert held(sandbox, "kept") == ["renamed kept/a -> free/a"]
    assert held(sandbox, hold("kept", DELETE)) == ["renamed kept/a -> free/a"]
    assert held(sandbox, hold("kept", OVERWRITE)) == []


def test_a_rename_into_a_held_place_is_held(make: Make) -> None:
    sandbox = make({"kept/a": "1", "free/b": "1"})
    sandbox.rename("free/b", "kept/b")
    assert held(sandbox, "kept") == ["renamed free/b -> kept/b"]
    assert held(sandbox, hold("kept", DELETE, OVERWRITE)) == []


def test_a_renamed_directory_is_held_for_a_file_in_it(make: Make) -> None:
    sandbox = make({"d/deep/kept": "1", "d/free": "1"})
    sandbox.rename("d", "e")
    assert held(sandbox, "d/deep/kept") == ["renamed d -> e/"]
    assert held(sandbox, hold("d/deep/kept", DELETE)) == ["renamed d -> e/"]
    assert held(sandbox, "e/deep/kept") == ["renamed d -> e/"]
    assert held(sandbox, hold("d/deep/kept", OVERWRITE)) == []


def test_a_renamed_directory_is_not_held_for_a_file_that_the_sandbox_made_in_it(make: Make) -> None:
    sandbox = make({"d/a": "1"})
    sandbox.write("d/new", b"1")
    sandbox.rename("d", "e")
    assert held(sandbox, hold("d/new", DELETE)) == []


def test_a_change_in_a_renamed_directory_is_held_at_both_places(make: Make) -> None:
    sandbox = make({"d/a": "1", "d/b": "1"})
    sandbox.rename("d", "e")
    sandbox.write("e/a", b"2")
    sandbox.unlink("e/b")
    assert held(sandbox, hold("d/a", OVERWRITE)) == ["modified e/a"]
    assert held(sandbox, hold("e/a", OVERWRITE)) == ["modified e/a"]
    assert held(sandbox, hold("d/b", DELETE)) == ["deleted e/b"]


def test_a_directory_that_was_moved_away_and_back_is_not_held(make: Make) -> None:
    sandbox = make({"d/a": "1"})
    sandbox.rename("d", "e")
    sandbox.rename("e", "d")
    assert held(sandbox, hold("**", DELETE, OVERWRITE)) == []


# Several names of one file


def test_every_changed_name_of_a_file_is_judged_by_its_own_path(make: Make) -> None:
    sandbox = make({"kept": "1", "free": HardLink("kept")})
    sandbox.write("free", b"2")
    assert held(sandbox, "kept") == ["modified kept"]


# Approvals


def test_an_approved_change_is_not_held(make: Make) -> None:
    sandbox = make(EVERYTHING)
    change_everything(sandbox)
    assert held(sandbox, "**", approvals=approvals_of(sandbox)) == []


@pytest.mark.parametrize(
    "go_on",
    [
        lambda sandbox: sandbox.write("a", b"3"),
        lambda sandbox: sandbox.chmod("a", 0o600),
        lambda sandbox: sandbox.setxattr("a", "user.new", b"1"),
        lambda sandbox: sandbox.unlink("a"),
        lambda sandbox: sandbox.rename("a", "b"),
        lambda sandbox: sandbox.link("a", "b"),
    ],
    ids=["content", "mode", "attribute", "kind", "path", "names"],
)
def test_a_change_that_goes_on_after_its_approval_is_held_again(
    make: Make, go_on: Callable[[Committed], None]
) -> None:
    sandbox = make({"a": "1"})
    sandbox.write("a", b"2")
    approvals = approvals_of(sandbox)
    assert held(sandbox, "**", approvals=approvals) == []
    go_on(sandbox)
    assert held(sandbox, "**", approvals=approvals) != []


def test_content_of_the_same_size_and_time_is_other_content(make: Make) -> None:
    sandbox = make({"a": "1"})
    sandbox.write("a", b"2")
    approvals, status = approvals_of(sandbox), sandbox.stat("a")
    sandbox.write("a", b"3")
    sandbox.utime("a", status.st_atime_ns, status.st_mtime_ns)
    assert held(sandbox, "**", approvals=approvals) == ["modified a"]
    sandbox.write("a", b"2")
    assert held(sandbox, "**", approvals=approvals) == []


def test_a_change_of_another_version_of_the_workspace_is_held_again(make: Make) -> None:
    sandbox = make({"a": "1"})
    sandbox.write("a", b"2")
    approvals = approvals_of(sandbox)
    sandbox.discard("a")
    (sandbox.host / "a").write_text("other")
    sandbox.host_changed()
    sandbox.write("a", b"2")
    assert held(sandbox, "**", approvals=approvals) == ["modified a"]


def test_an_approval_is_of_one_path(make: Make) -> None:
    sandbox = make({})
    sandbox.write("a", b"1")
    sandbox.write("b", b"1")
    assert held(sandbox, "**", approvals=approvals_of(sandbox, "a")) == ["added b"]


def test_an_approved_directory_says_nothing_about_later_entries(make: Make) -> None:
    sandbox = make({})
    sandbox.mkdir("d")
    approvals = approvals_of(sandbox)
    sandbox.write("d/a", b"1")
    assert held(sandbox, "**", approvals=approvals) == ["added d/a"]


def test_what_cannot_be_read_can_be_neither_approved_nor_released(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = make({"a": "1"})
    sandbox.write("a", b"2")
    approvals = approvals_of(sandbox)

    def refuse() -> bytes:
        raise Unreadable("cannot be read")

    def unread(found: ScanResult) -> ScanResult:
        def of(change: PathChange) -> PathChange:
            return replace(change, new=None if change.new is None else replace(change.new, read=refuse))

        return replace(found, findings=[of(change) for change in found.findings])

    with sandbox.layers() as layers:
        found = unread(survey(layers))
        assert approved(found, found.findings) == {}
        assert list(rules(sandbox, "**", approvals=approvals).held(found)) == [0]


# What a commit takes


def taken(sandbox: Committed, holds: HoldRules, *paths: str, **more: object) -> list[str]:
    return [in_short(one) for one in sandbox.plan(*paths, holds=holds, **more).findings]


def kept_back(sandbox: Committed, holds: HoldRules, *paths: str) -> dict[str, str | None]:
    """The held changes, and what those wait for that need one."""
    plan = sandbox.plan(*paths, holds=holds)
    return {in_short(one.change): None if one.behind is None else in_short(one.behind) for one in plan.held}


def test_a_commit_takes_everything_but_what_is_held(make: Make) -> None:
    sandbox = make({"kept/a": "1", "free/a": "1"})
    sandbox.write("kept/a", b"2")
    sandbox.write("free/a", b"2")
    holds = rules(sandbox, "kept")
    assert taken(sandbox, holds) == ["modified free/a"]
    assert taken(sandbox, holds, "kept/a") == []
    assert taken(sandbox, holds, approve=True) == ["modified free/a", "modified kept/a"]
    assert kept_back(sandbox, holds) == {"modified kept/a": None}
    assert kept_back(sandbox, holds, "free") == {}


def test_a_change_that_needs_a_held_one_waits_for_it(make: Make) -> None:
    sandbox = make({"d/a": "1", "free": "1"})
    sandbox.rename("d", "e")
    sandbox.write("e/a", b"2")
    holds = rules(sandbox, hold("d", DELETE))
    assert taken(sandbox, holds) == []
    assert kept_back(sandbox, holds) == {"renamed d -> e/": None, "modified e/a": "renamed d -> e/"}


def test_a_change_waits_for_a_held_one_that_was_not_asked_for(make: Make) -> None:
    sandbox = make({"d/a": "1"})
    sandbox.rename("d", "e")
    sandbox.write("e/a", b"2")
    holds = rules(sandbox, hold("d", DELETE))
    assert taken(sandbox, holds, "e/a") == []
    assert kept_back(sandbox, holds, "e/a") == {"modified e/a": "renamed d -> e/"}
    # Whoever picks it has not seen the other one.
    assert taken(sandbox, holds, "e/a", choose=lambda finding: True) == []


def test_one_held_name_holds_all_names_of_a_file(make: Make) -> None:
    sandbox = make({"kept": "1", "free": HardLink("kept"), "other": "1"})
    sandbox.write("free", b"2")
    sandbox.write("other", b"2")
    holds = rules(sandbox, "kept")
    assert taken(sandbox, holds) == ["modified other"]
    assert kept_back(sandbox, holds) == {"modified kept": None, "modified free": "modified kept"}


def test_git_s_own_files_are_held_together(make: Make) -> None:
    sandbox = make({".git/HEAD": "ref: refs/heads/main\n", ".git/config": "[core]\n", "a": "1"})
    sandbox.write(".git/config", b"[core]\n\tpager = less\n")
    sandbox.write(".git/index", b"new")
    sandbox.write("a", b"2")
    with sandbox.layers() as layers:
        found = survey(layers)
        more = {"include_git": True, "holds": rules(sandbox, ".git/config")}
        selection = sandbox.selected(found, (), more)
        assert [in_short(one) for one in selection.taken] == ["modified a"]
        assert [one.change.path for one in selection.held.values()] == [b".git/config"]
        assert b".git/index" in [one.change.path for one in selection.waiting.values()]


def test_a_held_new_directory_is_not_named_beside_what_is_in_it(make: Make) -> None:
    sandbox = make({})
    sandbox.mkdir("d")
    sandbox.write("d/a", b"1")
    assert kept_back(sandbox, rules(sandbox, "d")) == {"added d/a": None}


def test_approving_a_file_approves_the_new_directory_around_it_and_its_other_names(make: Make) -> None:
    sandbox = make({"h": "1", "l": HardLink("h")})
    sandbox.mkdir("d")
    sandbox.write("d/a", b"1")
    sandbox.write("d/b", b"1")
    sandbox.write("h", b"2")
    with sandbox.layers() as layers:
        found = survey(layers)
        selection = sandbox.selected(found, (), {"holds": rules(sandbox, "**")})
        number = {found.findings[n].path: n for n in selection.held}
        assert selection.approved_with([number[b"d/a"]]) == {number[b"d"], number[b"d/a"]}
        assert selection.approved_with([number[b"h"]]) == {number[b"h"], number[b"l"]}


def test_approving_all_that_was_deleted_in_a_directory_approves_its_deletion(make: Make) -> None:
    sandbox = make({"d/a": "1", "d/b": "1"})
    sandbox.remove_tree("d")
    with sandbox.layers() as layers:
        found = survey(layers)
        selection = sandbox.selected(found, (), {"holds": rules(sandbox, "**")})
        number = {found.findings[n].path: n for n in selection.held}
        assert selection.approved_with([number[b"d/a"]]) == {number[b"d/a"]}
        assert selection.approved_with([number[b"d/a"], number[b"d/b"]]) == set(number.values())


# Whatever is done: nothing held is taken

NAMES = ["a", "b", "d", "e"]
TREE: Tree = {
    "a": "lower a",
    "b": "lower b",
    "d/a": "lower d/a",
    "d/b": HardLink("b"),
    "d/e/a": "lower d/e/a",
    "d/e/b": Symlink("../a"),
    "e/a": "lower e/a",
    "e/d/b": "lower e/d/b",
}


def some_path(chance: random.Random) -> str:
    return "/".join(chance.choice(NAMES) for _ in range(chance.choice([1, 1, 2, 2, 3])))


def work_at_random(sandbox: Committed, chance: random.Random) -> None:
    for _ in range(15):
        path, other = some_path(chance), some_path(chance)
        action = chance.choice(["write", "write", "unlink", "remove", "mkdir", "rename", "rename", "link"])
        try:
            match action:
                case "write":
                    sandbox.write(path, b"upper %d" % chance.randrange(100))
                case "unlink":
                    sandbox.unlink(path)
                case "remove":
                    sandbox.remove_tree(path)
                case "mkdir":
                    sandbox.mkdir(path)
                case "rename":
                    sandbox.rename(path, other)
                case _:
                    sandbox.link(path, other)
        except OSError:
            # What cannot be done fails as it does anywhere.
            pass


def some_rule(chance: random.Random) -> Rule:
    kinds = chance.choice([(), (), (DELETE,), (OVERWRITE,), (DELETE, OVERWRITE)])
    return hold(chance.choice([some_path(chance), f"**/{chance.choice(NAMES)}"]), *kinds)


@pytest.mark.parametrize("seed", range(30))
def test_nothing_held_is_taken_unless_a_person_approved_it(make: Make, seed: int) -> None:
    chance = random.Random(seed)
    sandbox = make(TREE)
    work_at_random(sandbox, chance)
    every = [some_rule(chance) for _ in range(chance.randint(1, 3))]
    paths = [some_path(chance)] if chance.random() < 0.3 else []
    answers: dict[str, bool] = {}

    def answer(finding: PathChange) -> bool:
        return answers.setdefault(in_short(finding), chance.random() < 0.6)

    with sandbox.layers() as layers:
        found = survey(layers)
        holds = rules(sandbox, *every)
        held_ones = {in_short(found.findings[number]) for number in holds.held(found)}
        assert held_ones.isdisjoint(taken(sandbox, holds, *paths, on_conflict="skip"))
        picked = taken(sandbox, holds, *paths, on_conflict="skip", choose=answer)
        selection = sandbox.selected(found, paths, {"holds": holds})
        yes = [n for n in selection.held if answers.get(in_short(found.findings[n]))]
        may_be_taken = {in_short(found.findings[n]) for n in selection.approved_with(yes)}
        assert held_ones.intersection(picked) <= may_be_taken
