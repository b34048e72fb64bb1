"""How does a review change the upper while programs work in the view? The control verb `settle`.

A person asked, so no policy is asked. The operations are done a few at a time, so that programs hardly wait.
What the kernel may still show of how things were is made to be asked for again before the request is
answered: whoever looks then sees what was settled.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import trio

from sandboxfs.control.messages import ANSWER_LIMIT, Request
from sandboxfs.control.settling import VERB, no_record
from sandboxfs.daemon.control_peers import Peer
from sandboxfs.daemon.control_server import Handler
from sandboxfs.errors import UsageError
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.settlement import Operation, Outcome
from sandboxfs.layers.settlement_json import operation_from_json, outcome_to_json
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.overlay import Overlay
from sandboxfs.overlay.renewal import Outdated
from sandboxfs.overlay.settling import LiveSettling

# So many operations take some milliseconds.
_AT_ONCE = 32
# Of names, in bytes: written as JSON, one takes six times its length and some more at most.
_MOST_NAMES = ANSWER_LIMIT // 16
_MOST_OUTCOMES = 4096

Refresh = Callable[[Outdated], None]


class Settlements:
    """Settles the upper of one session."""

    def __init__(self, overlay: Overlay, guard: Guard, commits: Path, refresh: Refresh) -> None:
        """*refresh* makes the kernel ask again, and may wait."""
        self._overlay = overlay
        self._guard = guard
        self._commits = commits
        self._refresh = refresh
        self._settling = trio.Lock()

    def handlers(self) -> dict[str, Handler]:
        return {VERB: self.settle}

    async def settle(self, request: Request, peer: Peer) -> object:
        record, operations = _record(request), _operations(request)
        if not operations:
            # Whoever gets this answer may ask for more.
            return {"outcomes": []}
        async with self._settling:
            try:
                commits = HostDir.at(self._commits)
            except FileNotFoundError as error:
                raise no_record(record) from error
            with commits:
                live = self._overlay.settling(commits)
                try:
                    outcomes = await self._settle(live, record, operations)
                finally:
                    live.close()
        return {"outcomes": [outcome_to_json(outcome) for outcome in outcomes]}

    async def _settle(
        self, live: LiveSettling, record: int, operations: Sequence[Operation]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        outdated = Outdated()
        written = live.written(operations)
        if written:
            # What was written through memory maps until now belongs to what is settled: it is not as expected
            # then. In a thread, here and below: the kernel may make it wait for a request to this one.
            await trio.to_thread.run_sync(self._refresh, Outdated(inodes=set(written)))
        try:
            for part in _parts(operations):
                outcomes += [_told(outcome) for outcome in live.settle(record, part, outdated)]
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


def _told(outcome: Outcome) -> Outcome:
    """An outcome that fits into an answer; the record has what it leaves out."""
    opened = outcome.opened
    if opened is None or sum(map(len, (*(opened.whiteouts or ()), *opened.closed))) <= _MOST_NAMES:
        return outcome
    return replace(outcome, opened=replace(opened, whiteouts=None, closed=()))


def _is_long(outcomes: list[Outcome]) -> bool:
    """Whether an answer has enough in it; the client asks again for the rest."""
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
        return [operation_from_json(operation) for operation in described]
    except ValueError as error:
        raise UsageError(f"malformed operation: {error}") from error
