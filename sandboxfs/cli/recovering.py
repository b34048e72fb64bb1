"""How does a verb that removes something first bring to its end what was interrupted?

The record of an interrupted commit is all that leads the workspace out of the middle: it must not go before
everything is taken back or finished.
"""

from sandboxfs.changes.records import Records
from sandboxfs.cli.bench import bench
from sandboxfs.control.sandboxes import Sandbox
from sandboxfs.errors import SandboxBusy, SandboxError, UsageError
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.paths import quoted
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.store import Store


def interrupted(places: SandboxPlaces) -> str | None:
    """Name the commit, discard or undo that is not over; `UsageError` when its record cannot be read."""
    try:
        with HostDir.at(places.home) as home:
            record = Records(home).unfinished()
    except OSError as error:
        raise UsageError(f"cannot read {quoted(places.commits)}: {error.strerror}") from error
    if record is None:
        return None
    with record:
        return f"{record.about.kind} {record.number}"


def bring_to_end(store: Store, sandbox: Sandbox) -> None:
    """Finish or take back what was interrupted, and say so; raise where that is impossible."""
    what = interrupted(store.places(sandbox.name))
    if what is None:
        return
    try:
        with bench(store, sandbox):
            pass
    except SandboxBusy:
        raise
    except SandboxError as error:
        message = f"{what} of sandbox '{sandbox.name}' was interrupted and cannot be brought to its end"
        raise UsageError(f"{message}: {error.message}") from error
