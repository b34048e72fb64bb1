"""What changes a revision and what does not: one step of the sandbox or the host at a time."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.review.revision import is_settled, revision, settled
from sandboxfs.review.scan import survey
from sandboxfs.review.scope import ScopedChanges
from tests.support.committed import Committed
from tests.support.tree import File, Tree

TREE: Tree = {
    ".gitignore": "*.log\n",
    "a": "1\n",
    "b": "1\n",
    "d/x": "1\n",
    "gone": "1\n",
    "locked": File("1\n", mode=0o644),
    "deep/er/file": "1\n",
}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Committed]:
    """A sandbox with a change of every kind."""
    made = Committed(tmp_path, TREE)
    made.write("a", b"2\n")
    made.chmod("b", 0o600)
    made.rename("d", "e")
    made.unlink("gone")
    made.mkdir("new")
    made.create("new/file", b"1\n")
    made.symlink("a", "link")
    made.create("one", b"1\n")
    made.link("one", "two")
    made.write("locked", b"2\n")
    made.chmod("locked", 0)
    yield made
    made.abandon()


def revision_of(sandbox: Committed, *paths: str, **more: object) -> str:
    with sandbox.layers() as layers:
        found = settled(lambda: sandbox.selected(survey(layers), paths, more))
        assert found is not None
        return revision(found)


def same_size_and_times(sandbox: Committed) -> None:
    before = sandbox.lstat("new/file")
    sandbox.write("new/file", b"2\n")
    sandbox.utime("new/file", before.st_atime_ns, before.st_mtime_ns)


def host_same_size_and_times(sandbox: Committed) -> None:
    path = sandbox.host / "a"
    before = path.stat()
    path.write_text("3\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def retarget(sandbox: Committed) -> None:
    sandbox.unlink("link")
    sandbox.symlink("b", "link")


def host_makes(sandbox: Committed) -> None:
    (sandbox.host / "new").mkdir()
    (sandbox.host / "new/file").write_text("host\n")


def change_locked(sandbox: Committed) -> None:
    sandbox.chmod("locked", 0o600)
    sandbox.write("locked", b"3\n")
    sandbox.chmod("locked", 0)


STEPS: dict[str, Callable[[Committed], object]] = {
    "content": lambda one: one.write("a", b"3\n"),
    "content of the same size and times": same_size_and_times,
    "mode": lambda one: one.chmod("a", 0o755),
    "mode of a directory": lambda one: one.chmod("new", 0o700),
    "attribute": lambda one: one.setxattr("a", "user.colour", b"red"),
    "attribute of a directory": lambda one: one.setxattr("new", "user.colour", b"red"),
    "addition": lambda one: one.create("new/other"),
    "deletion": lambda one: one.unlink("deep/er/file"),
    "rename": lambda one: one.rename("new/file", "new/file2"),
    "a change that is no more": lambda one: one.unlink("new/file"),
    "target": retarget,
    "a link more": lambda one: one.link("one", "three"),
    "locked content": change_locked,
    "the host's content": host_same_size_and_times,
    "the host's mode": lambda one: (one.host / "b").chmod(0o640),
    "what the host made": host_makes,
    "what the host deleted": lambda one: (one.host / "gone").unlink(),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_gives_another_revision(sandbox: Committed, step: str) -> None:
    before = revision_of(sandbox)
    STEPS[step](sandbox)
    sandbox.host_changed()
    assert revision_of(sandbox) != before


def again(sandbox: Committed) -> None:
    sandbox.stop()
    sandbox.start()


QUIET: dict[str, Callable[[Committed], object]] = {
    "reading": lambda one: [one.read(path) for path in ("a", "b", "new/file", "one")],
    "another mount": again,
    "an ignored file": lambda one: one.create("new/x.log"),
    "the host's other files": lambda one: (one.host / "deep/er/file").write_text("2\n"),
    "reading a patch": lambda one: one.patch(),
}


@pytest.mark.parametrize("step", QUIET)
def test_what_a_commit_does_not_take_leaves_the_revision_as_it_is(sandbox: Committed, step: str) -> None:
    before = revision_of(sandbox)
    QUIET[step](sandbox)
    sandbox.host_changed()
    assert revision_of(sandbox) == before


def test_a_revision_is_of_the_paths_and_options_asked_for(sandbox: Committed) -> None:
    of_a = revision_of(sandbox, "a")
    sandbox.create("x.log", b"1")
    sandbox.write("b", b"3\n")
    assert revision_of(sandbox, "a") == of_a
    assert len({of_a, revision_of(sandbox), revision_of(sandbox, ignored=True)}) == 3


def test_what_changed_within_the_tick_of_the_clock_is_not_settled(sandbox: Committed) -> None:
    with sandbox.layers() as layers:
        selection = sandbox.selected(survey(layers), ["a"])
        (finding,) = selection.taken
        assert finding.new is not None
        assert not is_settled(selection, finding.new.ctime_ns)
        assert is_settled(selection, finding.new.ctime_ns + 1)


def test_a_file_that_never_stands_still_has_no_revision(
    sandbox: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxfs.review.revision._PATIENCE", 0.05)
    with sandbox.layers() as layers:

        def look() -> ScopedChanges:
            sandbox.write("a", b"again\n")
            return sandbox.selected(survey(layers))

        assert settled(look) is None
