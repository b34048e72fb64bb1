"""How does an archive become the upper and the baseline of a sandbox?

Nothing in an archive is believed. The manifest says how much follows, and nothing may be more, less or else;
every name is made in a directory that the archive itself made before, through descriptors that follow no
symlink. The caller makes the directories that are filled here, and takes them away when anything is raised.
"""

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from sandboxfs.changes.archive_adapt import Adapter
from sandboxfs.changes.archive_entry import Entry, Type, parse_entry, parse_sighting
from sandboxfs.changes.archive_fields import DIGEST_SIZE
from sandboxfs.changes.archive_manifest import (
    BASELINE,
    CHANGES,
    FILES,
    LONGEST,
    MANIFEST,
    SAVED,
    Part,
    parse_manifest,
)
from sandboxfs.changes.archive_stream import BadArchive, Source
from sandboxfs.changes.archive_tar import Member, Members
from sandboxfs.changes.archive_unpack import Unpacker
from sandboxfs.layers.baseline import Sighting
from sandboxfs.layers.baseline_copy import write_log, write_pack
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.paths import quoted

_LONGEST_LINE = 8 << 20
# What the headers of a member take, its name left aside, and the end of a tar that another program repacked.
_OVERHEAD = 2560


@dataclass
class Report:
    """What was unpacked; *special* are paths with rights that a commit hands over only when told to."""

    entries: int = 0
    special: list[bytes] = field(default_factory=list)


class Archive:
    """An archive that is being read: its manifest at once, the rest when it is unpacked."""

    def __init__(self, source: Source, *, limit: int) -> None:
        """Read the manifest; what it announces may be *limit* bytes at most."""
        self._members = Members(source)
        member = self._next(MANIFEST)
        if member.size > LONGEST:
            raise BadArchive("its manifest is too long")
        self.manifest = parse_manifest(b"".join(self._chunks()))
        if self.manifest.size > limit:
            raise BadArchive(
                f"it holds {self.manifest.size} bytes, more than the {limit} that are allowed",
                hint="allow more with --max-size",
            )
        source.allow(self.manifest.size + self.manifest.changes.size + _OVERHEAD * (self.manifest.files + 8))

    def unpack(
        self, unpacker: Unpacker, baseline: HostDir, adapter: Adapter, progress: Callable[[int], None]
    ) -> Report:
        """Fill an empty upper and a *baseline* without a log."""
        report = Report()
        contents: list[Entry] = []
        write_log(baseline, map(adapter.sighting, self._sightings()))
        write_pack(baseline, self._saved())
        for line in self._lines(CHANGES, self.manifest.changes):
            entry = adapter.entry(parse_entry(line))
            unpacker.make(entry)
            report.entries += 1
            if entry.type is Type.FILE:
                contents.append(entry)
            if _is_special(entry):
                report.special.append(entry.path)
        unpacker.check_root()
        self._contents(contents, unpacker, progress)
        unpacker.finish()
        return report

    def _sightings(self) -> Iterator[Sighting]:
        seen: set[bytes] = set()
        end = count = 0
        for line in self._lines(BASELINE, self.manifest.baseline):
            sighting = parse_sighting(line)
            start, length = sighting.saved or (end, 0)
            if sighting.path in seen or start != end or (length and sighting.digest is None):
                raise BadArchive(f"what it says of {quoted(sighting.path)} makes no sense")
            seen.add(sighting.path)
            end += length
            count += sighting.saved is not None
            yield sighting
        if (end, count) != (self.manifest.saved.size, self.manifest.saved.count):
            raise BadArchive("it holds less, or more, than it says")

    def _saved(self) -> Iterator[bytes]:
        self._expect(SAVED, self.manifest.saved.size)
        wrong = "it is damaged: what it saved of the workspace is not what it was"
        return self._checked(self.manifest.saved.digest, wrong)

    def _contents(self, entries: list[Entry], unpacker: Unpacker, progress: Callable[[int], None]) -> None:
        announced = self.manifest.files, self.manifest.file_bytes
        if (len(entries), sum(entry.size for entry in entries)) != announced:
            raise BadArchive("it holds less, or more, than it says")
        for entry in entries:
            self._expect(FILES + entry.path, entry.size)
            wrong = f"it is damaged: {quoted(entry.path)} is not what it was"
            unpacker.fill(entry, self._checked(entry.digest, wrong))
            progress(entry.size)
        if (more := self._members.next()) is not None:
            raise BadArchive(f"it has the unexpected member {quoted(more.name)}")

    # Members

    def _next(self, name: bytes) -> Member:
        member = self._members.next()
        if member is None:
            raise BadArchive("it ends too early")
        if member.name != name:
            raise BadArchive(f"it has the member {quoted(member.name)} where {quoted(name)} belongs")
        return member

    def _expect(self, name: bytes, size: int) -> None:
        if self._next(name).size != size:
            raise BadArchive(f"its member {quoted(name)} is not as large as it says")

    def _chunks(self) -> Iterator[bytes]:
        while chunk := self._members.read():
            yield chunk

    def _checked(self, digest: bytes, wrong: str) -> Iterator[bytes]:
        """The chunks of a member whose digest must be *digest*."""
        found = blake2b(digest_size=DIGEST_SIZE)
        for chunk in self._chunks():
            found.update(chunk)
            yield chunk
        if found.digest() != digest:
            raise BadArchive(wrong)

    def _lines(self, name: bytes, part: Part) -> Iterator[bytes]:
        """The lines of a member, whose number and digest are checked at the end."""
        self._expect(name, part.size)
        wrong = f"it is damaged: {quoted(name)} is not what it was"
        count = 0
        rest = b""
        for chunk in self._checked(part.digest, wrong):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise BadArchive("one of its lines is too long")
            count += len(lines)
            yield from lines
        if rest or count != part.count:
            raise BadArchive(wrong)


def _is_special(entry: Entry) -> bool:
    if entry.type is Type.FILE and entry.mode & (stat.S_ISUID | stat.S_ISGID):
        return True
    return any(name == b"security.capability" for name, _ in entry.xattrs)
