"""Is nothing of a covered place in the view, and do the directories above it keep their names?"""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.core_driver import CoreDriver
from tests.support.syscalls import RENAME_EXCHANGE
from tests.support.tree import Tree, build

COVERED = "above/between/covered"


@pytest.fixture
def sandbox(tmp_path: Path) -> CoreDriver:
    tree: Tree = {f"{COVERED}/secret": "secret\n", "above/file": "text\n", "other/file": "text\n"}
    return CoreDriver(tmp_path / "sandbox", build(tmp_path / "workspace", tree), covered=(COVERED,))


def test_a_covered_place_is_an_empty_directory_that_cannot_be_filled(sandbox: CoreDriver) -> None:
    assert sandbox.names("above/between") == [b"covered"]
    assert sandbox.names(COVERED) == []
    assert not sandbox.exists(f"{COVERED}/secret")
    for attempt in (sandbox.create, sandbox.mkdir):
        with pytest.raises(OSError, match="busy") as refused:
            attempt(f"{COVERED}/new")
        assert refused.value.errno == errno.EBUSY
    sandbox.stop()
    assert list((sandbox.upper).rglob("covered")) == []


@pytest.mark.parametrize("name", ["above", "above/between", COVERED])
@pytest.mark.parametrize(
    "attempt",
    [
        lambda sandbox, name: sandbox.rename(name, "elsewhere"),
        lambda sandbox, name: sandbox.rename(name, "other", RENAME_EXCHANGE),
        lambda sandbox, name: sandbox.rename("other", name, RENAME_EXCHANGE),
        lambda sandbox, name: sandbox.rmdir(name),
    ],
    ids=["rename", "exchange", "exchange back", "rmdir"],
)
def test_no_directory_down_to_a_covered_place_loses_its_name(
    sandbox: CoreDriver, name: str, attempt: Callable[[CoreDriver, str], None]
) -> None:
    with pytest.raises(OSError, match="busy") as refused:
        attempt(sandbox, name)
    assert refused.value.errno == errno.EBUSY
    assert sandbox.fs.misplaced(COVERED.encode()) is None
    sandbox.stop()


def test_what_is_beside_a_covered_place_is_changed_as_ever(sandbox: CoreDriver) -> None:
    sandbox.rename("above/file", "above/between/file")
    sandbox.mkdir("above/between/new")
    sandbox.rename("above/between/new", "new")
    assert sorted(sandbox.names("above/between")) == [b"covered", b"file"]
    assert sandbox.fs.misplaced(COVERED.encode()) is None
    sandbox.stop()


def test_a_covered_directory_is_empty_wherever_the_host_moves_it(sandbox: CoreDriver) -> None:
    (sandbox.lower / COVERED).rename(sandbox.lower / "other/moved")
    assert sandbox.names("other/moved") == []
    assert not sandbox.exists("other/moved/secret")
    # Its name stays what it was: something may be mounted there.
    assert sandbox.names(COVERED) == []
    (sandbox.lower / "other/moved").rename(sandbox.lower / COVERED)
    (sandbox.lower / "above").rename(sandbox.lower / "gone")
    assert sandbox.names("gone/between/covered") == []
    (sandbox.lower / "gone").rename(sandbox.lower / "above")
    sandbox.stop()


def test_what_the_upper_has_in_a_covered_place_does_not_show(sandbox: CoreDriver) -> None:
    sandbox.stop()
    sandbox.covered = []
    sandbox.start()
    sandbox.write(f"{COVERED}/secret", b"changed")
    sandbox.stop()
    sandbox.covered = [sandbox.lower / COVERED]
    sandbox.start()
    assert sandbox.names(COVERED) == []
    assert sandbox.fs.misplaced(COVERED.encode()) is None
    sandbox.stop()


@pytest.mark.parametrize(
    "replace",
    [
        lambda sandbox: sandbox.rename("above/between", "moved"),
        lambda sandbox: (sandbox.remove_tree("above/between"), sandbox.mkdir("above/between")),
        lambda sandbox: (sandbox.remove_tree("above/between"), sandbox.symlink("/", "above/between")),
        lambda sandbox: sandbox.remove_tree("above/between"),
    ],
    ids=["moved", "replaced", "a link", "removed"],
)
def test_what_the_upper_has_in_the_way_of_a_covered_place_is_named(
    sandbox: CoreDriver, replace: Callable[[CoreDriver], object]
) -> None:
    sandbox.stop()
    sandbox.covered = []
    sandbox.start()
    replace(sandbox)
    assert sandbox.fs.misplaced(COVERED.encode()) == b"above"
    sandbox.stop()
    sandbox.covered = [sandbox.lower / COVERED]
    sandbox.start()
    assert sandbox.fs.misplaced(COVERED.encode()) == b"above/between"
    sandbox.stop()
