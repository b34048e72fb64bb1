"""Upper client: edits of an upper that may be in use, through its daemon or directly.

While a daemon serves the sandbox, the daemon alone changes the upper, and a command asks the daemon;
otherwise the holder of the sandbox's lock edits the upper directly. Operations are values of `upper.edits`,
done in order. Each has an outcome, and a command that was interrupted asks for all operations again.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sandboxfs.control.control_socket import REQUEST_LIMIT, ControlAddress, ask
from sandboxfs.errors import DaemonLost, UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.probe import device_whiteouts
from sandboxfs.paths import make_directories
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.upper.baseline_log import BaselineWriter
from sandboxfs.upper.edits import EditOutcome, Operation, Rehide, operation_to_json, outcome_from_json
from sandboxfs.upper.marks import Index, Staging, Whiteouts
from sandboxfs.upper.unmounted import UnmountedUpper, numbering
from sandboxfs.upper.writer import UpperWriter

VERB = "settle"
# The limit of a request, less some room for the other members of its object.
_BATCH = REQUEST_LIMIT - 4096
# A batch takes a fraction of a second, but programs in the view may keep the daemon busy.
_PATIENCE = 60.0


class DaemonUpperClient:
    """Edits the upper through the daemon at *address*."""

    def __init__(self, address: ControlAddress, timeout: float = _PATIENCE) -> None:
        self._address = address
        self._timeout = timeout

    def check(self) -> None:
        """Raise unless the daemon answers and would carry out edits; from inside the view it refuses them."""
        ask(self._address, VERB, {"record": 0, "operations": []}, self._timeout)

    def edit(self, record: int, operations: Sequence[Operation]) -> list[EditOutcome]:
        """Have all operations done; `DaemonLost` when the daemon dies meanwhile: some of them may be done."""
        outcomes: list[EditOutcome] = []
        described = [operation_to_json(_fitting(operation)) for operation in operations]
        while len(outcomes) < len(described):
            batch = next(_batches(described[len(outcomes) :]))
            args = {"record": record, "operations": batch}
            answer = ask(self._address, VERB, args, self._timeout)
            # The daemon may stop before the end of a batch, so that the answer does not get too long.
            outcomes += _outcomes(answer, len(batch))
        return outcomes


class DirectUpperClient:
    """Edits the upper of a sandbox whose lock this process holds, and which no daemon serves."""

    def __init__(self, places: SandboxPlaces, workspace: Path) -> None:
        self._places = places
        self._workspace = workspace

    def edit(self, record: int, operations: Sequence[Operation]) -> list[EditOutcome]:
        places = self._places
        # A sandbox that an earlier version of sandboxfs made has no baseline directory.
        make_directories(places.baseline)
        with ExitStack() as opened:
            staging = Staging(opened.enter_context(HostDir.at(places.work)))
            # Entries left by a killed daemon must not collide with new names in the work directory.
            staging.clear()
            workspace = opened.enter_context(HostDir.at(self._workspace))
            baseline = BaselineWriter(opened.enter_context(HostDir.at(places.baseline)))
            opened.callback(baseline.close)
            tree = UnmountedUpper(
                upper=opened.enter_context(HostDir.at(places.upper)),
                workspace=workspace,
                staging=staging,
                index=Index(opened.enter_context(HostDir.at(places.index)), staging),
                whiteouts=Whiteouts(devices=device_whiteouts(places.work)),
                baseline=baseline,
                lower_number=numbering(workspace),
            )
            editor = UpperWriter(tree, opened.enter_context(HostDir.at(places.commits)))
            opened.callback(editor.close)
            try:
                editor.use(record)
            except FileNotFoundError as error:
                raise no_record(record) from error
            return [editor.edit(operation) for operation in operations]


def no_record(record: int) -> UsageError:
    return UsageError(f"there is no record {record} to keep anything in")


def _fitting(operation: Operation) -> Operation:
    """An operation that fits into a request: the commit record has the names that are left out."""
    if isinstance(operation, Rehide) and _length(operation_to_json(operation)) > _BATCH:
        return replace(operation, whiteouts=None, closed=())
    return operation


def _length(described: dict[str, object]) -> int:
    # The JSON as in a request, and a comma.
    return len(json.dumps(described, separators=(",", ":"))) + 1


def _batches(described: Sequence[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    """Cut operations into batches that fit into a request."""
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


def _outcomes(answer: object, asked: int) -> list[EditOutcome]:
    found = answer.get("outcomes") if isinstance(answer, dict) else None
    if not isinstance(found, list) or not 0 < len(found) <= asked:
        raise DaemonLost("the daemon's answer makes no sense")
    try:
        return [outcome_from_json(outcome) for outcome in found]
    except ValueError as error:
        raise DaemonLost(f"the daemon's answer makes no sense: {error}") from error
