"""The mounts that the attacker works in: one with rules of the test's own, or a part of one with rules for
names that any test can use.

In the shared mount `hidden*` is hidden, `denied*` denied, `fixed*` read-only and `vanish/` a hidden
directory. In a directory called `vault`, `secret` is hidden, `closed` denied and `key` read-only: rules that
moving the vault could escape.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.support import conditions
from tests.support.guarded import GuardedMount, MakeArea, SharedGuardedMount
from tests.support.mounted import Area, package_found, serving
from tests.support.tree import Tree, build

RULES = (
    "hidden*=hide",
    "denied*=deny",
    "fixed*=ro",
    "vanish/=hide",
    "**/vault/secret=hide",
    "**/vault/closed=deny",
    "**/vault/key=ro",
)


class Guarded(Protocol):
    def __call__(self, tree: Tree, *rules: str, options: tuple[str, ...] = ()) -> GuardedMount: ...


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Mounts a view of a workspace built from a tree under a policy, once in a test."""
    with ExitStack() as stack:

        def made(tree: Tree, *rules: str, options: tuple[str, ...] = ()) -> GuardedMount:
            workspace = build(tmp_path / "workspace", tree)
            return stack.enter_context(serving(GuardedMount(tmp_path, workspace, *rules, options=options)))

        yield made


@pytest.fixture(scope="module")
def shared_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedGuardedMount]:
    conditions.require_fuse()
    with package_found(), serving(SharedGuardedMount(tmp_path_factory.mktemp("shared"), *RULES)) as mount:
        yield mount


@pytest.fixture
def area(shared_mount: SharedGuardedMount, request: pytest.FixtureRequest) -> Iterator[MakeArea]:
    """Makes a directory of the test's own in the shared mount, once in a test."""
    made: list[Area] = []

    def make(tree: Tree) -> Area:
        # Numbered, because names of tests may differ in slashes and dots alone.
        name = re.sub(r"\W+", "-", request.node.name) + f"-{len(shared_mount.areas)}"
        made.append(Area(shared_mount, name, tree))
        return made[-1]

    yield make
    for one in made:
        one.check_unchanged()
