"""What is carried between a program and the files that it may not have itself?"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs.confine import relays
from sandboxfs.confine.relays import Relays


@contextmanager
def standard(number: int, descriptor: int) -> Iterator[None]:
    """Have *descriptor* as one of the standard ones."""
    kept = os.dup(number)
    os.dup2(descriptor, number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


@contextmanager
def writing_to(path: Path) -> Iterator[tuple[Relays, int]]:
    """Relays to the file at *path*, and what the program has as its standard output."""
    with open(path, "wb") as file, standard(1, file.fileno()):
        made = Relays()
        given = os.dup(made._given[1])
        made.started()
        yield made, given


def test_what_was_written_at_the_end_is_carried(tmp_path: Path) -> None:
    with writing_to(tmp_path / "output") as (made, given):
        os.write(given, b"x" * 60_000)
        os.close(given)
        whole = made.finish()
    assert whole
    assert (tmp_path / "output").read_bytes() == b"x" * 60_000


def test_whoever_holds_the_output_open_does_not_hold_the_run_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_PATIENCE", 0.2)
    with writing_to(tmp_path / "output") as (made, given):
        os.write(given, b"text")
        begun = time.monotonic()
        whole = made.finish()
        took = time.monotonic() - begun
        os.close(given)
    assert not whole
    assert took < 30
    assert (tmp_path / "output").read_bytes() == b"text"
