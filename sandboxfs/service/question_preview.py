"""Preview of a question: the head of the file that a program wants, read beside the mount.

The layers are read and not the view, which would ask the reader as well. The file is found as the view shows
it, without following a link, and may be another by the time that the program has its answer: what is granted
is decided then, by name. Only a person's convenience; no failure is told but as a missing preview.
"""

import os
import stat
from dataclasses import dataclass

from sandboxfs.control.mount_table import mounts_below
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.tree import DirTree, Unreadable
from sandboxfs.service.questions import QuestionSession, WaitingQuestion
from sandboxfs.upper.sandbox_layers import masked_paths
from sandboxfs.upper.walk import shown_at

_HEAD = 1024


@dataclass(frozen=True)
class FileHead:
    """The first bytes of a file, and the *size* of the whole."""

    head: bytes
    size: int


def file_head(session: QuestionSession, question: WaitingQuestion) -> FileHead | None:
    """Return the head of the file that *question* is about; None where it cannot be read, or is none."""
    if question.mode is not None:
        return None
    record = session.record
    places = session.store.places(record.name)
    try:
        upper = DirTree(HostDir.at(places.upper), ours=True)
        try:
            lower = DirTree(HostDir.at(record.workspace))
            try:
                return _head(upper, lower, _masked(session), os.fsencode(question.path))
            finally:
                lower.close()
        finally:
            upper.close()
    except (OSError, Unreadable, ValueError):
        return None


def _masked(session: QuestionSession) -> frozenset[bytes]:
    """The paths of the workspace whose daemon might be waited for, or that are nobody's to see."""
    workspace = session.record.workspace
    kept_away = [session.store.locations.state, session.record.mountpoint]
    kept_away += [mount.mountpoint for mount in mounts_below(workspace) if mount.ours]
    return masked_paths(workspace, kept_away)


def _head(upper: DirTree, lower: DirTree, masked: frozenset[bytes], path: bytes) -> FileHead | None:
    found = shown_at(upper, lower, masked, path)
    if found is None or not stat.S_ISREG(found[2].st_mode):
        return None
    layer, place, _ = found
    fd = layer.open(place)
    try:
        status = os.fstat(fd)
        # Another object may have come there meanwhile.
        return FileHead(os.read(fd, _HEAD), status.st_size) if stat.S_ISREG(status.st_mode) else None
    finally:
        os.close(fd)
