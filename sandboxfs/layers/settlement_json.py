"""How are the operations on an upper, and what came of them, written as JSON?

Paths are text with Python's surrogates for bytes that are not UTF-8. What is read was written by another
process: everything is checked, and a path that could lead out of its directory is refused with ValueError.
"""

from collections.abc import Callable, Iterable, Mapping

from sandboxfs.layers.settlement import (
    WHITEOUT,
    Close,
    Drop,
    Expected,
    Identity,
    Moved,
    Open,
    Opened,
    Operation,
    Outcome,
    Prune,
    Put,
    Rebase,
    Redress,
    Resume,
    Unmoved,
    Whiteout,
)

_IDENTITY = ("ino", "size", "mtime_ns", "ctime_ns")
_LARGEST = 1 << 64


def operation_to_json(operation: Operation) -> dict[str, object]:
    """Describe an operation; *op* says which it is."""
    op: dict[str, object] = {"op": _NAMES[type(operation)]}
    match operation:
        case Drop(path, expect, keep, number) | Put(path, keep, expect, number):
            kept = {"keep": text(keep), "expect": _expected(expect), "number": number}
            whole = {"whole": True} if isinstance(operation, Drop) and operation.whole else {}
            return op | {"path": text(path)} | kept | whole
        case Open(path):
            return op | {"path": text(path)}
        case Close(path, opaque, redirect, whiteouts, closed):
            return op | {"path": text(path)} | _marks(opaque, redirect, whiteouts, closed)
        case Prune(path, keep):
            return op | {"path": text(path), "keep": text(keep)}
        case Whiteout(path, number):
            return op | {"path": text(path), "number": number}
        case Moved(old, new) | Unmoved(old, new):
            return op | {"old": text(old), "new": text(new)}
        case Rebase(path, lower, own, marked):
            return op | {"path": text(path), "lower": text(lower), "own": own, "marked": marked}
        case Resume(path, lower, keep):
            return op | {"path": text(path), "lower": text(lower), "keep": text(keep)}
        case Redress(path, back):
            return op | {"path": text(path), "back": back}


def operation_from_json(described: object) -> Operation:
    """Read what `operation_to_json` described; ValueError when it is none, or names no proper path."""
    fields = _Fields(described)
    read = _READERS.get(fields.text("op"))
    if read is None:
        raise ValueError("unknown operation")
    return read(fields)


def outcome_to_json(outcome: Outcome) -> dict[str, object]:
    described: dict[str, object] = {"done": outcome.done}
    if outcome.why is not None:
        described["why"] = outcome.why
    if outcome.opened is not None:
        opened = outcome.opened
        described |= _marks(opened.opaque, opened.redirect, opened.whiteouts, opened.closed)
    return described


def outcome_from_json(described: object) -> Outcome:
    """Read what `outcome_to_json` described; ValueError when it is none."""
    fields = _Fields(described)
    opened = None
    if fields.has("opaque"):
        opened = Opened(
            fields.flag("opaque"), fields.path_or_none("redirect"), fields.names("whiteouts"), fields.closed()
        )
    return Outcome(fields.flag("done"), fields.text("why") if fields.has("why") else None, opened)


def text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def check_path(path: bytes) -> bytes:
    """Give *path* back if it leads to a place below a root without any detour; ValueError otherwise."""
    if b"\0" in path or any(name in (b"", b".", b"..") for name in path.split(b"/")):
        raise ValueError(f"not a path inside the view: {text(path)!r}")
    return path


def check_keep(name: bytes) -> bytes:
    """Give *name* back if it may name something kept; those with a dot in front are the records' own."""
    if not name or b"/" in name or b"\0" in name or name.startswith(b"."):
        raise ValueError(f"not a name to keep something under: {text(name)!r}")
    return name


class _Fields:
    """The fields of one described value."""

    def __init__(self, described: object) -> None:
        if not isinstance(described, dict):
            raise ValueError("not an object")
        self._fields: Mapping[str, object] = described

    def has(self, key: str) -> bool:
        return self._fields.get(key) is not None

    def text(self, key: str) -> str:
        value = self._fields.get(key)
        if not isinstance(value, str):
            raise ValueError(f"'{key}' is missing or no text")
        return value

    def flag(self, key: str) -> bool:
        value = self._fields.get(key)
        if not isinstance(value, bool):
            raise ValueError(f"'{key}' is missing or neither true nor false")
        return value

    def flag_or_not(self, key: str) -> bool:
        """A flag that records of earlier versions do not have."""
        return self.has(key) and self.flag(key)

    def path(self, key: str = "path") -> bytes:
        return check_path(path_bytes(self.text(key)))

    def path_or_root(self, key: str) -> bytes:
        return self.path(key) if self.text(key) else b""

    def path_or_none(self, key: str) -> bytes | None:
        return self.path(key) if self.has(key) else None

    def keep(self) -> bytes:
        return check_keep(path_bytes(self.text("keep")))

    def number(self) -> int | None:
        return _number(self._fields["number"], "number") if self.has("number") else None

    def names(self, key: str) -> tuple[bytes, ...] | None:
        """A list of names of one directory."""
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise ValueError(f"'{key}' is no list")
        names = []
        for name in value:
            if not isinstance(name, str) or "/" in name:
                raise ValueError(f"'{key}' is no list of names")
            names.append(check_path(path_bytes(name)))
        return tuple(names)

    def closed(self) -> tuple[bytes, ...]:
        return self.names("closed") or ()

    def expected(self) -> Expected:
        value = self._fields.get("expect")
        if value == WHITEOUT:
            return WHITEOUT
        if not isinstance(value, dict):
            raise ValueError("'expect' says nothing")
        return Identity(*(_number(value.get(key), key) for key in _IDENTITY))

    def expected_or_none(self) -> Expected | None:
        return self.expected() if self.has("expect") else None


_NAMES: Mapping[type[Operation], str] = {
    Drop: "drop",
    Open: "open",
    Close: "close",
    Prune: "prune",
    Put: "put",
    Whiteout: "whiteout",
    Moved: "moved",
    Unmoved: "unmoved",
    Rebase: "rebase",
    Resume: "resume",
    Redress: "redress",
}
_READERS: Mapping[str, Callable[[_Fields], Operation]] = {
    "drop": lambda f: Drop(f.path(), f.expected(), f.keep(), f.number(), f.flag_or_not("whole")),
    "open": lambda f: Open(f.path()),
    "close": lambda f: Close(
        f.path(), f.flag("opaque"), f.path_or_none("redirect"), f.names("whiteouts"), f.closed()
    ),
    "prune": lambda f: Prune(f.path(), f.keep()),
    "put": lambda f: Put(f.path(), f.keep(), f.expected_or_none(), f.number()),
    "whiteout": lambda f: Whiteout(f.path(), f.number()),
    "moved": lambda f: Moved(f.path("old"), f.path("new")),
    "unmoved": lambda f: Unmoved(f.path("old"), f.path("new")),
    "rebase": lambda f: Rebase(
        f.path_or_root("path"), f.path_or_root("lower"), f.flag_or_not("own"), f.flag_or_not("marked")
    ),
    "resume": lambda f: Resume(f.path(), f.path("lower"), f.keep()),
    "redress": lambda f: Redress(f.path_or_root("path"), f.flag("back")),
}


def _marks(
    opaque: bool, redirect: bytes | None, whiteouts: Iterable[bytes] | None, closed: Iterable[bytes]
) -> dict[str, object]:
    return {
        "opaque": opaque,
        "redirect": None if redirect is None else text(redirect),
        "whiteouts": None if whiteouts is None else [text(name) for name in whiteouts],
        "closed": [text(name) for name in closed],
    }


def _expected(expect: Expected | None) -> object:
    if isinstance(expect, Identity):
        return {key: getattr(expect, key) for key in _IDENTITY}
    return expect


def path_bytes(path: str) -> bytes:
    """The reverse of `text`."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError("not a path: it has surrogates that stand for no byte") from error


def _number(value: object, key: str) -> int:
    if type(value) is not int or not -_LARGEST < value < _LARGEST:
        raise ValueError(f"'{key}' is missing or no whole number")
    return value
