"""What does the first member of an archive say? Whose changes follow, and how much of everything.

Read before anything is made: `format` first, then the sizes, which the rest of the archive has to keep to.
"""

import json
from dataclasses import dataclass
from datetime import datetime

from sandboxfs.changes.archive_fields import LARGEST, LARGEST_ID, Fields
from sandboxfs.changes.archive_stream import BadArchive

FORMAT = 1
KIND = "sandboxfs archive"

MANIFEST = b"manifest.json"
BASELINE = b"baseline.jsonl"
SAVED = b"saved.bin"
CHANGES = b"changes.jsonl"
FILES = b"files/"

LONGEST = 16 << 20
"""How large a manifest may be: its rules are what makes it long."""

LONGEST_LISTING = 512 << 20
"""How large a list of entries or sightings may be: some millions of them."""


@dataclass(frozen=True)
class Part:
    """What a member holds: how many bytes, in how many pieces, and the digest of it."""

    size: int
    count: int
    digest: bytes


@dataclass(frozen=True)
class Origin:
    """Where the changes come from. *owner* is the user and group that the workspace belonged to."""

    name: str
    workspace: bytes
    created: datetime
    exported: datetime
    version: str
    owner: tuple[int, int]
    policy: dict[str, object]


@dataclass(frozen=True)
class Manifest:
    """The whole manifest; *files* and *file_bytes* are how many contents follow, and how large they are."""

    origin: Origin
    changes: Part
    baseline: Part
    saved: Part
    files: int
    file_bytes: int

    @property
    def size(self) -> int:
        """How many bytes everything takes, headers left aside."""
        return self.changes.size + self.baseline.size + self.saved.size + self.file_bytes


def dump_manifest(manifest: Manifest) -> bytes:
    origin = manifest.origin
    document = {
        "format": FORMAT,
        "kind": KIND,
        "name": origin.name,
        "workspace": origin.workspace.decode("utf-8", "surrogateescape"),
        "created": origin.created.isoformat(),
        "exported": origin.exported.isoformat(),
        "version": origin.version,
        "owner": {"uid": origin.owner[0], "gid": origin.owner[1]},
        "policy": origin.policy,
        "changes": _part_out(manifest.changes),
        "baseline": _part_out(manifest.baseline),
        "saved": _part_out(manifest.saved),
        "files": {"count": manifest.files, "size": manifest.file_bytes},
    }
    return json.dumps(document, indent=1).encode("ascii") + b"\n"


def _part_out(part: Part) -> dict[str, object]:
    return {"size": part.size, "count": part.count, "digest": part.digest.hex()}


def parse_manifest(text: bytes) -> Manifest:
    """Read what `dump_manifest` wrote; the policy is left for its reader to judge."""
    fields = Fields.of_text(text, "its manifest")
    if not fields.has("format") or not fields.has("kind") or fields.take("kind", str) != KIND:
        raise BadArchive("it is no archive of sandboxfs")
    found = fields.take("format", int)
    if found != FORMAT:
        raise BadArchive(
            f"it has the unknown format {found}; this version of sandboxfs reads format {FORMAT}",
            hint="use the version of sandboxfs that wrote it, or a newer one",
        )
    owner, files = fields.inner("owner"), fields.inner("files")
    manifest = Manifest(
        Origin(
            name=fields.take("name", str),
            workspace=_absolute(fields),
            created=_time(fields, "created"),
            exported=_time(fields, "exported"),
            version=fields.take("version", str),
            owner=(owner.number("uid", LARGEST_ID), owner.number("gid", LARGEST_ID)),
            policy=fields.take("policy", dict),
        ),
        changes=_part_in(fields, "changes", LONGEST_LISTING),
        baseline=_part_in(fields, "baseline", LONGEST_LISTING),
        saved=_part_in(fields, "saved"),
        files=files.number("count", LARGEST),
        file_bytes=files.number("size", LARGEST),
    )
    for one in (owner, files, fields):
        one.finish()
    return manifest


def _absolute(fields: Fields) -> bytes:
    path = fields.raw("workspace")
    if not path.startswith(b"/") or b"\0" in path:
        raise fields.wrong("workspace")
    return path


def _time(fields: Fields, key: str) -> datetime:
    try:
        time = datetime.fromisoformat(fields.take(key, str))
    except ValueError as error:
        raise fields.wrong(key) from error
    if time.tzinfo is None:
        raise fields.wrong(key)
    return time


def _part_in(fields: Fields, key: str, largest: int = LARGEST) -> Part:
    inner = fields.inner(key)
    part = Part(inner.number("size", largest), inner.number("count", LARGEST), inner.digest("digest"))
    inner.finish()
    return part
