"""Depth costs a host directory neither descriptors nor the interpreter's stack."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.hostfs.directory import HostDir

NAME = b"n" * 255
LEVELS = 2000


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[HostDir]:
    """A directory with a chain of directories that begins at `top`, and few descriptors to spare."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with HostDir.at(tmp_path) as place:
        place.mkdir(b"top", 0o700)
        here = place.child(b"top")
        for level in range(LEVELS):
            here.mkdir(NAME, 0o700)
            if level % 100 == 0:
                os.close(here.open(b"file", os.O_CREAT | os.O_WRONLY, 0o600))
            here = here.child(NAME)
        here.chmod_own(0o500)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        try:
            yield place
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            place.remove_tree(b"top")


def test_a_long_path_is_opened_step_by_step(deep: HostDir) -> None:
    with deep.descend(b"/".join([b"top", *[NAME] * LEVELS])) as bottom:
        assert bottom.is_empty()


def test_a_deep_tree_is_removed(deep: HostDir) -> None:
    deep.remove_tree(b"top")
    assert deep.names() == []
