"""How does a command change the upper of a sandbox that may be in use?

While a daemon serves the sandbox, it alone changes the upper, and is asked; otherwise whoever holds the
sandbox's lock does the same by itself. Operations are values of `layers.settlement`, done in order; each has
an outcome, and a command that is interrupted asks for all of them again.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sandboxfs.control.address import ControlAddress
from sandboxfs.control.client import ask
from sandboxfs.control.messages import REQUEST_LIMIT
from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.layers.baseline_writer import BaselineWriter
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.index import Index
from sandboxfs.layers.marks import Whiteouts
from sandboxfs.layers.probe import device_whiteouts
from sandboxfs.layers.settlement import Close, Operation, Outcome
from sandboxfs.layers.settlement_json import operation_to_json, outcome_from_json
from sandboxfs.layers.settling import Settling
from sandboxfs.layers.staging import Staging
from sandboxfs.layers.uppertree import UpperTree, numbering
from sandboxfs.paths import make_directories
from sandboxfs.state.locations import SandboxPlaces

VERB = "settle"
# A request has a frame of its own; the daemon refuses what is larger, so there is some room.
_BATCH = REQUEST_LIMIT - 4096
# A batch takes a fraction of a second, but programs in the view may keep the daemon busy.
_PATIENCE = 60.0


class Settler(Protocol):
    """Changes an upper on behalf of the record with a number, whose directory `upper/` must exist."""

    def settle(self, record: int, operations: Sequence[Operation]) -> list[Outcome]: ...


class DaemonSettler:
    """Asks the daemon at *address*."""

    def __init__(self, address: ControlAddress, timeout: float = _PATIENCE) -> None:
        self._address = address
        self._timeout = timeout

    def check(self) -> None:
        """Raise unless the daemon answers, and would do what it is asked; not from inside the view."""
        ask(self._address, VERB, {"record": 0, "operations": []}, self._timeout)

    def settle(self, record: int, operations: Sequence[Operation]) -> list[Outcome]:
        """Have all operations done; `DaemonLost` when it dies in the middle: some of them may be done."""
        outcomes: list[Outcome] = []
        described = [operation_to_json(_fitting(operation)) for operation in operations]
        while len(outcomes) < len(described):
            batch = next(_batches(described[len(outcomes) :]))
            args = {"record": record, "operations": batch}
            answer = ask(self._address, VERB, args, self._timeout)
            # It may stop before the end, so that the answer does not get too long.
            outcomes += _outcomes(answer, len(batch))
        return outcomes


class DirectSettler:
    """Settles a sandbox whose lock this process holds, and which nobody serves."""

    def __init__(self, places: SandboxPlaces, workspace: Path) -> None:
        self._places = places
        self._workspace = workspace

    def settle(self, record: int, operations: Sequence[Operation]) -> list[Outcome]:
        places = self._places
        # A sandbox that an earlier version made has none.
        make_directories(places.baseline)
        with ExitStack() as opened:
            staging = Staging(opened.enter_context(HostDir.at(places.work)))
            # What a killed daemon left behind must not stand in the way of our own names.
            staging.clear()
            workspace = opened.enter_context(HostDir.at(self._workspace))
            baseline = BaselineWriter(opened.enter_context(HostDir.at(places.baseline)))
            opened.callback(baseline.close)
            tree = UpperTree(
                upper=opened.enter_context(HostDir.at(places.upper)),
                workspace=workspace,
                staging=staging,
                index=Index(opened.enter_context(HostDir.at(places.index)), staging),
                whiteouts=Whiteouts(devices=device_whiteouts(places.work)),
                baseline=baseline,
                lower_number=numbering(workspace),
            )
            settling = Settling(tree, opened.enter_context(HostDir.at(places.commits)))
            opened.callback(settling.close)
            try:
                settling.use(record)
            except FileNotFoundError as error:
                raise no_record(record) from error
            return [settling.settle(operation) for operation in operations]


def no_record(record: int) -> UsageError:
    return UsageError(f"there is no record {record} to keep anything in")


def _fitting(operation: Operation) -> Operation:
    """An operation that fits into a request: the record has the names that this one leaves out."""
    if isinstance(operation, Close) and _length(operation_to_json(operation)) > _BATCH:
        return replace(operation, whiteouts=None, closed=())
    return operation


def _length(described: dict[str, object]) -> int:
    # As a request writes it, and a comma.
    return len(json.dumps(described, separators=(",", ":"))) + 1


def _batches(described: Sequence[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    """Cut operations into requests that a daemon takes."""
    batch: list[dict[str, object]] = []
    size = 0
    for operation in described:
        length = _length(operation)
        if batch and size + length > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(operation)
        size += length
    if batch:
        yield batch


def _outcomes(answer: object, asked: int) -> list[Outcome]:
    found = answer.get("outcomes") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not 0 < len(found) <= asked:
        raise DaemonLost("the daemon's answer makes no sense")
    try:
        return [outcome_from_json(outcome) for outcome in found]
    except ValueError as error:
        raise DaemonLost(f"the daemon's answer makes no sense: {error}") from error
