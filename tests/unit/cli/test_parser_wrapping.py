"""Help texts, wrapped to the width of a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.cli.parser import wrapped


def test_a_paragraph_is_filled_anew_and_stays_apart_from_the_next() -> None:
    assert wrapped("one two\nthree four\n\nfive", 9) == "one two\nthree\nfour\n\nfive"


def test_an_entry_goes_on_under_its_second_column() -> None:
    text = "show   the policy that\n       is meant\nall    of it"
    assert wrapped(text, 18) == "show   the policy\n       that is\n       meant\nall    of it"


def test_a_line_that_begins_with_spaces_stands_by_itself() -> None:
    text = "examples:\n  sandboxfs one --option value\n  sandboxfs two"
    assert wrapped(text, 22) == "examples:\n  sandboxfs one\n      --option value\n  sandboxfs two"


@given(st.lists(st.lists(st.text("abc", min_size=1, max_size=8), min_size=1, max_size=9), max_size=5))
def test_no_line_is_longer_and_no_word_is_lost(lines: list[list[str]]) -> None:
    text = "\n".join(" ".join(words) for words in lines)
    shown = wrapped(text, 20)
    assert all(len(line) <= 20 for line in shown.splitlines())
    assert shown.split() == text.split()
