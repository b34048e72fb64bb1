"""Progress is shown to a person who waits, and to nobody else."""

import io

from sandboxfs.cli.terminal import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_takes_less_than_a_second_shows_nothing() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("writing", terminal, clock) as progress:
        clock.now = 0.9
        progress.advance(10)
    assert terminal.getvalue() == ""


def test_what_takes_longer_shows_how_far_it_is_and_clears_the_line() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("reading", terminal, clock) as progress:
        progress.phase("writing", 4096)
        clock.now = 1.0
        progress.advance(1024)
    assert terminal.getvalue() == "\r\x1b[Kwriting: 1.0 KiB of 4.0 KiB (25 %)\r\x1b[K"


def test_without_a_total_the_amount_is_shown() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("reading", terminal, clock) as progress:
        clock.now = 2.0
        progress.advance(2048)
    assert "reading: 2.0 KiB" in terminal.getvalue()


def test_the_line_is_not_written_for_every_byte() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("reading", terminal, clock) as progress:
        clock.now = 2.0
        for _ in range(1000):
            progress.advance(1)
    assert terminal.getvalue().count("reading") == 1


def test_a_file_gets_no_progress() -> None:
    plain, clock = io.StringIO(), Clock()
    with Progress("reading", plain, clock) as progress:
        clock.now = 5.0
        progress.advance(1)
    assert plain.getvalue() == ""
