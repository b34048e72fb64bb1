"""What is shown to a person shows itself."""

import os
import subprocess
import sys

import pytest

from sandboxfs.cli.terminal import visible, wants_colours

OPEN = """\
from sandboxfs.cli.terminal import Terminal
from sandboxfs.errors import UsageError
try:
    Terminal.open("ask", "do not ask")
except UsageError as error:
    print(error.message, error.hint, sep="; ")
"""


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain\ttext", "plain\ttext"),
        ("grüße 日本 🙂".encode(), "grüße 日本 🙂"),
        (b"a\x1b[2Kb", "a<\\x1b>[2Kb"),
        (b"a\rb\x08\x7f\0", "a<\\r>b<\\x08><\\x7f><\\x00>"),
        (b"\xff\xc3", "<\\xff><\\xc3>"),
        ("\u202eevil\u2066\u200b\u2028".encode(), "<\\u202e>evil<\\u2066><\\u200b><\\u2028>"),
        ("\x9b31m".encode(), "<\\x9b>31m"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(data: bytes, shown: str) -> None:
    assert visible(data, "<", ">") == shown


def test_nothing_that_is_shown_can_steer_a_terminal() -> None:
    everything = bytes(range(256)) + "".join(map(chr, range(0x80, 0x3000))).encode()
    assert visible(everything).replace("\t", "").isprintable()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colours_need_a_terminal_that_has_them_and_a_person_who_wants_them(
    environment: dict[str, str], wanted: bool
) -> None:
    assert wants_colours(environment) == wanted


def test_without_a_terminal_nobody_is_asked() -> None:
    told = subprocess.run(
        [sys.executable, "-c", OPEN],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    ).stdout
    assert told == "cannot ask: there is no terminal to ask on; do not ask\n"


def test_terminal_on_stdin_does_where_the_process_has_no_other() -> None:
    master, terminal = os.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", OPEN + 'else:\n    Terminal.open("ask").say("here")'],
            stdin=terminal,
            check=True,
            start_new_session=True,
        )
        assert os.read(master, 100) == b"here\r\n"
    finally:
        os.close(master)
        os.close(terminal)
