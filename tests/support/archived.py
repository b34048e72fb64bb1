"""Archives to be made, taken apart, tampered with and unpacked.

`Parts` is an archive in pieces that a test can change; packed again, its manifest tells what is in it, so
that only what the test changed is wrong.
"""

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from sandboxfs.archive.collect import Changing, collect_archive
from sandboxfs.archive.format import Manifest, Origin
from sandboxfs.archive.read import Archive, HostMapping, Report, Unpacker
from sandboxfs.archive.tar import ArchiveSink, ArchiveSource
from sandboxfs.archive.write import write_archive
from sandboxfs.cli.main import main
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.tree import DirTree
from sandboxfs.review.change import PathChange
from sandboxfs.review.scan import scan
from sandboxfs.state.store import PolicySettings, dump_settings
from sandboxfs.upper.marks import Index, Staging, Whiteouts
from sandboxfs.upper.sandbox_layers import LayerPaths, open_layers
from tests.support.core_driver import CoreDriver
from tests.support.reviewed import in_short

LIMIT = 1 << 30
Json = dict[str, object]


def origin(owner: tuple[int, int] = (0, 0)) -> Origin:
    policy = dump_settings(PolicySettings())["policy"]
    assert isinstance(policy, dict)
    time = datetime(2026, 1, 2, tzinfo=UTC)
    return Origin("app", b"/srv/app", time, time, "0.1.0", owner, policy)


def exported(paths: LayerPaths, *, gzip: bool = False, take_changing: bool = False) -> bytes:
    """The archive of the changes in the layers at *paths*."""
    out = io.BytesIO()
    with open_layers(paths) as layers:
        found = collect_archive(layers, Changing(take_changing))
        write_archive(ArchiveSink(out.write, gzip=gzip), origin(), layers, found)
        found.close()
    return out.getvalue()


def copied(workspace: Path, place: Path) -> Path:
    """A copy of a workspace in which no device, inode number or change time is the same."""
    subprocess.run(["cp", "-a", workspace, place], check=True)
    return place


class Imported(CoreDriver):
    """What becomes of an archive over the copy of a workspace; started, it shows its view."""

    def __init__(self, place: Path, archive: bytes, workspace: Path, *, devices: bool = True) -> None:
        super().__init__(place, workspace)
        self.stop()
        for name in os.listdir(self.baseline):
            os.unlink(self.baseline / name)
        self.report = self._unpack(archive, devices)

    def _unpack(self, archive: bytes, devices: bool) -> Report:
        with (
            HostDir.at(self.upper) as upper,
            HostDir.at(self.index) as index,
            HostDir.at(self.work) as work,
            HostDir.at(self.baseline) as baseline,
            HostDir.at(self.lower) as copy,
        ):
            unpacker = Unpacker(upper, Index(index, Staging(work)), Whiteouts(devices=devices))
            opened = Archive(ArchiveSource(io.BytesIO(archive)), limit=LIMIT)
            try:
                adapter = HostMapping(DirTree(copy).stat, (0, 0), may_give_away=os.geteuid() == 0)
                return opened.unpack(unpacker, baseline, adapter, lambda _: None)
            finally:
                unpacker.close()

    @property
    def paths(self) -> LayerPaths:
        return LayerPaths([self.lower], self.upper, self.index, self.baseline)

    def findings(self) -> list[PathChange]:
        with open_layers(self.paths) as layers:
            return scan(layers)

    def found(self) -> list[str]:
        """What a scan finds, in short."""
        return [in_short(finding) for finding in self.findings()]


def manifest_of(archive: bytes) -> Manifest:
    return Archive(ArchiveSource(io.BytesIO(archive)), limit=LIMIT).manifest


@dataclass
class Parts:
    """An archive in pieces."""

    manifest: Json
    changes: list[Json]
    baseline: list[Json]
    saved: bytes
    files: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, archive: bytes) -> "Parts":
        with tarfile.open(fileobj=io.BytesIO(archive), errors="surrogateescape") as tar:
            members = {member.name: _content(tar, member) for member in tar}
        return cls(
            json.loads(members.pop("manifest.json")),
            [json.loads(line) for line in members.pop("changes.jsonl").splitlines()],
            [json.loads(line) for line in members.pop("baseline.jsonl").splitlines()],
            members.pop("saved.bin"),
            {name.removeprefix("files/"): content for name, content in members.items()},
        )

    def entry(self, path: str) -> Json:
        return next(entry for entry in self.changes if entry["path"] == path)

    def sections(self) -> dict[str, bytes]:
        """Every member, with a manifest that is true."""
        changes, baseline = _lines(self.changes), _lines(self.baseline)
        self.manifest |= {
            "changes": _part(changes, len(self.changes)),
            "baseline": _part(baseline, len(self.baseline)),
            "saved": _part(self.saved, sum("saved" in seen for seen in self.baseline)),
            "files": {"count": len(self.files), "size": sum(map(len, self.files.values()))},
        }
        return {
            "manifest.json": json.dumps(self.manifest).encode(),
            "baseline.jsonl": baseline,
            "saved.bin": self.saved,
            "changes.jsonl": changes,
            **{f"files/{name}": content for name, content in self.files.items()},
        }

    def packed(self, change: Callable[[dict[str, bytes]], None] = lambda _: None) -> bytes:
        """The archive again, after *change* of its members."""
        sections = self.sections()
        change(sections)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in sections.items():
                add(tar, tarfile.TarInfo(name), content)
        return out.getvalue()


def add(tar: tarfile.TarFile, member: tarfile.TarInfo, content: bytes = b"") -> None:
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def _part(content: bytes, count: int) -> Json:
    return {"size": len(content), "count": count, "digest": digest(content)}


def _lines(values: list[Json]) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


# Archives made by hand

HONEST_POLICY: Json = {
    "mode": "rw",
    "enabled": True,
    "symlinks": "guard",
    "source": {"kind": "workspace"},
    "rule": [],
}


def directory(path: str, **more: object) -> Json:
    return {"path": path, "type": "directory", "mode": 0o755, "uid": 0, "gid": 0, "mtime_ns": 5} | more


def file(path: str, content: bytes, **more: object) -> Json:
    what = {"type": "file", "mode": 0o644, "size": len(content), "digest": digest(content)}
    return {"path": path, "uid": 0, "gid": 0, "mtime_ns": 5} | what | more


def seen(path: str, content: bytes, at: int | None = None) -> Json:
    line = {"path": path, "mode": 0o100644, "uid": 0, "gid": 0, "size": len(content), "nlink": 1}
    line |= {"mtime_ns": 5, "number": 7, "digest": digest(content)}
    return line if at is None else line | {"saved": [at, len(content)]}


def honest() -> Parts:
    """An archive as it should be: a file changed, one deleted, a directory and a symlink added."""
    time = "2026-01-02T00:00:00+00:00"
    return Parts(
        {
            "format": 1,
            "kind": "sandboxfs archive",
            "name": "app",
            "workspace": "/nowhere/app",
            "created": time,
            "exported": time,
            "version": "0.1.0",
            "owner": {"uid": 0, "gid": 0},
            "policy": HONEST_POLICY,
        },
        [
            directory(""),
            file("a", b"new\n", number=7),
            {"path": "gone", "type": "whiteout"},
            {
                "path": "link",
                "type": "symlink",
                "mode": 0o777,
                "uid": 0,
                "gid": 0,
                "mtime_ns": 5,
                "target": "a",
            },
            directory("d", opaque=True),
            file("d/b", b"b\n"),
            {"path": "d/same", "type": "link", "target": "d/b"},
        ],
        [seen("a", b"old\n", 0), seen("gone", b"gone\n")],
        b"old\n",
        {"a": b"new\n", "d/b": b"b\n"},
    )


def import_over(workspace: Path, archive: bytes, *more: str) -> int:
    """Import some bytes over *workspace*, from a file beside it; return the exit status."""
    place = workspace.with_name("changes.archive")
    place.write_bytes(archive)
    return main(["import", str(place), str(workspace), *more])
