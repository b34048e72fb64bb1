"""Does a daemon notice, and only then, that nobody holds its lifeline?"""

import os
from pathlib import Path

from sandboxfs.state.lock import hold_lifeline, is_ending, make_lifeline, nobody_holds, remove_lifeline


def test_a_lifeline_is_held_until_the_last_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lifeline"
    reading, first = make_lifeline(path)
    second = hold_lifeline(path)
    assert second is not None
    os.close(first)
    assert not nobody_holds(reading, path)
    os.close(second)
    assert nobody_holds(reading, path)
    os.close(reading)


def test_nobody_takes_hold_once_it_is_settled_that_nobody_holds(tmp_path: Path) -> None:
    path = tmp_path / "lifeline"
    reading, held = make_lifeline(path)
    os.close(held)
    assert nobody_holds(reading, path)
    assert is_ending(path)
    assert hold_lifeline(path) is None
    remove_lifeline(path)
    assert not is_ending(path)
    os.close(reading)


def test_one_who_comes_at_the_last_moment_keeps_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "lifeline"
    reading, first = make_lifeline(path)
    os.close(first)
    late = hold_lifeline(path)
    assert late is not None
    assert not nobody_holds(reading, path)
    assert not is_ending(path)
    again = hold_lifeline(path)
    assert again is not None
    for descriptor in (reading, late, again):
        os.close(descriptor)


def test_what_a_dead_daemon_left_cannot_be_held(tmp_path: Path) -> None:
    path = tmp_path / "lifeline"
    reading, held = make_lifeline(path)
    os.close(held)
    os.close(reading)
    assert hold_lifeline(path) is None
    assert hold_lifeline(tmp_path / "none") is None
    reading, held = make_lifeline(path)
    os.close(held)
    os.close(reading)
