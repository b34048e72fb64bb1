"""The mount that real tools work in."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.mount_driver import MountDriver
from tests.support.mounted import serving
from tests.support.tree import Tree, build


class Mount(Protocol):
    def __call__(self, tree: Tree) -> MountDriver: ...


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a view of a workspace built from a tree, once in a test."""
    with ExitStack() as stack:

        def made(tree: Tree) -> MountDriver:
            return stack.enter_context(serving(MountDriver(tmp_path, build(tmp_path / "workspace", tree))))

        yield made
