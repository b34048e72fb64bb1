"""What is left when a commit, an undo or a discard is killed, or fails, at any moment?

The process dies before each single call that changes the host, in turn; then somebody recovers. Everything is
as it was, or as it was to be, and the next attempt starts from there.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxfs.commit.apply import apply_plan, discard, plan_discard
from sandboxfs.commit.finish import ReviewTarget, recover
from sandboxfs.commit.plan import OnConflict, Options, plan_commit
from sandboxfs.commit.undo import plan_undo, undo
from sandboxfs.errors import SandboxError
from sandboxfs.hostfs import syscalls
from sandboxfs.hostfs.identity import ConcurrentChange
from sandboxfs.review import change
from sandboxfs.review.scan import survey
from tests.support.committed import Committed
from tests.support.every_change import changed
from tests.support.faults import Killed, failing_at, killed_before
from tests.support.reviewed import States, view_states
from tests.support.tree import Snapshot, assert_same_tree, capture

# More calls than any of them makes.
FOREVER = 10_000


class Trial:
    """A sandbox at rest, and what is tried with it."""

    def __init__(self, sandbox: Committed) -> None:
        self.sandbox = sandbox

    def merge(self, site: ReviewTarget) -> None:
        with self.sandbox.layers() as layers:
            apply_plan(
                site,
                plan_commit(self.sandbox.selected(survey(layers)), Options(on_conflict=OnConflict.MERGE)),
            )

    def undo(self, site: ReviewTarget) -> None:
        number = next(record.number for record in site.records.each() if record.stands)
        record = site.records.open(number)
        assert record is not None
        with record:
            plan = plan_undo(site, record)
            assert not plan.left
            undo(site, plan)

    def do(self, action: Callable[[ReviewTarget], None]) -> None:
        with self.sandbox.site() as site:
            action(site)

    def recover(self) -> None:
        with self.sandbox.site() as site:
            recover(site)

    def look(self) -> States:
        self.sandbox.start()
        try:
            return view_states(self.sandbox)
        finally:
            self.sandbox.stop()


class Ordeal(Trial):
    """One with every kind of change, and what it must look like before and after."""

    def __init__(self, sandbox: Committed) -> None:
        super().__init__(sandbox)
        self.view = self.look()
        self.before = capture(sandbox.host)
        self.changes = sandbox.found()
        sandbox.stop()
        self.do(self.commit)
        self.after = capture(sandbox.host)
        self.do(self.undo)

    # What is tried

    def commit(self, site: ReviewTarget) -> None:
        with self.sandbox.layers() as layers:
            plan = plan_commit(self.sandbox.selected(survey(layers)), Options())
            assert not plan.is_blocked, plan.conflicts
            apply_plan(site, plan)

    def discard(self, site: ReviewTarget) -> None:
        with self.sandbox.layers() as layers:
            discard(site, plan_discard(survey(layers), ()))

    # What must be true

    def is_committed(self) -> bool:
        """The workspace is wholly as it was, or wholly as it was to be, with nothing temporary; say which."""
        found = capture(self.sandbox.host)
        assert not [path for path in found if b".sandboxfs" in path]
        if found[b"edited"].digest == self.before[b"edited"].digest:
            assert_same_tree(found, self.before, ignoring=frozenset({"ctime_ns"}))
            return False
        # A killed process may leave other times on directories of the sandbox, which a commit takes over.
        assert_same_tree(timeless(found), timeless(self.after), ignoring=frozenset({"ctime_ns"}))
        return True


def timeless(found: Snapshot) -> Snapshot:
    return {
        path: replace(state, mtime_ns=0) if state.kind == "directory" else state
        for path, state in found.items()
    }


@pytest.fixture
def ordeal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ordeal]:
    # What is killed is the process, not the machine.
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(syscalls, "start_writing", lambda fd: None)
    umask = os.umask(0)
    sandbox = changed(tmp_path)
    sandbox.stop()
    try:
        yield Ordeal(sandbox)
    finally:
        sandbox.abandon()
        os.umask(umask)


def test_a_commit_that_is_killed_anywhere_is_taken_back_or_finished(ordeal: Ordeal) -> None:
    ended = set()
    for number in range(FOREVER):
        with killed_before(number) as made, suppress(Killed):
            ordeal.do(ordeal.commit)
        ordeal.recover()
        committed = ordeal.is_committed()
        ended.add(committed)
        assert ordeal.sandbox.found() == ([] if committed else ordeal.changes), made[-5:]
        if committed:
            assert ordeal.look() == ordeal.view
            ordeal.do(ordeal.undo)
            assert not ordeal.is_committed()
        if len(made) < number:
            break
    assert ended == {True, False}


def test_an_undo_that_is_killed_anywhere_is_taken_back_or_finished(ordeal: Ordeal) -> None:
    ended = set()
    ordeal.do(ordeal.commit)
    for number in range(FOREVER):
        with killed_before(number) as made, suppress(Killed):
            ordeal.do(ordeal.undo)
        ordeal.recover()
        committed = ordeal.is_committed()
        ended.add(committed)
        assert ordeal.sandbox.found() == ([] if committed else ordeal.changes), made[-5:]
        if not committed:
            assert ordeal.look() == ordeal.view
        if len(made) < number:
            break
        if not committed:
            ordeal.do(ordeal.commit)
    assert ended == {True, False}


def test_a_merge_that_is_killed_anywhere_marks_all_or_nothing_and_can_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    sandbox = Committed(tmp_path, {"text": "one\ntwo\n", "other": "other\n"})
    sandbox.write("text", b"box\ntwo\n")
    sandbox.write("other", b"changed\n")
    (sandbox.host / "text").write_text("host\ntwo\n")
    sandbox.host_changed()
    sandbox.stop()
    trial = Trial(sandbox)
    start = trial.look()
    for attempt in ("commit", "undo"):
        ended = set()
        for number in range(FOREVER):
            if attempt == "undo":
                trial.do(trial.merge)
            with killed_before(number) as made, suppress(Killed):
                trial.do(trial.merge if attempt == "commit" else trial.undo)
            trial.recover()
            committed = (sandbox.host / "other").read_text() == "changed\n"
            ended.add(committed)
            assert (sandbox.host / "text").read_text() == "host\ntwo\n"
            found = trial.look()
            if committed:
                assert b"<<<<<<< sandbox" in found[b"text"].content
                assert sandbox.conflicts() == {"text": change.UNRESOLVED}
                trial.do(trial.undo)
                found = trial.look()
            assert found == start, made[-5:]
            assert sandbox.conflicts() == {"text": change.CHANGED}
            if len(made) < number:
                break
        assert ended == {True, False}
    sandbox.abandon()


def test_a_discard_that_is_killed_anywhere_is_finished_and_can_be_undone(ordeal: Ordeal) -> None:
    found = ordeal.sandbox.found
    for number in range(FOREVER):
        with killed_before(number) as made, suppress(Killed):
            ordeal.do(ordeal.discard)
        ordeal.recover()
        assert not ordeal.is_committed()
        if found() == ordeal.changes:
            # It had not begun.
            assert ordeal.look() == ordeal.view
            continue
        assert found() == [], made[-5:]
        if len(made) < number:
            break
        ordeal.do(ordeal.undo)
        assert ordeal.look() == ordeal.view
        assert found() == ordeal.changes
    assert ordeal.look() != ordeal.view


def test_a_commit_in_which_a_call_fails_is_taken_back_or_can_be_finished(ordeal: Ordeal) -> None:
    # Some of the calls: dying at all of them says the most already.
    for number in range(0, FOREVER, 7):
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with failing_at(number, error) as made, suppress(OSError, ConcurrentChange, SandboxError):
            ordeal.do(ordeal.commit)
        ordeal.recover()
        if ordeal.is_committed():
            ordeal.do(ordeal.undo)
            assert not ordeal.is_committed()
        if len(made) < number:
            break
