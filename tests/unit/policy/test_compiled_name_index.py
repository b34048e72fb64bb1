"""An index finds the globs that match a name without trying those that cannot."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxfs.policy.compiled import NameIndex
from sandboxfs.policy.patterns import CluePosition, Glob, clue, decoded, parse_glob
from tests.unit.policy import made


def index_of(globs: list[Glob]) -> NameIndex:
    return NameIndex((clue(glob), number) for number, glob in enumerate(globs))


def one_by_one(globs: list[Glob], name: bytes) -> tuple[int, ...]:
    return tuple(number for number, glob in enumerate(globs) if glob.matches(decoded(name)))


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(made.odd_globs(), max_size=12), st.lists(made.odd_names, min_size=1, max_size=6))
def test_an_index_finds_what_trying_every_glob_finds(globs: list[Glob], names: list[bytes]) -> None:
    index = index_of(globs)
    for name in names:
        assert index.search(name) == one_by_one(globs, name)


@pytest.mark.parametrize(
    ("glob", "where", "texts", "certain"),
    [
        ("*", CluePosition.NOTHING_NEEDED, [b""], True),
        ("a.txt", CluePosition.WHOLE, [b"a.txt"], True),
        ("token7*", CluePosition.BEGINNING, [b"token7"], True),
        ("*.pem", CluePosition.END, [b".pem"], True),
        ("draft7-*.tmp", CluePosition.BEGINNING, [b"draft7-"], False),
        ("a*.pem", CluePosition.END, [b".pem"], False),
        ("[ab]uild7?", CluePosition.BEGINNING, [b"auild7", b"build7"], False),
        ("?.c", CluePosition.END, [b".c"], False),
        ("*secret*", CluePosition.INSIDE, [b"sec"], False),
        ("?", CluePosition.UNKNOWN, [b""], False),
        ("*ab*", CluePosition.UNKNOWN, [b""], False),
        ("é*", CluePosition.BEGINNING, ["é".encode()], True),
        ("a\udcff*", CluePosition.BEGINNING, [b"a"], False),
        ("*\udcff", CluePosition.UNKNOWN, [b""], False),
        ("\udcff", CluePosition.UNKNOWN, [b""], False),
    ],
)
def test_a_glob_is_looked_up_by_what_tells_most_about_its_names(
    glob: str, where: CluePosition, texts: list[bytes], certain: bool
) -> None:
    found = clue(parse_glob(glob))
    assert (found.where, list(found.texts), found.certain) == (where, texts, certain)


def test_stray_bytes_do_not_match_the_character_that_they_would_make_up() -> None:
    globs = [parse_glob(text) for text in ("\udcc3\udca9", "\udcc3*", "*\udca9", "\udcc3", "é", "é*", "*é")]
    index = index_of(globs)
    assert index.search("é".encode()) == (4, 5, 6)
    assert index.search(b"\xc3") == (1, 3)
    assert index.search(b"\xa9") == (2,)


def test_only_globs_that_can_match_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ["draft{}-*.tmp", "[ab]uild{}?", "a?{}.sec", "*-{}.[ch]", "lib[0-9]*.{}"]
    index = index_of([parse_glob(kind.format(number)) for number in range(200) for kind in kinds])
    matches = Glob.matches
    tried: list[str] = []

    def counted(glob: Glob, name: str) -> bool:
        tried.append(name)
        return matches(glob, name)

    monkeypatch.setattr(Glob, "matches", counted)
    for name in (b"main.py", b"draft", b"build", b"README.md", b"0f3a9c", b"libc.so"):
        assert index.search(name) == ()
    assert tried == []
    assert index.search(b"draft17-x.tmp") == (17 * len(kinds),)
    assert index.search(b"build8x") == (8 * len(kinds) + 1,)
    assert len(tried) == 2


def test_a_number_may_stand_for_several_globs() -> None:
    index = NameIndex((clue(parse_glob(text)), 7) for text in ("abc*", "b?"))
    assert [index.search(name) for name in (b"abcd", b"bx", b"x")] == [(7,), (7,), ()]
