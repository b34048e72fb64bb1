"""Choosing parts of changes: what each key does, and what the choice comes to as text."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.commit.pick import CannotAnswer, OfferedChange, OfferedPart, Picking, Picks, Question, Subject
from sandboxfs.commit.selection import BadEdit, SelectedPart, Verb
from sandboxfs.review.hunks import hunks, text_lines
from sandboxfs.review.text_diff import diff_lines

line = st.sampled_from([b"a", b"b", b"c", b"def f():", b"", b"x\r"])
texts = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(line, max_size=30), st.sampled_from([b"", b"\n"])
)
VERBS: tuple[Verb, ...] = ("commit", "discard")
verbs = st.sampled_from(VERBS)

OLD = b"".join(b"line %d\n" % number for number in range(60))
# Three hunks; the second has two runs of changes.
NEW = (
    OLD.replace(b"line 5\n", b"five\n")
    .replace(b"line 30\n", b"thirty\n")
    .replace(b"line 33\n", b"")
    .replace(b"line 55\n", b"line 55\nmore\n")
)
RENAME = OfferedPart(Subject.RENAME, b"rename from a\nrename to b\n")
MODE = OfferedPart(Subject.MODE, b"old mode 100644\nnew mode 100755\n")


def item(old: bytes, new: bytes, *leads: OfferedPart, path: bytes = b"a") -> OfferedChange:
    pieces = (OfferedPart(Subject.HUNK, hunk.text, hunk) for hunk in hunks(old, new, path=path))
    return OfferedChange(path, (*leads, *pieces), old, new)


def asked(picking: Picking) -> Question:
    question = picking.question
    assert question is not None
    return question


def play(keys: str, *items: OfferedChange, verb: Verb = "commit") -> Picks:
    """Answer with one letter after the other; all must be needed, and enough."""
    picking = Picking(items, verb)
    for key in keys:
        picking.answer(key)
    assert picking.question is None
    return picking.picks


def committed(keys: str, *leads: OfferedPart) -> bytes:
    return part(play(keys, item(OLD, NEW, *leads))).content


def part(picks: Picks, path: bytes = b"a") -> SelectedPart:
    """The hunks that were picked of the change at *path*."""
    picked = picks[path]
    assert isinstance(picked, SelectedPart)
    return picked


def result(picked: SelectedPart | bool, old: bytes, new: bytes, verb: Verb) -> bytes:
    """The text that is in the workspace after a commit, or in the sandbox after a discard."""
    if isinstance(picked, SelectedPart):
        return picked.content
    return new if picked == (verb == "commit") else old


# What each key does


def test_y_takes_a_hunk_and_n_leaves_it() -> None:
    assert committed("yny") == OLD.replace(b"line 5\n", b"five\n").replace(b"line 55\n", b"line 55\nmore\n")


def test_yes_to_everything_is_everything_and_no_is_nothing() -> None:
    assert play("yyy", item(OLD, NEW))[b"a"] is True
    assert play("nnn", item(OLD, NEW))[b"a"] is False


def test_a_takes_all_that_is_left_of_the_path_only() -> None:
    choice = play("naq", item(OLD, NEW), item(OLD, NEW, path=b"b"))
    assert part(choice).content == NEW.replace(b"five\n", b"line 5\n")
    assert choice[b"b"] is False


def test_d_leaves_all_that_is_left_of_the_path_only() -> None:
    choice = play("yda", item(OLD, NEW), item(OLD, NEW, path=b"b"))
    assert part(choice).content == OLD.replace(b"line 5\n", b"five\n")
    assert choice[b"b"] is True


def test_q_keeps_what_was_taken_and_takes_nothing_more() -> None:
    choice = play("aynq", *(item(OLD, NEW, path=path) for path in (b"a", b"b", b"c")))
    assert choice[b"a"] is True
    assert part(choice, b"b").content == OLD.replace(b"line 5\n", b"five\n")
    assert choice.keys() == {b"a", b"b"}


def test_items_are_not_made_before_their_turn_nor_after_q() -> None:
    made = []

    def items() -> Iterator[OfferedChange]:
        for path in (b"a", b"b", b"c"):
            made.append(path)
            yield item(OLD, NEW, path=path)

    picking = Picking(items(), "commit")
    assert made == []
    assert asked(picking).position == 1
    assert made == [b"a"]
    picking.answer("a")
    assert made == [b"a", b"b"]
    picking.answer("q")
    assert made == [b"a", b"b"]
    assert picking.question is None


def test_j_and_k_go_past_what_is_decided_and_their_capitals_do_not() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    picking.answer("J")
    picking.answer("y")
    assert asked(picking).number == 3
    picking.answer("k")
    assert asked(picking).number == 1
    picking.answer("j")
    assert asked(picking).number == 3
    picking.answer("K")
    assert (asked(picking).number, asked(picking).part.taken) == (2, True)
    picking.answer("J")
    assert (asked(picking).number, asked(picking).part.taken) == (3, None)


def test_what_was_left_undecided_is_asked_again_before_the_path_is_left() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    for key in ("j", "j", "y"):
        picking.answer(key)
    assert asked(picking).number == 1
    for key in ("n", "n"):
        picking.answer(key)
    assert picking.question is None
    assert part(picking.picks).content == OLD.replace(b"line 55\n", b"line 55\nmore\n")


def test_a_decision_can_be_changed_as_long_as_the_path_is_not_left() -> None:
    assert committed("yKnyn") == OLD.replace(b"line 30\n", b"thirty\n").replace(b"line 33\n", b"")


def test_a_changes_an_earlier_no_of_this_hunk_but_not_of_others() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    for key in ("n", "n", "K", "a"):
        picking.answer(key)
    assert part(picking.picks).content == NEW.replace(b"five\n", b"line 5\n")


def test_g_goes_to_a_number() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    picking.answer("g", "3")
    assert asked(picking).number == 3
    picking.answer("g", " 1 ")
    assert asked(picking).number == 1


@pytest.mark.parametrize("argument", ["", "x", "0", "4", "-1", "9" * 5000])
def test_g_refuses_what_is_no_number_of_a_hunk(argument: str) -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    with pytest.raises(CannotAnswer):
        picking.answer("g", argument)
    assert asked(picking).number == 1


def test_the_overview_tells_where_each_hunk_is_and_what_was_decided() -> None:
    picking = Picking([item(OLD, NEW, MODE)], "commit")
    picking.answer("y")
    picking.answer("n")
    assert picking.overview() == [
        b"+  1: mode change",
        b"-  2: -3,7 +3,7       -line 5",
        b"   3: -28,10 +28,9    -line 30",
        b"   4: -54,6 +53,7     +more",
    ]


def test_slash_finds_the_next_match_and_starts_over_at_the_top() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    picking.answer("/", "^\\+thirt")
    assert asked(picking).number == 2
    picking.answer("/", "^-line 5$")
    assert asked(picking).number == 1


@pytest.mark.parametrize("pattern", ["nowhere", "(", "[[:alpha:]]"])
def test_slash_refuses_a_pattern_that_is_none_or_matches_nothing(pattern: str) -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    with pytest.raises(CannotAnswer, match=r"pattern|matches"):
        picking.answer("/", pattern)
    assert asked(picking).number == 1


def test_s_asks_about_the_pieces_instead() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    picking.answer("n")
    assert picking.answer("s") == "Split into 2 hunks."
    assert (asked(picking).number, asked(picking).count) == (2, 4)
    for key in ("n", "y", "n"):
        picking.answer(key)
    assert part(picking.picks).content == OLD.replace(b"line 33\n", b"")


def test_pieces_of_a_decided_hunk_are_undecided() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    for key in ("n", "y", "K", "s"):
        picking.answer(key)
    assert (asked(picking).number, asked(picking).part.taken) == (2, None)


@pytest.mark.parametrize(
    ("before", "letters"),
    [
        ("", "ynqadjJg/ep?"),
        ("y", "ynqadjJKg/sep?"),
        ("j", "ynqadjJkKg/sep?"),
        ("yy", "ynqadKg/ep?"),
    ],
)
def test_only_letters_that_apply_are_offered(before: str, letters: str) -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    for key in before:
        picking.answer(key)
    assert "".join(asked(picking).letters) == letters


@pytest.mark.parametrize("key", ["j", "J", "k", "K", "g", "/", "s", "e", "x", "Y", "?", "p", ""])
def test_an_answer_that_does_not_apply_is_refused_with_a_sentence_and_changes_nothing(key: str) -> None:
    picking = Picking([OfferedChange(b"a", (OfferedPart(Subject.DELETION, b"deleted\n"),))], "commit")
    before = asked(picking)
    with pytest.raises(CannotAnswer, match=r"\.$"):
        picking.answer(key, "1")
    with pytest.raises(CannotAnswer):
        picking.edit(b"")
    assert asked(picking) == before
    assert "".join(before.letters) == "ynqadp?"


def test_nothing_can_be_answered_when_nothing_is_asked() -> None:
    picking = Picking([OfferedChange(b"nothing to ask")], "commit")
    assert picking.question is None
    for key in ("y", "q"):
        with pytest.raises(CannotAnswer):
            picking.answer(key)


# Changes of which only a part has hunks


def test_change_without_hunks_is_taken_or_left_as_a_whole() -> None:
    for subject in (Subject.ADDITION, Subject.DELETION, Subject.RENAME, Subject.MODE, Subject.CHANGE):
        whole = OfferedChange(b"a", (OfferedPart(subject, b""),))
        for verb in VERBS:
            assert play("y", whole, verb=verb)[b"a"] is True
            assert play("n", whole, verb=verb)[b"a"] is False


def test_mode_is_asked_about_first_and_can_be_taken_without_the_hunks_or_they_without_it() -> None:
    offered = item(OLD, NEW, MODE)
    first = asked(Picking([offered], "commit"))
    assert (first.part.subject, first.number, first.count, first.part.text) == (Subject.MODE, 1, 4, MODE.text)
    assert play("yd", offered)[b"a"] == SelectedPart(OLD, mode=True)
    without = part(play("na", offered))
    assert (without.mode, without.content) == (False, NEW)
    assert play("a", offered)[b"a"] is True


def test_commit_of_a_rename_can_leave_hunks_behind() -> None:
    pick = part(play("ynyn", item(OLD, NEW, RENAME)))
    assert pick.content == OLD.replace(b"line 30\n", b"thirty\n").replace(b"line 33\n", b"")


@pytest.mark.parametrize("keys", ["n", "jykn", "jyq", "d"])
def test_no_hunk_is_committed_without_its_rename(keys: str) -> None:
    assert play(keys, item(OLD, NEW, RENAME))[b"a"] is False


@pytest.mark.parametrize("keys", ["y", "jnky", "a"])
def test_discarding_a_rename_discards_all_that_changed_in_the_file(keys: str) -> None:
    assert play(keys, item(OLD, NEW, RENAME), verb="discard")[b"a"] is True


def test_hunks_of_a_rename_that_stays_can_be_discarded() -> None:
    pick = part(play("nynn", item(OLD, NEW, RENAME), verb="discard"))
    assert pick.content == NEW.replace(b"five\n", b"line 5\n")


def test_person_is_told_when_an_answer_decides_more_than_was_asked() -> None:
    told = Picking([item(OLD, NEW, RENAME)], "commit").answer("n")
    assert told == "That decides all of its 4 parts."
    assert not Picking([OfferedChange(b"a", (RENAME,))], "commit").answer("n")


# What a choice comes to


def test_added_file_is_one_hunk_that_is_all_of_it() -> None:
    for verb in VERBS:
        assert play("y", item(b"", OLD), verb=verb)[b"a"] is True
        assert play("n", item(b"", OLD), verb=verb)[b"a"] is False


@given(texts, texts, verbs, st.randoms())
def test_random_answers_give_a_text_between_the_old_and_the_new(
    old: bytes, new: bytes, verb: Verb, chance: random.Random
) -> None:
    picking = Picking([item(old, new)], verb)
    while (question := picking.question) is not None:
        key = chance.choice([letter for letter in question.letters if letter not in "q/ep?"] + ["s", "s"])
        if key in question.letters:
            picking.answer(key, str(chance.randint(1, question.count)))
    assert is_between(result(picking.picks.get(b"a", False), old, new, verb), old, new)


@given(texts, texts, verbs, st.booleans())
def test_yes_to_all_gives_the_new_text_and_no_to_all_the_old(
    old: bytes, new: bytes, verb: Verb, split: bool
) -> None:
    for key in "yn":
        picking = Picking([item(old, new)], verb)
        while (question := picking.question) is not None:
            picking.answer("s" if split and "s" in question.letters else key)
        taken = (key == "y") == (verb == "commit")
        assert result(picking.picks.get(b"a", False), old, new, verb) == (new if taken else old)


@given(texts, texts, st.randoms())
def test_what_is_not_discarded_is_what_a_commit_of_the_rest_would_have_taken(
    old: bytes, new: bytes, chance: random.Random
) -> None:
    discarding, committing = Picking([item(old, new)], "discard"), Picking([item(old, new)], "commit")
    while (question := discarding.question) is not None:
        taken = chance.random() < 0.5
        if "s" in question.letters:
            discarding.answer("s")
            committing.answer("s")
        discarding.answer("y" if taken else "n")
        committing.answer("n" if taken else "y")
    stays = result(discarding.picks.get(b"a", False), old, new, "discard")
    taken_over = result(committing.picks.get(b"a", False), old, new, "commit")
    assert stays == taken_over


def is_between(text: bytes, old: bytes, new: bytes) -> bool:
    """Whether *text* has, at each place where the two differ, what either the one or the other has."""
    lines, old_lines, new_lines = text_lines(text), text_lines(old), text_lines(new)
    places, at = {0}, 0
    for edit in diff_lines(old_lines, new_lines):
        places = followed(places, lines, old_lines[at : edit.old_start])
        kept = followed(places, lines, old_lines[edit.old_start : edit.old_end])
        places = kept | followed(places, lines, new_lines[edit.new_start : edit.new_end])
        at = edit.old_end
    return len(lines) in followed(places, lines, old_lines[at:])


def followed(places: set[int], lines: list[bytes], piece: list[bytes]) -> set[int]:
    return {place + len(piece) for place in places if lines[place : place + len(piece)] == piece}


# Edited hunks


def test_edited_hunk_is_taken_as_it_was_edited() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    picking.answer("n")
    assert picking.edit(asked(picking).part.text.replace(b"-line 33\n", b" line 33\n"))
    picking.answer("n")
    pick = part(picking.picks)
    assert pick.content == OLD.replace(b"line 30\n", b"thirty\n")


def test_path_with_an_edited_hunk_is_a_part_even_if_all_is_taken() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    picking.edit(asked(picking).part.text.replace(b"+five\n", b"+5\n"))
    picking.answer("a")
    pick = part(picking.picks)
    assert pick.content == NEW.replace(b"five\n", b"5\n")


def test_hunk_that_the_editor_left_alone_is_taken_as_it_is() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    assert picking.edit(b"# comment\n" + asked(picking).part.text + b"# comment\n")
    picking.answer("a")
    assert picking.picks[b"a"] is True


def test_edit_that_removes_everything_leaves_the_hunk_undecided() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    before = asked(picking)
    assert not picking.edit(b"# comment\n\n")
    assert asked(picking) == before


def test_edit_that_does_not_fit_changes_nothing() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    before = asked(picking)
    with pytest.raises(BadEdit):
        picking.edit(before.part.text.replace(b" line 4\n", b" line four\n"))
    assert asked(picking) == before


def test_edited_hunk_can_be_revisited_split_and_left() -> None:
    picking = Picking([item(OLD, NEW)], "commit")
    picking.answer("n")
    picking.edit(asked(picking).part.text.replace(b"+thirty\n", b"+30\n"))
    for key in ("K", "s", "y", "n", "n"):
        picking.answer(key)
    assert part(picking.picks).content == OLD.replace(b"line 30\n", b"30\n")


def test_edit_must_not_reach_into_the_piece_next_to_it() -> None:
    old, new = b"a\nb\nc\n", b"A\nb\nC\n"
    picking = Picking([item(old, new)], "commit")
    picking.answer("s")
    with pytest.raises(BadEdit, match="another hunk"):
        picking.edit(asked(picking).part.text.replace(b" b\n", b"-b\n"))


def test_added_file_can_be_committed_in_part_by_editing() -> None:
    picking = Picking([item(b"", b"one\ntwo\nthree")], "commit")
    picking.edit(b"@@ -0,0 +1,3 @@\n+one\n+three\n\\ No newline at end of file\n")
    pick = part(picking.picks)
    assert pick.content == b"one\nthree"


def test_added_file_can_be_discarded_in_part_by_editing() -> None:
    picking = Picking([item(b"", b"one\ntwo\nthree")], "discard")
    picking.edit(asked(picking).part.text.replace(b"+one\n", b" one\n"))
    pick = part(picking.picks)
    assert pick.content == b"one\n"


@given(texts, texts, verbs, st.randoms())
def test_edited_hunks_give_exactly_the_lines_that_were_left_in_them(
    old: bytes, new: bytes, verb: Verb, chance: random.Random
) -> None:
    picking = Picking([item(old, new)], verb)
    base = text_lines(old if verb == "commit" else new)
    # The sign that must be made a blank, and the one whose line may be deleted.
    stays, goes = (b"-", b"+") if verb == "commit" else (b"+", b"-")
    expected, at = b"", 0
    while (question := picking.question) is not None:
        hunk = question.part.hunk
        assert hunk is not None
        start = hunk.old_start if verb == "commit" else hunk.new_start
        count = hunk.old_count if verb == "commit" else hunk.new_count
        lines = edited_lines(hunk.lines, stays, goes, chance)
        made = [line[1:] for line in lines if line[:1] != stays]
        fits = all(line.endswith(b"\n") for line in made[:-1])
        fits = fits and (not made or made[-1].endswith(b"\n") or start + count == len(base))
        changes = any(line[:1] != b" " for line in lines)
        if lines == () or (fits and changes):
            taken = picking.edit(replace(hunk, lines=lines).text)
            assert taken == bool(lines)
        else:
            taken = False
            with pytest.raises(BadEdit):
                picking.edit(replace(hunk, lines=lines).text)
        if not taken:
            picking.answer("n")
        expected += b"".join([*base[at:start], *(made if taken else base[start : start + count])])
        at = start + count
    expected += b"".join(base[at:])
    assert result(picking.picks.get(b"a", False), old, new, verb) == expected


def edited_lines(
    lines: tuple[bytes, ...], stays: bytes, goes: bytes, chance: random.Random
) -> tuple[bytes, ...]:
    """Leave some changes out, as the guide in the editor says it is done."""
    some = (line for line in lines if line[:1] != goes or chance.random() < 0.7)
    return tuple(b" " + line[1:] if line[:1] == stays and chance.random() < 0.3 else line for line in some)
