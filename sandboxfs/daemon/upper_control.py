"""Upper control: edits of the upper while programs work in the view.

A person asked for the edits, so no policy is asked. The operations are done a few at a time, so that programs
hardly wait. Before the request is answered, the kernel drops its stale names, attributes and pages: a program
that looks afterwards sees the result of the edits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import trio

from sandboxfs.control.control_socket import ANSWER_LIMIT, Request
from sandboxfs.control.upper_client import VERB, no_record
from sandboxfs.daemon.control_peers import Peer, Turn
from sandboxfs.daemon.control_server import Handler
from sandboxfs.errors import UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.live_edits import Invalidation, LiveEdits
from sandboxfs.overlay.overlay import Overlay
from sandboxfs.upper.edits import EditOutcome, Operation, operation_from_json, outcome_to_json

# Operations between two checkpoints: they take some milliseconds.
_AT_ONCE = 32
# Bytes of names in one answer: in JSON a name takes at most six times its length and a little more.
_MOST_NAMES = ANSWER_LIMIT // 16
_MOST_OUTCOMES = 4096
# Seconds that one request waits for the one before: less than a command waits for its answer.
_PATIENCE = 50.0

Refresh = Callable[[Invalidation], None]


class UpperControl:
    """Edits the upper of one session."""

    def __init__(self, overlay: Overlay, guard: Guard, commits: Path, refresh: Refresh) -> None:
        """*refresh* makes the kernel ask again, and may wait."""
        self._overlay = overlay
        self._guard = guard
        self._commits = commits
        self._refresh = refresh
        self._editing = Turn(_PATIENCE)

    def handlers(self) -> dict[str, Handler]:
        return {VERB: self.edit}

    async def edit(self, request: Request, peer: Peer) -> object:
        record, operations = _record(request), _operations(request)
        if not operations:
            # A client that gets this answer may send operations next.
            return {"outcomes": []}
        async with self._editing.taken(request.verb, peer.pid):
            try:
                commits = HostDir.at(self._commits)
            except FileNotFoundError as error:
                raise no_record(record) from error
            with commits:
                live = self._overlay.upper_editor(commits)
                try:
                    outcomes = await self._edit(live, record, operations)
                finally:
                    live.close()
        return {"outcomes": [outcome_to_json(outcome) for outcome in outcomes]}

    async def _edit(self, live: LiveEdits, record: int, operations: Sequence[Operation]) -> list[EditOutcome]:
        outcomes: list[EditOutcome] = []
        outdated = Invalidation()
        written = live.written(operations)
        if written:
            # Stores through memory maps up to now must reach the files: an operation then finds them changed.
            # In a thread, here and below: the kernel may make the call wait for a request to this thread.
            await trio.to_thread.run_sync(self._refresh, Invalidation(inodes=set(written)))
        try:
            for part in _parts(operations):
                outcomes += [_told(outcome) for outcome in live.edit(record, part, outdated)]
                if _is_long(outcomes):
                    break
                await trio.lowlevel.checkpoint()
        except FileNotFoundError as error:
            raise no_record(record) from error
        finally:
            # A rule may ask whether the workspace has a file.
            self._guard.decide_anew()
        await trio.to_thread.run_sync(self._refresh, outdated)
        return outcomes


def _parts(operations: Sequence[Operation]) -> Iterator[Sequence[Operation]]:
    return (operations[start : start + _AT_ONCE] for start in range(0, len(operations), _AT_ONCE))


def _told(outcome: EditOutcome) -> EditOutcome:
    """An outcome that fits into an answer; the commit record has the names that are left out."""
    opened = outcome.opened
    if opened is None or sum(map(len, (*(opened.whiteouts or ()), *opened.closed))) <= _MOST_NAMES:
        return outcome
    return replace(outcome, opened=replace(opened, whiteouts=None, closed=()))


def _is_long(outcomes: list[EditOutcome]) -> bool:
    """Whether an answer is full; the client asks again for the rest."""
    names = [o.opened.whiteouts or () for o in outcomes if o.opened is not None]
    return len(outcomes) >= _MOST_OUTCOMES or sum(sum(map(len, some)) for some in names) > _MOST_NAMES


def _record(request: Request) -> int:
    record = request.args.get("record")
    if type(record) is not int or not 0 <= record < 1 << 63:
        raise UsageError(f"'{request.verb}' needs 'record', a number")
    return record


def _operations(request: Request) -> list[Operation]:
    described = request.args.get("operations")
    if not isinstance(described, list):
        raise UsageError(f"'{request.verb}' needs 'operations', a list")
    try:
        return [operation_from_json(one, f"operations[{n}]") for n, one in enumerate(described)]
    except ValueError as error:
        # The complaint of a path check has the path in its text, and needs no place in the request.
        raise UsageError(f"malformed operation: {error.__cause__ or error}") from error
