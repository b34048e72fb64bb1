"""Which directories may have the set-group-id bit after a commit?"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.committed import Committed
from tests.support.tree import Directory, Tree

Make = Callable[[Tree], Committed]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Committed] = []
    umask = os.umask(0)

    def sandbox(tree: Tree) -> Committed:
        made.append(Committed(tmp_path / str(len(made)), tree))
        return made[-1]

    yield sandbox
    for one in made:
        one.abandon()
    os.umask(umask)


def refused(sandbox: Committed, *paths: str, **options: object) -> list[tuple[bytes, str]]:
    return [(finding.path, why) for finding, why in sandbox.plan(*paths, **options).refusals]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("bits", "why"), [(0o2755, "setgid"), (0o4755, "setuid")])
def test_a_directory_that_gains_one_is_refused_unless_allowed(make: Make, bits: int, why: str) -> None:
    sandbox = make({"a/": ""})
    sandbox.chmod("a", bits)
    assert refused(sandbox) == [(b"a", why)]
    sandbox.commit(allow_special=True)
    assert mode(sandbox.host / "a") == bits


def test_a_new_directory_with_one_is_refused(make: Make) -> None:
    sandbox = make({})
    sandbox.mkdir("a")
    sandbox.chmod("a", 0o2755)
    sandbox.mkdir("a/b")
    assert (b"a", "setgid") in refused(sandbox)


def test_a_directory_in_place_of_a_file_with_one_is_refused(make: Make) -> None:
    sandbox = make({"a": "a"})
    (sandbox.host / "a").chmod(0o2755)
    sandbox.host_changed()
    sandbox.unlink("a")
    sandbox.mkdir("a")
    sandbox.chmod("a", 0o2755)
    assert refused(sandbox) == [(b"a", "setgid")]


def test_one_that_was_there_is_no_change(make: Make) -> None:
    sandbox = make({"shared/": Directory(mode=0o2775), "shared/d/": Directory(mode=0o2775)})
    sandbox.chmod("shared", 0o2755)
    sandbox.rename("shared/d", "d")
    assert refused(sandbox) == []
    sandbox.commit()
    assert mode(sandbox.host / "shared") == 0o2755
    assert mode(sandbox.host / "d") == 0o2775


def test_what_the_directory_around_gives_is_nobodys_doing(make: Make) -> None:
    sandbox = make({"shared/": Directory(mode=0o2775), "shared/old/": ""})
    sandbox.mkdir("shared/new")
    sandbox.mkdir("shared/new/er")
    sandbox.write("shared/new/er/file", b"new")
    assert sandbox.lstat("shared/new/er").st_mode & stat.S_ISGID
    assert refused(sandbox) == []
    sandbox.commit()
    assert mode(sandbox.host / "shared/new/er") & stat.S_ISGID
    # An existing one has it from nobody.
    sandbox.chmod("shared/old", 0o2755)
    assert refused(sandbox) == [(b"shared/old", "setgid")]


def test_what_a_directory_gives_counts_also_where_that_was_renamed(make: Make) -> None:
    sandbox = make({"shared/": Directory(mode=0o2775), "shared/file": "1"})
    sandbox.rename("shared", "moved")
    sandbox.mkdir("moved/new")
    assert refused(sandbox) == []
    sandbox.commit()
    assert mode(sandbox.host / "moved/new") & stat.S_ISGID


def test_a_directory_around_that_stays_behind_gives_nothing(make: Make) -> None:
    sandbox = make({"a/": ""})
    sandbox.chmod("a", 0o2755)
    sandbox.mkdir("a/new")
    assert refused(sandbox, "a/new") == [(b"a/new", "setgid")]
