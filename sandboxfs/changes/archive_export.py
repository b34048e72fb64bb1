"""How is an archive written?

What was collected is measured first, so that the manifest at the front can say what follows; then everything
is written, the contents of files read once more. A file that is not what it was any more ends the writing:
whoever asked collects again and starts anew, or gives up.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

from sandboxfs.changes import archive_tar
from sandboxfs.changes.archive_collect import Collected
from sandboxfs.changes.archive_entry import Entry, Type, entry_line, sighting_line
from sandboxfs.changes.archive_fields import DIGEST_SIZE
from sandboxfs.changes.archive_manifest import (
    BASELINE,
    CHANGES,
    FILES,
    MANIFEST,
    SAVED,
    Manifest,
    Origin,
    Part,
    dump_manifest,
)
from sandboxfs.changes.archive_reading import Progress, chunks
from sandboxfs.changes.archive_stream import Sink
from sandboxfs.changes.layers import Layers
from sandboxfs.layers.baseline import Baseline, Sighting


class Changed(Exception):
    """The file at `path` is not what was collected."""

    def __init__(self, path: bytes) -> None:
        super().__init__()
        self.path = path


@dataclass(frozen=True)
class _Sections:
    """The generated members: each can be made as often as it is needed, and is the same every time."""

    changes: Callable[[], Iterator[bytes]]
    baseline: Callable[[], Iterator[bytes]]
    saved: Callable[[], Iterator[bytes]]


def write_archive(
    sink: Sink, origin: Origin, layers: Layers, found: Collected, progress: Progress = lambda _: None
) -> Manifest:
    """Write everything that was *found* in *layers*; return what the archive says of itself."""
    sections = _sections(found, layers.baseline)
    contents = [entry for entry in found.entries if entry.type is Type.FILE]
    manifest = Manifest(
        origin,
        changes=_measured(sections.changes()),
        baseline=_measured(sections.baseline()),
        saved=_measured(sections.saved()),
        files=len(contents),
        file_bytes=sum(entry.size for entry in contents),
    )
    text = dump_manifest(manifest)
    _member(sink, MANIFEST, len(text), [text])
    _member(sink, BASELINE, manifest.baseline.size, sections.baseline())
    _member(sink, SAVED, manifest.saved.size, sections.saved())
    _member(sink, CHANGES, manifest.changes.size, sections.changes())
    for entry in contents:
        _content(sink, layers, found, entry, progress)
    archive_tar.finish(sink)
    return manifest


def _sections(found: Collected, baseline: Baseline) -> _Sections:
    noted: list[Sighting] = []
    saved: list[Sighting] = []
    end = 0
    for sighting in found.sightings.values():
        content = baseline.content(sighting)
        if content is None:
            noted.append(replace(sighting, saved=None))
            continue
        noted.append(replace(sighting, saved=(end, len(content))))
        saved.append(sighting)
        end += len(content)
    return _Sections(
        lambda: map(entry_line, found.entries),
        lambda: map(sighting_line, noted),
        lambda: (baseline.content(sighting) or b"" for sighting in saved),
    )


def _measured(parts: Iterable[bytes]) -> Part:
    digest = blake2b(digest_size=DIGEST_SIZE)
    size = count = 0
    for part in parts:
        digest.update(part)
        size += len(part)
        count += 1
    return Part(size, count, digest.digest())


def _member(sink: Sink, name: bytes, size: int, parts: Iterable[bytes], mtime: int = 0) -> None:
    sink.write(archive_tar.header(name, size, mtime=mtime))
    for part in parts:
        sink.write(part)
    sink.write(archive_tar.padding(size))


def _content(sink: Sink, layers: Layers, found: Collected, entry: Entry, progress: Progress) -> None:
    """Write the content of a file, which must be what it was."""
    sink.write(archive_tar.header(FILES + entry.path, entry.size, entry.mode, entry.mtime_ns // 10**9))
    try:
        fd = found.open(layers, entry.path)
    except FileNotFoundError:
        raise Changed(entry.path) from None
    digest = blake2b(digest_size=DIGEST_SIZE)
    written = 0
    try:
        for chunk in chunks(fd, entry.size):
            digest.update(chunk)
            sink.write(chunk)
            written += len(chunk)
            progress(len(chunk))
    finally:
        os.close(fd)
    if written != entry.size or digest.digest() != entry.digest:
        raise Changed(entry.path)
    sink.write(archive_tar.padding(written))
