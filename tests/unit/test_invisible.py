"""Characters that cannot be seen: known, shown where a person reads, and marked where they go unchanged."""

import os
import sys
import unicodedata

import pytest

from sandboxfs.cli.output import Painter, harmless
from sandboxfs.cli.terminal import visible
from sandboxfs.paths import invisible, quoted
from sandboxfs.review.flags import Look, flags
from sandboxfs.review.patch import quote_name

FILE = 0o100644
# Invisible by "Default_Ignorable_Code_Point", or blank, though no format characters.
OTHERS = [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2065, 0x2800, 0x3164, 0xFFA0]
OTHERS += [0x16FE4, 0x1D159, *range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)]
NAMED = [
    "\u061c",
    "\ufeff",
    "\u00ad",
    "\U000e0041",
    "\u3164",
    "\u115f",
    "\u1160",
    "\uffa0",
    "\u180e",
    "\u2800",
    "\u2028",
    "\U00016fe4",
    "\U0001d159",
]


def formatting() -> list[int]:
    every = range(sys.maxunicode + 1)
    return [code for code in every if unicodedata.category(chr(code)) in ("Cf", "Zl", "Zp")]


def test_every_character_that_formats_separates_or_is_ignored_counts_as_invisible() -> None:
    missing = [hex(code) for code in formatting() + OTHERS if not invisible().fullmatch(chr(code))]
    assert missing == []


def test_no_letter_digit_or_sign_counts_as_invisible() -> None:
    kept = {*OTHERS}
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] in "LNPS" and code not in kept:
            assert not invisible().match(chr(code)), hex(code)


@pytest.mark.parametrize(
    "text", ["👨\u200d👩\u200d👧", "❤\ufe0f", "1\ufe0f\u20e3", "☎\ufe0e", "a b", "a\u00a0b", "日本\u3000語"]
)
def test_emoji_and_spaces_are_left_as_they_are(text: str) -> None:
    assert harmless(text.encode()) == text.encode()
    assert flags(b"a", None, Look(FILE, 9, text.encode())) == []


@pytest.mark.parametrize("text", ["a\u200db", "x\ufe0f", "❤\ufe0f\ufe0f", "❤\ufe00", "\u200d👩", "👩\u200d"])
def test_what_joins_or_selects_nothing_is_shown(text: str) -> None:
    assert b"<U+" in harmless(text.encode())
    assert flags(b"a", None, Look(FILE, 9, text.encode())) == ["invisible"]


@pytest.mark.parametrize("character", NAMED)
def test_invisible_character_is_shown_in_text_and_in_names_everywhere(character: str) -> None:
    text = f"a{character}b"
    assert harmless(text.encode()) == b"a<U+%04X>b" % ord(character)
    for shown in (visible(text.encode()), quoted(text), quote_name(text.encode()).decode()):
        assert character not in shown
        assert "\\" in shown


@pytest.mark.parametrize("character", NAMED)
def test_patch_for_a_pipe_is_unchanged_and_the_file_is_marked(character: str) -> None:
    line = f"+if a{character} == b:\n".encode()
    assert Painter(colour=False, terminal=False).patch(line) == line
    assert Painter(colour=False, terminal=True).patch(line) != line
    assert flags(b"a.py", None, Look(FILE, len(line), line)) == ["invisible"]
    assert flags(b"a.py", Look(FILE, 2, b"x\n"), Look(FILE, len(line), line)) == ["invisible"]
    assert flags(b"a.py", Look(FILE, len(line), line), Look(FILE, len(line), line + b"more\n")) == []
    assert flags(os.fsencode(f"a{character}.py"), None, Look(FILE)) == ["invisible"]


def test_an_invisible_character_is_marked_where_others_went() -> None:
    """Whoever takes three joiners away has not paid for one that reorders."""
    old, new = "a\u200db\u200dc\u200dd\n".encode(), "a\u202ebcd\n".encode()
    assert flags(b"a.py", Look(FILE, len(old), old), Look(FILE, len(new), new)) == ["invisible"]
    assert flags(b"a.py", Look(FILE, len(old), old), Look(FILE, 5, b"abcd\n")) == []


def test_byte_order_mark_at_the_start_is_shown_and_not_marked() -> None:
    text = "\ufefftext\n".encode()
    assert harmless(text) == b"<U+FEFF>text\n"
    assert flags(b"a", None, Look(FILE, len(text), text)) == []


def test_bytes_that_are_no_text_are_not_marked() -> None:
    assert flags(b"a.bin", None, Look(FILE, 9, b"\0" + "\u202e".encode())) == []
    assert flags(b"a.txt", None, Look(FILE, 9, b"caf\xe9\n")) == []
