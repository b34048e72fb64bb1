"""What is carried between a program and the files that it may not have itself?"""

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs.confine import stdio
from sandboxfs.confine.stdio import StreamRelays


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
def writing_to(path: Path) -> Iterator[tuple[StreamRelays, int]]:
    """Relays to the file at *path*, and what the program has as its standard output."""
    with open(path, "wb") as file, standard(1, file.fileno()):
        made = StreamRelays()
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
    monkeypatch.setattr(stdio, "_PATIENCE", 0.2)
    with writing_to(tmp_path / "output") as (made, given):
        os.write(given, b"text")
        begun = time.monotonic()
        whole = made.finish()
        took = time.monotonic() - begun
        os.close(given)
    assert not whole
    assert took < 30
    assert (tmp_path / "output").read_bytes() == b"text"


@pytest.mark.parametrize(("size", "read"), [(12, 0), (12, 5), (12, 12), (1_000_000, 0), (1_000_000, 70_000)])
def test_what_is_left_of_a_file_is_left_for_the_next_reader(tmp_path: Path, size: int, read: int) -> None:
    text = os.urandom(size)
    (tmp_path / "input").write_bytes(b"before" + text)
    with open(tmp_path / "input", "rb", buffering=0) as file, standard(0, file.fileno()):
        file.seek(len(b"before"))
        made = StreamRelays()
        given = os.dup(made._given[0])
        made.started()
        taken = b""
        while len(taken) < read:
            _carry(made)
            taken += os.read(given, read - len(taken))
        _carry(made)
        os.close(given)
        assert made.finish()
        assert taken + file.read() == text


def _carry(made: StreamRelays) -> None:
    """Carry as much as there is room for."""
    poll = select.poll()
    made.register(poll)
    while ready := poll.poll(0):
        for descriptor, _ in ready:
            made.attend(descriptor, poll)


def test_a_file_that_somebody_else_reads_too_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"text")
    with open(tmp_path / "input", "rb", buffering=0) as file, standard(0, file.fileno()):
        made = StreamRelays()
        made.started()
        _carry(made)
        file.seek(1)
        made.finish()
        assert file.tell() == 1
