"""What does a run get that joins a sandbox which is served already?

The world of the run before it: the same views, under the policy that they were mounted with, and the same
files beside them. What it asks for besides is given when that needs no other policy and no further daemon,
else refused: nothing that was asked for is left out silently.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sandboxfs.cli.resolving import outside_allows
from sandboxfs.cli.roots import check_workspace, sort_out
from sandboxfs.cli.run_request import UNCHANGED, RunRequest
from sandboxfs.cli.views import View, join_view
from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.config import Allow
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store


def join(
    store: Store, name: str, request: RunRequest, home: Path, undo: ExitStack
) -> tuple[list[View], tuple[Path, ...]] | None:
    """Join the views of the sandbox called *name*, with the files shown beside; None when it is not served.

    *undo* lets go of them. Raises `UsageError` for what cannot be had while it is served.
    """
    first = join_view(store, name)
    if first is None:
        return None
    undo.callback(first.let_go)
    request.check_log(first.record)
    outside = _beside_the_policy(first.record, request)
    check_workspace(first.record.workspace, home, request.home)
    views = [first]
    for companion in filter(store.exists, first.record.companions):
        view = join_view(store, companion)
        if view is not None:
            undo.callback(view.let_go)
            request.check_log(view.record)
            views.append(view)
    beside = sort_out(outside, first.record.workspace, home, request.home)
    for root in beside.roots:
        _check_served(name, views[1:], root.path, root.mode.value)
    if beside.home is not None:
        _check_served(name, views[1:], beside.home, None)
    # Those of the run before may be gone since.
    known = [path for path in first.record.readable if path.exists()]
    return views, tuple(dict.fromkeys((*known, *beside.files)))


def _beside_the_policy(record: SandboxRecord, request: RunRequest) -> list[Allow]:
    """The places outside the workspace that *request* allows; refuse whatever would change the policy."""
    if request.workspace is not None and not _is(request.workspace, record.workspace):
        raise UsageError(
            f"name '{record.name}' is in use by a sandbox of {quoted(record.workspace)}",
            hint="leave out --workspace",
        )
    allows = request.policy.allows
    if replace(request.policy, allows=()) != UNCHANGED or request.config is not None:
        raise _its_policy(record.name)
    outside = outside_allows(allows, record.workspace, record.mountpoint)
    if len(outside) != len(allows):
        raise _its_policy(record.name)
    return outside


def _is(given: str, workspace: Path) -> bool:
    try:
        return MountTable.read().resolve(given) == workspace
    except (OSError, ValueError):
        return False


def _its_policy(name: str) -> UsageError:
    return UsageError(
        f"sandbox '{name}' is mounted already: its policy is that of its mount",
        hint="leave out the options about policy, or unmount it first",
    )


def _check_served(name: str, companions: Sequence[View], path: Path, mode: str | None) -> None:
    """Refuse a directory that is not served beside the sandbox already, in this *mode* unless it is None."""
    for view in companions:
        if view.record.workspace == path:
            if mode in (None, view.record.mode):
                return
            raise UsageError(
                f"sandbox '{name}' is mounted already, with {quoted(path)} as '{view.record.mode}'",
                hint="leave the mode as it is, or unmount it first",
            )
    raise UsageError(
        f"sandbox '{name}' is mounted already, without {quoted(path)}",
        hint="a directory is served from the first run on: unmount the sandbox first, or use another one",
    )
