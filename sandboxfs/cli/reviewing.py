"""How does a verb look at what a sandbox did?

The layers are read from disk, mounted or not, and nothing is asked of the view or the daemon. Mountpoints in
the workspace are kept away from: their daemons may be hung.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.changes.finding import Finding
from sandboxfs.changes.layers import LayerPaths, Layers, masked_paths, open_layers
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.summary import Aside, Folded, fold, without_implied
from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store


@dataclass(frozen=True)
class Review:
    """What is to be shown: *findings* of *survey*; without *aside* nothing is folded.

    *root* is the workspace's path, and *renames* says whether renames are told as such.
    """

    survey: Survey
    findings: list[Finding]
    aside: Aside | None
    root: bytes
    renames: bool


def divided(review: Review) -> tuple[list[Finding], list[Folded]]:
    """Divide what is to be shown into what is shown one by one and what is folded."""
    findings = without_implied(review.findings)
    return (findings, []) if review.aside is None else fold(review.aside, findings, review.root)


def layer_paths(store: Store, record: SandboxRecord) -> LayerPaths:
    """Return where the layers of the sandbox of *record* are."""
    places = store.places(record.name)
    kept_away = [record.mountpoint, store.locations.state]
    kept_away += [mount.mountpoint for mount in MountTable.read().below(record.workspace) if mount.ours]
    masked = masked_paths(record.workspace, kept_away)
    return LayerPaths([record.workspace], places.upper, places.index, places.baseline, masked)


@contextmanager
def reviewed(store: Store, record: SandboxRecord) -> Iterator[Layers]:
    """Open the layers of the sandbox of *record*; what the host keeps from us is told as an error."""
    try:
        with open_layers(layer_paths(store, record)) as layers:
            yield layers
    except BrokenPipeError:
        raise
    except OSError as error:
        where = Path(os.fsdecode(error.filename)) if error.filename else record.workspace
        raise UsageError(
            f"cannot review sandbox '{record.name}': {error.strerror}: {quoted(where)}"
        ) from error


def last_commit(commits: Path) -> int:
    """Return when the last commit was recorded in *commits*, in nanoseconds; 0 when there was none."""
    try:
        numbers = sorted(
            (int(entry.name) for entry in commits.iterdir() if entry.name.isdecimal()), reverse=True
        )
    except FileNotFoundError:
        return 0
    for number in numbers:
        record = commits / str(number) / "record.json"
        try:
            about = json.loads(record.read_bytes())
            if isinstance(about, dict) and about.get("kind") == "commit":
                return record.stat().st_mtime_ns
        except (OSError, ValueError):
            # One that is being written, or never came to be.
            continue
    return 0
