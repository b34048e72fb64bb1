"""Writing an archive: the manifest, the listings, then the contents of files.

The collected entries are measured first, so that the manifest at the front can announce all sizes; then
everything is written, with the contents of files read a second time. A file that has changed since the
collection ends the writing: the caller collects again and starts anew, or gives up.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

from sandboxfs.archive import tar
from sandboxfs.archive.collect import Collected, Progress, chunks
from sandboxfs.archive.format import (
    BASELINE,
    CHANGES,
    DIGEST_SIZE,
    FILES,
    MANIFEST,
    SAVED,
    ArchiveEntry,
    EntryType,
    Manifest,
    MemberInfo,
    Origin,
    baseline_line,
    dump_manifest,
    entry_line,
)
from sandboxfs.archive.tar import ArchiveSink
from sandboxfs.upper.baseline import Baseline, BaselineEntry
from sandboxfs.upper.sandbox_layers import Layers


class Changed(Exception):
    """The file at `path` has changed since the collection."""

    def __init__(self, path: bytes) -> None:
        super().__init__()
        self.path = path


@dataclass(frozen=True)
class _Sections:
    """The generated members: each can be generated any number of times, always with the same bytes."""

    changes: Callable[[], Iterator[bytes]]
    baseline: Callable[[], Iterator[bytes]]
    saved: Callable[[], Iterator[bytes]]


def write_archive(
    sink: ArchiveSink, origin: Origin, layers: Layers, found: Collected, progress: Progress = lambda _: None
) -> Manifest:
    """Write the entries *found* in *layers*; return the manifest of the archive."""
    sections = _sections(found, layers.baseline)
    contents = [entry for entry in found.entries if entry.type is EntryType.FILE]
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
    tar.finish(sink)
    return manifest


def _sections(found: Collected, baseline: Baseline) -> _Sections:
    noted: list[BaselineEntry] = []
    saved: list[BaselineEntry] = []
    end = 0
    for baseline_entry in found.baseline_entries.values():
        content = baseline.content(baseline_entry)
        if content is None:
            noted.append(replace(baseline_entry, saved=None))
            continue
        noted.append(replace(baseline_entry, saved=(end, len(content))))
        saved.append(baseline_entry)
        end += len(content)
    return _Sections(
        lambda: map(entry_line, found.entries),
        lambda: map(baseline_line, noted),
        lambda: (baseline.content(baseline_entry) or b"" for baseline_entry in saved),
    )


def _measured(parts: Iterable[bytes]) -> MemberInfo:
    digest = blake2b(digest_size=DIGEST_SIZE)
    size = count = 0
    for part in parts:
        digest.update(part)
        size += len(part)
        count += 1
    return MemberInfo(size, count, digest.digest())


def _member(sink: ArchiveSink, name: bytes, size: int, parts: Iterable[bytes], mtime: int = 0) -> None:
    sink.write(tar.header(name, size, mtime=mtime))
    for part in parts:
        sink.write(part)
    sink.write(tar.padding(size))


def _content(
    sink: ArchiveSink, layers: Layers, found: Collected, entry: ArchiveEntry, progress: Progress
) -> None:
    """Write the content of a file, which must be that of the collection."""
    sink.write(tar.header(FILES + entry.path, entry.size, entry.mode, entry.mtime_ns // 10**9))
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
    sink.write(tar.padding(written))
