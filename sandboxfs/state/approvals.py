"""Approvals: the held changes that a person approved, kept beside the layers of a sandbox.

The file is out of every program's reach, as all state is. What an approval means is said in `review/held`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sandboxfs.codec import Check, decode, encode
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.durable import write_whole

_NAME = "approvals.json"
_VERSION = 1


def _known(version: int) -> int:
    if version != _VERSION:
        raise ValueError(f"expected version {_VERSION}")
    return version


@dataclass(frozen=True)
class _WrittenApproval:
    path: bytes
    digest: str


@dataclass(frozen=True)
class _WrittenApprovals:
    version: Annotated[int, Check(_known)]
    approvals: tuple[_WrittenApproval, ...]


def read_approvals(home: Path) -> dict[bytes, frozenset[str]]:
    """Return the digests of the approved changes of each path; none when the file cannot be understood.

    Without an approval a change is held, so a damaged file lets nothing through.
    """
    try:
        found: object = json.loads((home / _NAME).read_bytes())
        written = decode(_WrittenApprovals, found)
    except (OSError, ValueError, RecursionError):
        return {}
    approvals: dict[bytes, frozenset[str]] = {}
    for one in written.approvals:
        approvals[one.path] = approvals.get(one.path, frozenset()) | {one.digest}
    return approvals


def write_approvals(home: Path, approvals: Mapping[bytes, frozenset[str]]) -> None:
    """Replace all approvals of the sandbox in *home*."""
    written = tuple(
        _WrittenApproval(path, digest) for path in sorted(approvals) for digest in sorted(approvals[path])
    )
    data = json.dumps(encode(_WrittenApprovals(_VERSION, written)), separators=(",", ":")).encode()
    with HostDir.at(home) as directory:
        write_whole(directory, _NAME.encode(), data + b"\n")
