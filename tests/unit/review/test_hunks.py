"""Hunks: what they show, how they are named, and what taking some of them gives."""

import io
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.review.hunks import StaleHunk, apply_hunks, hunks, is_binary, split

line = st.sampled_from([b"a", b"b", b"c", b"def f():", b"", b"x\r"])
texts = st.builds(
    lambda lines, end: b"\n".join(lines) + end, st.lists(line, max_size=30), st.sampled_from([b"", b"\n"])
)
contexts = st.integers(0, 4)


def numbered(count: int) -> list[bytes]:
    return [b"line %d\n" % number for number in range(count)]


@given(texts, texts, contexts)
def test_all_hunks_together_give_the_new_text_and_none_gives_the_old(
    old: bytes, new: bytes, context: int
) -> None:
    found = hunks(old, new, context)
    assert apply_hunks(old, found) == new
    assert apply_hunks(old, reversed(found)) == new
    assert apply_hunks(old, []) == old


@given(texts, texts, contexts)
def test_split_pieces_together_do_what_the_hunk_does(old: bytes, new: bytes, context: int) -> None:
    pieces = [piece for hunk in hunks(old, new, context) for piece in split(hunk)]
    assert apply_hunks(old, pieces) == new
    assert all(split(piece) == [piece] for piece in pieces)
    new_lines = io.BytesIO(new).readlines()
    for piece in pieces:
        kept = [line[1:] for line in piece.lines if line[:1] != b"-"]
        assert new_lines[piece.new_start : piece.new_start + piece.new_count] == kept


@given(texts, texts, contexts, st.randoms())
def test_the_rest_of_the_hunks_can_follow_any_subset(
    old: bytes, new: bytes, context: int, chance: random.Random
) -> None:
    pieces = [piece for hunk in hunks(old, new, context) for piece in split(hunk)]
    half = apply_hunks(old, [piece for piece in pieces if chance.random() < 0.5])
    assert apply_hunks(half, hunks(half, new)) == new


@given(texts, texts, contexts)
def test_ids_are_unique_within_a_file(old: bytes, new: bytes, context: int) -> None:
    names = [hunk.id for hunk in hunks(old, new, context)]
    assert len(set(names)) == len(names)


def test_header_and_lines_are_those_of_a_unified_diff() -> None:
    old = (
        b"import os\n\ndef first():\n" + b"".join(b"    step(%d)\n" % number for number in range(9)) + b"end"
    )
    new = old.replace(b"step(6)", b"leap(6)").replace(b"end", b"end\n")
    (hunk,) = hunks(old, new, path=b"a.py")
    assert hunk.text == (
        b"@@ -7,7 +7,7 @@ def first():\n"
        b"     step(3)\n     step(4)\n     step(5)\n-    step(6)\n+    leap(6)\n"
        b"     step(7)\n     step(8)\n-end\n\\ No newline at end of file\n+end\n"
    )
    assert (hunk.added, hunk.removed) == (2, 2)


def test_empty_side_names_line_zero() -> None:
    assert hunks(b"", b"a\nb\n")[0].header == b"@@ -0,0 +1,2 @@"
    assert hunks(b"a\n", b"")[0].header == b"@@ -1 +0,0 @@"


def test_changes_seven_lines_apart_are_two_hunks_and_six_lines_apart_one() -> None:
    lines = numbered(30)
    for gap, expected in ((6, 1), (7, 2)):
        new = list(lines)
        new[5] = new[5 + gap + 1] = b"changed\n"
        assert len(hunks(b"".join(lines), b"".join(new))) == expected


def test_id_survives_edits_elsewhere_and_another_amount_of_context() -> None:
    lines = numbered(60)
    new = list(lines)
    new[40] = b"changed\n"
    alone = hunks(b"".join(lines), b"".join(new), path=b"a")[0]
    new[5:6] = [b"more\n", b"lines\n"]
    assert hunks(b"".join(lines), b"".join(new), path=b"a")[1].id == alone.id
    assert hunks(b"".join(lines), b"".join(new), 0, path=b"a")[1].id == alone.id
    accepted = list(lines)
    accepted[5:6] = [b"more\n", b"lines\n"]
    assert [hunk.id for hunk in hunks(b"".join(accepted), b"".join(new), path=b"a")] == [alone.id]


def test_id_changes_with_the_hunk_and_with_the_path() -> None:
    old = b"".join(numbered(9))
    names = {
        hunks(old, old.replace(b"line 4\n", text), path=path)[0].id
        for text in (b"one\n", b"two\n", b"two", b"")
        for path in (b"a", b"b")
    }
    assert len(names) == 8


def test_hunk_of_another_text_is_refused() -> None:
    old = b"".join(numbered(20))
    (hunk,) = hunks(old, old.replace(b"line 9\n", b"nine\n"))
    with pytest.raises(StaleHunk, match=hunk.id):
        apply_hunks(old.replace(b"line 8\n", b"eight\n"), [hunk])


def test_two_hunks_for_the_same_lines_are_refused_but_one_given_twice_counts_once() -> None:
    old = b"".join(numbered(20))
    one, other = (hunks(old, old.replace(b"line 9\n", text))[0] for text in (b"nine\n", b"9\n"))
    assert apply_hunks(old, [one, one]) == old.replace(b"line 9\n", b"nine\n")
    with pytest.raises(StaleHunk):
        apply_hunks(old, [one, other])


def test_carriage_return_alone_ends_no_line() -> None:
    (hunk,) = hunks(b"a\rb\r\n", b"a\rc\r\n")
    assert hunk.lines == (b"-a\rb\r\n", b"+a\rc\r\n")


def test_nul_makes_binary_only_near_the_start() -> None:
    assert is_binary(b"a\0b")
    assert is_binary(b"x" * 7999 + b"\0")
    assert not is_binary(b"x" * 8000 + b"\0")
    assert not is_binary(b"")


def test_ten_thousand_small_files_take_about_a_second() -> None:
    old = b"".join(numbered(50))
    new = old.replace(b"line 7\n", b"seven\n").replace(b"line 30\n", b"").replace(b"line 44\n", b"x\ny\n")
    began = time.process_time()
    for _ in range(10_000):
        hunks(old, new)
    assert time.process_time() - began < 4, "generous: the target is 2 s on a quiet machine"


def test_hunk_of_twenty_thousand_runs_is_split_and_applied_in_bounded_time() -> None:
    old = b"".join(numbered(40_000))
    new = b"".join(b"changed\n" if number % 2 else line for number, line in enumerate(numbered(40_000)))
    began = time.process_time()
    (hunk,) = hunks(old, new)
    assert apply_hunks(old, split(hunk)) == new
    assert time.process_time() - began < 8, "generous: about a second on a quiet machine"
