"""Is the audit log what was once written, from its first record to its last?

Every line must vouch for the one before it. What this cannot tell: that whole files at the old end are gone
(which is what rotation does), that lines at the new end were cut off, and that somebody who may write the
files has written the whole chain anew. Keep the head somewhere else to see those.
"""

from dataclasses import dataclass
from pathlib import Path

from sandboxfs.state.audit_reader import Line, read_lines
from sandboxfs.state.audit_record import digest, genesis, parse_line, undamaged


@dataclass(frozen=True)
class Broken:
    """The first line that is not what it should be; *seq* is the number that belongs there, if known."""

    file: str
    line: int
    seq: int | None
    problem: str

    def __str__(self) -> str:
        seq = "" if self.seq is None else f" (seq {self.seq})"
        return f"{self.file}:{self.line}{seq}: {self.problem}"


@dataclass(frozen=True)
class Verdict:
    """How far the chain holds: *records* of it, numbered from *first* to *last*; *head* sums them up."""

    records: int
    first: int | None
    last: int | None
    head: str
    broken: Broken | None

    def as_json(self) -> dict[str, object]:
        broken = self.broken
        return {
            "whole": broken is None,
            "records": self.records,
            "first": self.first,
            "last": self.last,
            "head": self.head,
            "broken": None
            if broken is None
            else {"file": broken.file, "line": broken.line, "seq": broken.seq, "problem": broken.problem},
        }


def verify(path: Path, name: str) -> Verdict:
    """Check the log at *path* of the sandbox called *name* over all files that are kept."""
    records, first, last, head = 0, None, None, genesis(name)
    for line in read_lines(path):
        seq, problem = _check(line, last, head)
        if problem is not None:
            expected = seq if last is None else last + 1
            return Verdict(records, first, last, head, Broken(line.file, line.number, expected, problem))
        records, last, head = records + 1, seq, digest(line.text)
        first = seq if first is None else first
    return Verdict(records, first, last, head, None)


def _check(line: Line, last: int | None, head: str) -> tuple[int | None, str | None]:
    """Return the number of *line*, and what is wrong with it after the record *last* with the hash *head*."""
    record = parse_line(line.text)
    seq = record["seq"] if record is not None else None
    if record is None or not isinstance(seq, int):
        return None, "not a record" if line.whole else "the last line is not whole"
    if not line.whole:
        return seq, "the last line is not whole"
    if not undamaged(line.text):
        return seq, "the record was changed"
    if last is None and seq != 1:
        # Older files may have been dropped, but a file never begins in the middle.
        return seq, None if record.get("event") == "rotated" else "the records before it are missing"
    expected = (last or 0) + 1
    if seq > expected:
        missing = seq - expected
        return seq, f"seq {seq} is here instead: {missing} record{'s are' if missing > 1 else ' is'} missing"
    if seq < expected:
        return seq, f"seq {seq} is here instead: records are repeated or out of order"
    if record["prev"] != head:
        return seq, "it was not written after the record before it, one of the two was replaced"
    return seq, None
