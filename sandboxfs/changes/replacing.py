"""How does a file of the upper get another content, all at once?

The new one is written where the record keeps things and is then exchanged with the old one, which the record
keeps instead.
"""

import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sandboxfs.changes.choosing import Part
from sandboxfs.changes.finding import Finding
from sandboxfs.changes.journal_json import identity_out
from sandboxfs.changes.records import Record
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.steps import Identity as Seen
from sandboxfs.changes.steps import parted
from sandboxfs.layers.baseline_copy import write_alone
from sandboxfs.layers.durable import Syncer
from sandboxfs.layers.replica import attributes_at, of_the_host, write_file
from sandboxfs.layers.settlement import Identity, Operation, Put

# Behind the name of a text: what its file had started from.
SEEN = b".seen"


@dataclass(frozen=True)
class Rewrite:
    """Another *content* for what the sandbox has of *finding*; everything else stays, but for a *mode*."""

    finding: Finding
    content: bytes
    mode: int | None = None


def replacement(survey: Survey, record: Record, rewrite: Rewrite, name: bytes) -> list[Operation]:
    """Write a text to *name* in *record*, and say how it comes into the upper in place of what is there."""
    finding, mode = rewrite.finding, rewrite.mode
    upper = survey.view.layers.upper
    status, side = upper.stat(finding.path), finding.new
    if status is None or side is None:
        return []
    folder, at = parted(finding.path)
    attributes = attributes_at(upper.directory(folder), at, status, of_the_host)
    now = time.time_ns()
    bits = attributes.mode if mode is None else stat.S_IFREG | mode
    attributes = replace(attributes, mode=bits, atime_ns=now, mtime_ns=now)
    with record.folder(b"upper") as kept, Syncer() as syncer:
        write_file(rewrite.content, attributes, kept, name, syncer)
    expected = Identity(side.ino, side.size, side.mtime_ns, side.ctime_ns)
    return [Put(finding.path, name, expected)]


def replaced_parts(record: Record, operations: Iterable[Operation]) -> dict[str, object]:
    """Note the texts that come into the upper, by where the record has them now: an undo looks for them."""
    found: dict[str, object] = {}
    with record.folder(b"upper") as kept:
        for operation in operations:
            status = kept.stat(operation.keep) if isinstance(operation, Put) else None
            if isinstance(operation, Put) and status is not None:
                found[os.fsdecode(operation.keep)] = identity_out(Seen.of(status))
    return found


def keep_start(survey: Survey, record: Record, finding: Finding, name: bytes) -> bool:
    """Keep what the sandbox started from at *finding* under *name* and `SEEN`, as `Resume` reads it.

    False when that is not known.
    """
    baseline = survey.view.layers.baseline
    seen = baseline.get(finding.lower_path)
    if seen is None:
        return False
    with record.folder(b"upper") as kept:
        write_alone(kept, name + SEEN, seen, baseline.content(seen))
    return True


def merged_mode(finding: Finding) -> int | None:
    """The mode of what is merged, where that is the workspace's: the sandbox did not change it."""
    old, new, lower = finding.old, finding.new, finding.lower
    if old is None or new is None or lower is None or not lower.is_file or old.mode != new.mode:
        return None
    return stat.S_IMODE(lower.mode)


def without_mode(finding: Finding, part: Part) -> int | None:
    """The mode that a file has without *part* of its change, where that is another."""
    return stat.S_IMODE(finding.old.mode) if part.mode and finding.old is not None else None
