"""How does a file of the upper get another content, all at once?

The new one is written where the record keeps things and is then exchanged with the old one, which the record
keeps instead.
"""

import stat
import time
from dataclasses import replace

from sandboxfs.changes.finding import Finding
from sandboxfs.changes.records import Record
from sandboxfs.changes.scan import Survey
from sandboxfs.changes.steps import parted
from sandboxfs.layers.durable import Syncer
from sandboxfs.layers.replica import attributes_at, of_the_host, write_file
from sandboxfs.layers.settlement import Identity, Operation, Put


def replacement(
    survey: Survey, record: Record, finding: Finding, content: bytes, name: bytes, mode: int | None = None
) -> list[Operation]:
    """Write *content* to *name* in *record*, and say how it comes into the upper in place of what is there.

    Everything else about the file stays, but for *mode*, if given.
    """
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
        write_file(content, attributes, kept, name, syncer)
    expected = Identity(side.ino, side.size, side.mtime_ns, side.ctime_ns)
    return [Put(finding.path, name, expected)]
