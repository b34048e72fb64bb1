"""Hunks edited by hand: what is understood, and what is refused with which reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.commit.selection import BadEdit, edited, reverse, without_comments
from sandboxfs.review.hunks import Hunk, apply_hunks, hunks, split

line = st.sampled_from([b"a", b"b", b"c", b""])
texts = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(line, max_size=20), st.sampled_from([b"", b"\n"])
)

OLD = b"one\n\ntwo\nthree\nfour"
NEW = b"one\n\n2\nthree\nfour\nfive\n"


def the_hunk(old: bytes = OLD, new: bytes = NEW) -> Hunk:
    (hunk,) = hunks(old, new)
    return hunk


def after(text: bytes) -> bytes:
    """What a commit of the hunk puts into the workspace after it was edited into *text*."""
    hunk = edited(the_hunk(), text, OLD)
    assert hunk is not None
    return apply_hunks(OLD, [hunk])


def refusal(text: bytes, *, backwards: bool = False) -> str:
    with pytest.raises(BadEdit) as caught:
        edited(the_hunk(), text, NEW if backwards else OLD, backwards=backwards)
    return str(caught.value)


def test_the_hunk_under_test_is_this() -> None:
    assert the_hunk().text == (
        b"@@ -1,5 +1,6 @@\n one\n \n-two\n+2\n three\n-four\n\\ No newline at end of file\n+four\n+five\n"
    )


@given(texts, texts, st.integers(0, 3))
def test_reversed_hunks_take_back_what_the_hunks_did(old: bytes, new: bytes, context: int) -> None:
    found = hunks(old, new, context)
    pieces = [piece for hunk in found for piece in split(hunk)]
    assert apply_hunks(new, map(reverse, found)) == old
    assert apply_hunks(new, map(reverse, pieces)) == old
    assert [reverse(reverse(piece)) for piece in pieces] == pieces


def test_text_as_it_was_gives_the_very_hunk() -> None:
    hunk = the_hunk()
    assert edited(hunk, hunk.text, OLD) is hunk
    assert edited(hunk, hunk.text, NEW, backwards=True) is hunk


@pytest.mark.parametrize("text", [b"", b"# all gone\n", b"# a\n\n\n# b\n\n", b"@@ -1,5 +1,6 @@\n# b\n"])
def test_text_without_a_line_of_the_hunk_is_no_hunk(text: bytes) -> None:
    assert edited(the_hunk(), text, OLD) is None


@pytest.mark.parametrize(
    ("removed", "put", "expected"),
    [
        (b"-two\n+2\n", b" two\n", OLD.replace(b"four", b"four\nfive\n")),
        (b"+five\n", b"", b"one\n\n2\nthree\nfour\n"),
        (b"-two\n+2\n", b"+2\n two\n", b"one\n\n2\ntwo\nthree\nfour\nfive\n"),
        (b"+2\n", b"+2\n+2.5\n", NEW.replace(b"2\n", b"2\n2.5\n")),
        (b" three\n", b"-three\n", NEW.replace(b"three\n", b"")),
        (b" \n", b"\n", NEW),
        (b"@@ -1,5 +1,6 @@\n", b"", NEW),
        (b"@@ -1,5 +1,6 @@\n", b"@@ -77 +88 @@ nonsense\n", NEW),
        (b"+five\n", b"+five", NEW),
        (b"+five\n", b"+five\n\\ No newline at end of file\n", NEW.removesuffix(b"\n")),
    ],
)
def test_edited_hunk_does_what_its_lines_say(removed: bytes, put: bytes, expected: bytes) -> None:
    text = the_hunk().text
    assert removed in text
    assert after(text.replace(removed, put)) == expected


def test_change_at_an_end_without_newline_can_be_left_out() -> None:
    text = the_hunk().text.replace(b"-four\n", b" four\n").replace(b"+four\n+five\n", b"")
    assert after(text) == OLD.replace(b"two", b"2")


@pytest.mark.parametrize(
    ("removed", "put", "reason"),
    [
        (b" one\n", b" two\n", "it has 'two' where the old text has 'one'"),
        (b" one\n", b"", "it has '' where the old text has 'one'"),
        (b"-four\n\\ No newline at end of file\n", b"", "it lacks the line 'four' of the old text"),
        (b"+five\n", b" five\n", "it has 'five', which the old text does not have there"),
        (b"\\ No newline at end of file\n", b"", "line 'four' of the old text has no newline at its end"),
        (
            b" three\n",
            b" three\n\\ No newline at end of file\n",
            "line 'three' of the old text has a newline at its end",
        ),
        (
            b"+2\n",
            b"+2\n\\ No newline at end of file\n",
            "line '2' needs a newline at its end: it would not be the last",
        ),
        (b"-four\n", b" four\n", "line 'four' needs a newline at its end: it would not be the last"),
        (b" one\n", b"one\n", "line 'one' starts with none of ' ', '-' and '+'"),
        (b" one\n", b"\x1b]0;\xff\n", r"line '\x1b]0;\xff' starts with none of ' ', '-' and '+'"),
        (b" one\n", b"x" * 99 + b"\n", f"line '{'x' * 60}'… starts with none of ' ', '-' and '+'"),
    ],
)
def test_hunk_that_does_not_fit_is_refused_with_the_reason(removed: bytes, put: bytes, reason: str) -> None:
    text = the_hunk().text
    assert removed in text
    assert refusal(text.replace(removed, put)) == reason


def test_hunk_that_changes_nothing_any_more_is_refused() -> None:
    old = b" one\n \n two\n three\n four\n\\ No newline at end of file\n"
    assert refusal(old).startswith("it changes nothing")


def test_line_without_newline_is_refused_where_more_of_the_text_follows() -> None:
    old = b"".join(b"%d\n" % number for number in range(20))
    hunk = the_hunk(old, old.replace(b"\n5\n", b"\nfive\n"))
    with pytest.raises(BadEdit, match="would not be the last"):
        edited(hunk, b" 2\n 3\n 4\n-5\n-6\n-7\n-8\n+five\n\\ No newline at end of file\n", old)


def test_for_a_discard_the_new_lines_must_stay_and_the_old_ones_need_not() -> None:
    hunk = the_hunk()
    text = hunk.text.replace(b"+five\n", b" five\n").replace(b"-two\n", b"-zwei\n")
    text = text.replace(b"-four\n\\ No newline at end of file\n+four\n", b" four\n")
    made = edited(hunk, text, NEW, backwards=True)
    assert made is not None
    assert apply_hunks(NEW, [reverse(made)]) == b"one\n\nzwei\nthree\nfour\nfive\n"
    assert refusal(hunk.text.replace(b"+2\n", b"+3\n"), backwards=True) == (
        "it has '3' where the new text has '2'"
    )


def test_edited_hunk_keeps_the_id_and_the_place_of_the_hunk() -> None:
    hunk = the_hunk()
    made = edited(hunk, hunk.text.replace(b"+five\n", b""), OLD)
    assert made is not None
    assert (made.id, made.old_start, made.old_count, made.new_count) == (hunk.id, 0, 5, 5)


def test_carriage_returns_stay_as_they_are() -> None:
    old, new = b"a\r\n\r\nb\r\n", b"A\r\n\r\nB\r\n"
    hunk = the_hunk(old, new)
    made = edited(hunk, b"-a\r\n+A\r\n\r\n b\r\n", old)
    assert made is not None
    assert apply_hunks(old, [made]) == b"A\r\n\r\nb\r\n"


def test_comments_go_with_the_empty_lines_after_them_only() -> None:
    assert without_comments(b"# a\n\n+x\n\n# b\n#c\n\n\n") == b"+x\n\n"
    assert without_comments(b"+x") == b"+x\n"
