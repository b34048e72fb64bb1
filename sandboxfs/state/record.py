"""What is written down about a sandbox, and in which form?

`sandbox.toml` holds one record. Its `format` is looked at before anything else: a record of an unknown
format, with an unknown key or a wrong type is refused, never guessed at. Host paths need not be valid text;
those that are not are written as `{ hex = "…" }`.
"""

import os
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import tomli_w

from sandboxfs.errors import UsageError
from sandboxfs.state.settings import Settings, dump_settings, parse_settings

FORMAT = 1

_T = TypeVar("_T")


@dataclass(frozen=True)
class SandboxRecord:
    """A sandbox as it was last mounted: both paths are absolute and resolved."""

    name: str
    workspace: Path
    mountpoint: Path
    created: datetime
    read_only: bool = False
    allow_other: bool = False
    # sandboxfs made the mountpoint itself and takes it away again.
    own_mountpoint: bool = False
    # The sandbox beside which it serves one further place, and the sandboxes that do so beside it.
    companion_of: str | None = None
    companions: tuple[str, ...] = ()
    # Files beside the workspace that programs of a run may read.
    readable: tuple[Path, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def mode(self) -> str:
        return "ro" if self.read_only else self.settings.policy.mode.value


def dump_record(record: SandboxRecord) -> bytes:
    """Write *record* as the bytes of a `sandbox.toml`."""
    document = {
        "format": FORMAT,
        "name": record.name,
        "workspace": _path_out(record.workspace),
        "mountpoint": _path_out(record.mountpoint),
        "created": record.created.astimezone(UTC),
        "read_only": record.read_only,
        "allow_other": record.allow_other,
        "own_mountpoint": record.own_mountpoint,
        **({} if record.companion_of is None else {"companion_of": record.companion_of}),
        **({"companions": list(record.companions)} if record.companions else {}),
        **({"readable": list(map(_path_out, record.readable))} if record.readable else {}),
        **dump_settings(record.settings),
    }
    return tomli_w.dumps(document).encode()


def parse_record(content: bytes, source: str) -> SandboxRecord:
    """Read what `dump_record` wrote; raise `UsageError` naming *source* when it is anything else."""
    try:
        document = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{source}: malformed sandbox record: {error}") from error
    found = document.pop("format", None)
    if type(found) is not int or found != FORMAT:
        raise UsageError(
            f"{source}: unknown format {found!r}; this version of sandboxfs reads format {FORMAT}",
            hint="use the version of sandboxfs that made this sandbox",
        )
    reader = _Fields(document, source)
    record = SandboxRecord(
        name=reader.take("name", str),
        workspace=reader.take_path("workspace"),
        mountpoint=reader.take_path("mountpoint"),
        created=reader.take("created", datetime),
        read_only=reader.take("read_only", bool),
        allow_other=reader.take("allow_other", bool),
        own_mountpoint=reader.take("own_mountpoint", bool),
        companion_of=reader.take("companion_of", str) if "companion_of" in document else None,
        companions=reader.take_texts("companions"),
        readable=reader.take_paths("readable"),
        settings=parse_settings(document, source),
    )
    if document:
        raise UsageError(f"{source}: unknown key {next(iter(document))!r} in sandbox record")
    return record


class _Fields:
    def __init__(self, document: dict[str, object], source: str) -> None:
        self._document = document
        self._source = source

    def take(self, key: str, kind: type[_T]) -> _T:
        value = self._document.pop(key, None)
        if not isinstance(value, kind):
            raise UsageError(f"{self._source}: {key!r} in sandbox record: expected {kind.__name__}")
        return value

    def take_texts(self, key: str) -> tuple[str, ...]:
        values = self._document.pop(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise UsageError(f"{self._source}: {key!r} in sandbox record: expected texts")
        return tuple(values)

    def take_path(self, key: str) -> Path:
        return self._path(key, self._document.pop(key, None))

    def take_paths(self, key: str) -> tuple[Path, ...]:
        values = self._document.pop(key, [])
        if not isinstance(values, list):
            raise UsageError(f"{self._source}: {key!r} in sandbox record: expected paths")
        return tuple(self._path(key, value) for value in values)

    def _path(self, key: str, value: object) -> Path:
        match value:
            case str():
                path = Path(value)
            case {"hex": str(digits), **others} if not others:
                try:
                    path = Path(os.fsdecode(bytes.fromhex(digits)))
                except ValueError as error:
                    raise UsageError(f"{self._source}: {key!r} in sandbox record: bad hex digits") from error
            case _:
                raise UsageError(f"{self._source}: {key!r} in sandbox record: expected a path")
        if not path.is_absolute() or "\0" in str(path):
            raise UsageError(f"{self._source}: {key!r} in sandbox record: expected an absolute path")
        return path


def _path_out(path: Path) -> object:
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"hex": os.fsencode(text).hex()}
    return text
