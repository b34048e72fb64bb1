"""A glob matches characters of one name, quickly, or is refused."""

import time

import pytest
from hypothesis import given

from sandboxfs.policy.patterns import Glob, GlobError, decoded, encoded, parse_glob
from tests.unit.policy import made


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
    started = time.process_time()
    assert not glob.matches("a" * 255)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("glob", "beginnings", "endings"),
    [
        ("abc*", ["abc"], [""]),
        ("*.pem", [""], [".pem"]),
        ("draft-*.tmp", ["draft-"], [".tmp"]),
        ("[ab]uild7?", ["auild7", "build7"], [""]),
        ("*.py[co]", [""], [".pyc", ".pyo"]),
        ("[Dd]ebug", ["Debug", "debug"], ["Debug", "debug"]),
        ("x[a-c][0-1]*", ["xa0", "xa1", "xb0", "xb1", "xc0", "xc1"], [""]),
        ("x[aab]y*", ["xay", "xby"], [""]),
        ("x[a-c][0-9]*", ["xa", "xb", "xc"], [""]),
        ("x[a-z]y", ["x"], ["y"]),
        ("x[!a]y", ["x"], ["y"]),
        ("?x*y?", [""], [""]),
        ("*x*", [""], [""]),
        ("é[é-ë]*", ["éé", "éê", "éë"], [""]),
        ("a\udcffb*b\udcffa", ["a"], ["a"]),
        ("x[a\udcff]*", ["x"], [""]),
        ("\\**", ["*"], [""]),
    ],
)
def test_a_glob_knows_how_its_names_begin_and_end(
    glob: str, beginnings: list[str], endings: list[str]
) -> None:
    assert parse_glob(glob).beginnings == tuple(beginnings)
    assert parse_glob(glob).endings == tuple(endings)


@given(made.odd_globs(), made.odd_names)
def test_every_name_that_matches_begins_and_ends_as_the_glob_says(glob: Glob, name: bytes) -> None:
    if glob.matches(decoded(name)):
        assert name.startswith(tuple(encoded(text) for text in glob.beginnings))
        assert name.endswith(tuple(encoded(text) for text in glob.endings))


@given(made.odd_globs())
def test_a_class_with_many_members_is_not_written_out_beyond_a_bound(glob: Glob) -> None:
    for texts in (glob.beginnings, glob.endings):
        assert 1 <= len(texts) <= 16
        assert len({len(text) for text in texts}) == 1


@given(made.odd_globs(), made.odd_globs(), made.odd_names)
def test_a_glob_that_includes_another_matches_all_that_the_other_does(
    one: Glob, other: Glob, name: bytes
) -> None:
    if one.includes(other) and other.matches(decoded(name)):
        assert one.matches(decoded(name))
