"""What a terminal is sent: colours where they are wanted, and nothing that a file smuggled in."""

import pytest

from sandboxfs.cli.output import Painter, harmless, wants_colour


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"plain text\n\ttabbed\n", b"plain text\n\ttabbed\n"),
        (b"\033]0;title\007", b"^[]0;title^G"),
        (b"\033[31mred\r\n", b"^[[31mred^M\n"),
        ("größe 語\n".encode(), "größe 語\n".encode()),
        (b"\xff\x9b31m", b"<FF><9B>31m"),
        ("\x9b31m".encode(), b"<U+009B>31m"),
        ("a\u202eb".encode(), b"a<U+202E>b"),
        (b"\x7f", b"^?"),
    ],
)
def test_what_a_terminal_would_obey_is_made_visible(text: bytes, shown: bytes) -> None:
    assert harmless(text) == shown


def test_colour_is_a_matter_of_choice_terminal_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour("auto", terminal=True)
    assert not wants_colour("auto", terminal=False)
    assert wants_colour("always", terminal=False)
    assert not wants_colour("never", terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour("auto", terminal=True)
    assert wants_colour("always", terminal=True)
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_colour("auto", terminal=True)


def test_a_patch_is_painted_by_the_meaning_of_its_lines() -> None:
    text = b"diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@ head\n--- old\n+++ new\n same\n"
    assert Painter(colour=True, terminal=False).patch(text) == (
        b"\033[1mdiff --git a/a b/a\033[m\n\033[1m--- a/a\033[m\n\033[1m+++ b/a\033[m\n"
        b"\033[36m@@ -1 +1 @@\033[m head\n\033[31m--- old\033[m\n\033[32m+++ new\033[m\n same\n"
    )
    assert Painter(colour=False, terminal=False).patch(text) == text


def test_what_goes_elsewhere_than_a_terminal_stays_as_it_is() -> None:
    assert Painter(colour=False, terminal=False).patch(b"+\033[2J\n") == b"+\033[2J\n"
    assert Painter(colour=False, terminal=True).patch(b"+\033[2J\n") == b"+^[[2J\n"


def test_the_bar_of_a_summary_is_painted() -> None:
    painter = Painter(colour=True, terminal=True)
    assert (
        painter.stat(" a | b-- | 3 ++-  conflict") == " a | b-- | 3 \033[32m++\033[m\033[31m-\033[m  conflict"
    )
    assert painter.stat(" a | Bin 1 -> 2 bytes") == " a | Bin 1 -> 2 bytes"
    assert painter.stat(" 1 file changed") == " 1 file changed"
