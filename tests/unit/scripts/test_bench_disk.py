"""Is measured on a filesystem of its own where there can be one, and is nothing left of it?"""

import os
from pathlib import Path

import pytest

from scripts.benches.disk import new_filesystem


def attached_below(place: Path) -> list[str]:
    """The files below a place that are attached to a device."""
    found = [file.read_text().strip() for file in Path("/sys/block").glob("loop*/loop/backing_file")]
    return [name for name in found if name.startswith(str(place))]


def test_who_is_not_root_measures_where_he_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with new_filesystem(tmp_path) as inside:
        assert inside == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_the_tools_measures_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with new_filesystem(tmp_path) as inside:
        assert inside == tmp_path


def measure_until_interrupted(place: Path) -> None:
    with new_filesystem(place) as inside:
        (inside / "file").write_text("measured")
        assert inside.is_mount() == bool(attached_below(place))
        raise KeyboardInterrupt


def test_nothing_is_left_of_a_filesystem_that_was_measured_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure_until_interrupted(tmp_path)
    assert not (tmp_path / "disk").is_mount()
    assert attached_below(tmp_path) == []
