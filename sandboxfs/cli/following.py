"""Which place must a rule name to be about the path that a person means?

A program that goes through a symlink is judged where the link leads, so links on the way are followed here,
as the view has them. What is listed as changed is named by its own name instead: see `places`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxfs.changes.layers import masked_paths
from sandboxfs.changes.tree import Tree
from sandboxfs.changes.ways import Ways
from sandboxfs.control.mounts import mounts_below
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store


def followed(store: Store, record: SandboxRecord, place: str) -> tuple[str, bool]:
    """Return where *place* leads in the view of *record*, and whether a directory is shown there.

    What cannot be looked at stands for itself.
    """
    upper = store.places(record.name).upper
    try:
        with _ways(store, upper, record.workspace, record.mountpoint) as ways:
            found = ways.followed(os.fsencode(place))
            return os.fsdecode(found), ways.is_directory(found)
    except OSError:
        return place, False


def followed_before(store: Store, workspace: Path, previous: SandboxRecord | None, place: str) -> str:
    """Return where *place* will lead in a view of *workspace*, which shows what *previous* has."""
    if previous is not None:
        return followed(store, previous, place)[0]
    try:
        with _ways(store, None, workspace, None) as ways:
            return os.fsdecode(ways.followed(os.fsencode(place)))
    except OSError:
        return place


@contextmanager
def _ways(store: Store, upper: Path | None, workspace: Path, mountpoint: Path | None) -> Iterator[Ways]:
    tops = [workspace] if mountpoint is None else [mountpoint, workspace]
    kept_away = [store.locations.state, *tops]
    kept_away += [mount.mountpoint for mount in mounts_below(workspace) if mount.ours]
    lower = Tree(HostDir.at(workspace))
    try:
        above = None if upper is None else Tree(HostDir.at(upper), ours=True)
        try:
            yield Ways(above, lower, masked_paths(workspace, kept_away), [os.fsencode(top) for top in tops])
        finally:
            if above is not None:
                above.close()
    finally:
        lower.close()
