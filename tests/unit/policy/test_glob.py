"""A glob matches characters of one name, quickly, or is refused."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.policy.glob import Glob, GlobError, parse_glob
from sandboxfs.policy.names import NameIndex, decoded, encoded
from tests.unit.policy import made

globs = st.one_of(st.sampled_from(made.GLOBS), st.text("ab*?[]!-\\é", min_size=1, max_size=6))
odd_names = st.one_of(
    st.sampled_from([encoded(name) for name in made.NAMES]),
    st.binary(min_size=1, max_size=5),
    st.text("abé", min_size=1, max_size=5).map(str.encode),
)


def readable(text: str) -> Glob | None:
    try:
        return parse_glob(text)
    except GlobError:
        return None


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("a?c", ["abc", "aéc", "a\udcffc", "a\nc"], ["ac", "abbc"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x", "-x"]),
        ("[!a-c]x", ["dx", "éx"], ["ax", "x"]),
        ("[^a]", ["b"], ["a"]),
        ("[]]", ["]"], ["[", ""]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[\\]x]", ["]", "x"], ["\\"]),
        ("\\*", ["*"], ["a"]),
        ("a**b", ["ab", "axxb"], ["a"]),
        ("*", [".hidden", "x"], []),
        ("A", ["A"], ["a"]),
        ("é", ["é"], ["e\u0301"]),
    ],
)
def test_a_glob_matches_as_the_dialect_says(glob: str, matching: list[str], others: list[str]) -> None:
    assert [name for name in matching if not parse_glob(glob).matches(name)] == []
    assert [name for name in others if parse_glob(glob).matches(name)] == []


@pytest.mark.parametrize(
    ("glob", "complaint"),
    [
        ("[", "unbalanced '['"),
        ("a[b", "unbalanced '['"),
        ("[]", "unbalanced '['"),
        ("[a\\", "unbalanced '['"),
        ("a\\", "a backslash with nothing behind it"),
        ("[z-a]", "the range 'z-a' runs backwards"),
    ],
)
def test_a_glob_that_is_none_is_refused_with_the_reason(glob: str, complaint: str) -> None:
    with pytest.raises(GlobError) as refused:
        parse_glob(glob)
    assert complaint in str(refused.value)


def test_many_stars_take_no_more_than_linear_time() -> None:
    glob = parse_glob("*a" * 60 + "*b")
    started = time.monotonic()
    assert not glob.matches("a" * 255)
    assert time.monotonic() - started < 1


@given(st.lists(globs, max_size=12), odd_names)
def test_an_index_finds_exactly_the_globs_that_match(texts: list[str], name: bytes) -> None:
    read = [glob for glob in map(readable, texts) if glob is not None]
    index = NameIndex((glob, number) for number, glob in enumerate(read))
    expected = tuple(number for number, glob in enumerate(read) if glob.matches(decoded(name)))
    assert index.lookup(name) == expected
    assert index.lookup(name) == expected


@given(globs, globs, odd_names)
def test_a_glob_that_includes_another_matches_all_that_the_other_does(
    one: str, other: str, name: bytes
) -> None:
    above, below = readable(one), readable(other)
    if above and below and above.includes(below) and below.matches(decoded(name)):
        assert above.matches(decoded(name))
