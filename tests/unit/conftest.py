"""Sandboxes whose changes are looked at, each ended properly."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.reviewed import Reviewed
from tests.support.tree import Tree

Review = Callable[[Tree], Reviewed]


@pytest.fixture
def review(tmp_path: Path) -> Iterator[Review]:
    """Make a sandbox over a tree; what it did is found, whatever it was."""
    made: list[Reviewed] = []

    def make(tree: Tree) -> Reviewed:
        made.append(Reviewed(tmp_path / str(len(made)), tree))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.abandon()
