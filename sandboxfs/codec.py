"""Codec: frozen values as JSON and TOML, read back strictly, and JSON documents for programs.

`encode` writes a dataclass as an object of JSON or a table of TOML, by the types of its fields, and `decode`
reads it. The input was written by another process, perhaps of another version, perhaps by an attacker: an
unknown key, a missing one, a wrong type, a number out of range and a surrogate that stands for no byte are
refused, each with its place in the document.

A field is written under its own name, and must be there unless its metadata say otherwise. Bytes are paths,
written as text with Python's surrogates for bytes that are not UTF-8. `Annotated` with a `Form` or a `Check`
adds what a type does not say. The form of a class is made when the class is first written or read.

Documents are for programs of others, and many readers of JSON refuse lone surrogates. In a document a string
that stands for bytes that are not UTF-8 is written with U+FFFD in their place, and beside its key KEY is
`KEY_bytes` with the bytes in Base64; beside an array of strings, an array of all of them.
"""

# Many functions here are generic, and every command imports them: no code needs their annotations.
from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from itertools import repeat
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Final, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

VERSION = 1
_SUFFIX = "_bytes"

OPTIONAL: Final = {"optional": True}
"""Metadata of a field that may be missing, and then has its default: earlier versions did not write it."""

SPARSE: Final = {"optional": True, "sparse": True}
"""Metadata of a field that is not written while it has its default."""

APART: Final = {"apart": True}
"""Metadata of a field that is left to its default here, and written and read elsewhere."""

_LARGEST = 1 << 64
_NOTHING = object()

T = TypeVar("T")
U = TypeVar("U")

Table = dict[str, object]
_Read = Callable[[object], object]
_Write = Callable[[object], object]


class Malformed(ValueError):
    """The input is not as expected; *place* is a place in the document, empty for the whole of it."""

    def __init__(self, complaint: str, place: str = "") -> None:
        super().__init__(complaint, place)
        self.complaint = complaint
        self.place = place

    def __str__(self) -> str:
        return f"{self.place}: {self.complaint}" if self.place else self.complaint

    def below(self, step: str) -> None:
        """Put *step* in front of the place, which then starts one level further up."""
        self.place = step + self.place


class Form(Generic[T]):
    """The written form of the values of one type: *decode* raises `Malformed`."""

    __slots__ = ("decode", "encode")

    def __init__(self, encode: Callable[[T], object], decode: Callable[[object], T]) -> None:
        self.encode = encode
        self.decode = decode


class Check(Generic[T]):
    """A condition on values that are read: *test* returns them, perhaps changed, or raises ValueError."""

    __slots__ = ("test",)

    def __init__(self, test: Callable[[T], T]) -> None:
        self.test = test


def encode(value: object) -> Table:
    """Write a dataclass as an object."""
    return _class_form(type(value)).written(value)


def decode(kind: type[T] | Form[T], found: object, where: str = "", *, lenient: bool = False) -> T:
    """Read *found*, the value at *where*; `Malformed` unless it is of *kind*.

    *lenient* ignores unknown keys: answers of other versions have them.
    """
    form = kind if isinstance(kind, Form) else _class_form(kind, lenient)
    try:
        return form.decode(found)
    except Malformed as error:
        error.place = (where + error.place).removeprefix(".")
        raise


def text_form(write: Callable[[T], str], read: Callable[[str], T]) -> Form[T]:
    """Text that stands for another value; *read* raises ValueError for text that stands for none."""
    return Form(write, _checked(_text, read))


def between(least: int, most: int) -> Check[int]:
    """A whole number from *least* to *most*."""

    def test(number: int) -> int:
        if not least <= number <= most:
            raise ValueError(f"expected a number from {least} to {most}")
        return number

    return Check(test)


def row(kind: type[T], *names: str) -> Form[T]:
    """An array of the fields called *names*, for values that are numerous."""
    values = attrgetter(*names)
    reads = [_form(kind.__annotations__[name]).decode for name in names]
    return Form(lambda value: list(values(value)), lambda found: kind(*_items(found, reads)))


def table(kind: type[T], *names: str) -> Form[T]:
    """An object of the fields called *names*; the others have their defaults."""
    return _ClassForm(kind, names=names)


def pairs(keys: object, values: object) -> Form[tuple[tuple[bytes, bytes], ...]]:
    """An object for pairs of bytes, with members in the forms of the types *keys* and *values*."""
    form = cast(Form[Mapping[bytes, bytes]], _mapping(_form(keys), _form(values)))
    return Form(lambda value: form.encode(dict(value)), lambda found: tuple(form.decode(found).items()))


class Variants(Form[T]):
    """One of several classes: the value of *key*, which is written first, names the class."""

    __slots__ = ("_key", "_kinds", "_tags")

    def __init__(self, key: str, kinds: Mapping[str, type[T]]) -> None:
        super().__init__(self.written, self._read)
        self._key, self._kinds = key, kinds
        self._tags = {kind: tag for tag, kind in kinds.items()}

    def written(self, value: T) -> Table:
        kind = type(value)
        return {self._key: self._tags[kind]} | _class_form(kind, tag=self._key).written(value)

    def _read(self, found: object) -> T:
        tag = _table(found).get(self._key, _NOTHING)
        try:
            kind = self._kinds[_word(self._kinds, tag)]
        except Malformed as error:
            error.below("." + self._key)
            raise
        return _class_form(kind, tag=self._key).decode(found)


class _ClassForm(Form[T]):
    """The form of a dataclass, whose object may have the key *tag* besides those of its fields."""

    __slots__ = ("_kind", "_lenient", "_reads", "_tag", "_writes")

    def __init__(
        self, kind: type[T], lenient: bool = False, tag: str | None = None, names: Collection[str] = ()
    ) -> None:
        # Imported late: a command without such values does not need it.
        from dataclasses import MISSING, fields

        super().__init__(self.written, self._read)
        self._kind, self._lenient, self._tag = kind, lenient, tag
        self._writes: list[tuple[str, _Write | None, object]] = []
        self._reads: list[tuple[str, _Read, bool]] = []
        for field in fields(kind):  # type: ignore[arg-type]
            if "apart" in field.metadata or (names and field.name not in names):
                continue
            form = _form(field.type, lenient)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            write = None if form.encode is _same else form.encode
            self._writes.append((field.name, write, default if "sparse" in field.metadata else _NOTHING))
            self._reads.append((field.name, form.decode, "optional" not in field.metadata))

    def written(self, value: T) -> Table:
        out = {}
        for name, write, omitted in self._writes:
            member = getattr(value, name)
            if omitted is _NOTHING or member != omitted:
                out[name] = member if write is None else write(member)
        return out

    def _read(self, found: object) -> T:
        table = _table(found)
        values = {}
        name = ""
        try:
            for name, read, required in self._reads:
                if required or name in table:
                    values[name] = read(table.get(name, _NOTHING))
        except Malformed as error:
            error.below("." + name)
            raise
        if len(values) + (self._tag is not None) != len(table) and not self._lenient:
            known = {self._tag, *values}
            raise Malformed(f"unknown key {next(key for key in table if key not in known)!a}")
        return self._kind(**values)


_made: dict[tuple[object, bool, str | None], object] = {}


def _class_form(kind: type[T], lenient: bool = False, tag: str | None = None) -> _ClassForm[T]:
    known = _made.get((kind, lenient, tag))
    if known is None:
        known = _made[kind, lenient, tag] = _ClassForm(kind, lenient, tag)
    return cast(_ClassForm[T], known)


def _form(kind: object, lenient: bool = False) -> Form[object]:
    """Find the form for the type of a field."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(args[0], args[1:], lenient)
    if origin in (Union, UnionType):
        return _union(args, lenient)
    if origin is Literal:
        return Form(_same, lambda found: _word(args, found))
    if origin is tuple:
        return _array(args[0], lenient) if args[-1] is ... else _tuple(args, lenient)
    if origin in (Mapping, dict):
        return _mapping(_form(args[0]), _form(args[1], lenient))
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = {one.value: one for one in kind}
        return Form(lambda value: cast(Enum, value).value, lambda found: members[_word(members, found)])
    return _PLAIN.get(kind) or _class_form(cast(type[object], kind), lenient)


def _annotated(kind: object, notes: Collection[object], lenient: bool) -> Form[object]:
    form = next((note for note in notes if isinstance(note, Form)), None) or _form(kind, lenient)
    for note in notes:
        if isinstance(note, Check):
            form = Form(form.encode, _checked(form.decode, note.test))
    return form


def _checked(read: Callable[[object], T], test: Callable[[T], U]) -> Callable[[object], U]:
    def checked(found: object) -> U:
        value = read(found)
        try:
            return test(value)
        except Malformed:
            raise
        except ValueError as error:
            raise Malformed(str(error)) from error

    return checked


def _union(args: tuple[object, ...], lenient: bool) -> Form[object]:
    """One type, and beside it None and the words of a `Literal`, each written as itself."""
    (other,) = (arg for arg in args if arg is not NoneType and get_origin(arg) is not Literal)
    form = _form(other, lenient)
    words = [word for arg in args if get_origin(arg) is Literal for word in get_args(arg)]
    if words:
        form = _beside(form, lambda value: isinstance(value, str) and value in words)
    return _or_none(form) if NoneType in args else form


def _beside(form: Form[object], is_itself: Callable[[object], bool]) -> Form[object]:
    write, read = form.encode, form.decode
    return Form(
        lambda value: value if is_itself(value) else write(value),
        lambda found: found if is_itself(found) else read(found),
    )


def _or_none(form: Form[object]) -> Form[object]:
    write, read = form.encode, form.decode
    return Form(
        _same if write is _same else lambda value: None if value is None else write(value),
        lambda found: None if found is None else read(found),
    )


def _tuple(args: tuple[object, ...], lenient: bool) -> Form[object]:
    forms = [_form(arg, lenient) for arg in args]
    reads = [form.decode for form in forms]

    def write(value: object) -> object:
        return [form.encode(one) for form, one in zip(forms, cast(tuple[object], value), strict=True)]

    return Form(write, lambda found: tuple(_items(found, reads)))


def _array(kind: object, lenient: bool) -> Form[object]:
    form = _form(kind, lenient)
    write = list if form.encode is _same else lambda value: list(map(form.encode, value))
    return Form(write, lambda found: tuple(_items(found, repeat(form.decode))))


def _items(found: object, reads: Iterable[_Read]) -> list[object]:
    """Read the items of an array, each with the member of *reads* at its place."""
    values = _list(found)
    if isinstance(reads, list) and len(reads) != len(values):
        raise Malformed(f"expected {len(reads)} items, found {len(values)}")
    out: list[object] = []
    try:
        for one, read in zip(values, reads, strict=False):
            out.append(read(one))
    except Malformed as error:
        error.below(f"[{len(out)}]")
        raise
    return out


def _mapping(keys: Form[object], values: Form[object]) -> Form[object]:
    def write(value: object) -> object:
        return {keys.encode(key): values.encode(one) for key, one in cast(Table, value).items()}

    def read(found: object) -> object:
        out = {}
        for key, one in _table(found).items():
            try:
                name = keys.decode(key)
                out[name] = values.decode(one)
            except Malformed as error:
                error.below(f"[{key!a}]")
                raise
        return out

    return Form(write, read)


def _expected(what: str, found: object) -> Malformed:
    return Malformed(f"expected {what}, found {'nothing' if found is _NOTHING else type(found).__name__}")


def _word(words: Collection[str], found: object) -> str:
    if not isinstance(found, str):
        raise _expected(_either(words), found)
    if found not in words:
        raise Malformed(f"expected {_either(words)}, found {found[:80]!a}")
    return found


def _either(words: Collection[str]) -> str:
    return " or ".join(map(repr, words))


def _same(value: object) -> object:
    return value


def _table(found: object) -> Table:
    # JSON and TOML give only plain dicts.
    if type(found) is not dict:
        raise _expected("dict", found)
    return found


def _list(found: object) -> list[object]:
    if type(found) is not list:
        raise _expected("list", found)
    return found


def _flag(found: object) -> bool:
    if type(found) is not bool:
        raise _expected("bool", found)
    return found


def _number(found: object) -> int:
    # For isinstance a bool is an int.
    if type(found) is not int:
        raise _expected("int", found)
    if not -_LARGEST < found < _LARGEST:
        raise Malformed("expected a number of at most 64 bits")
    return found


def _text(found: object) -> str:
    if type(found) is not str:
        raise _expected("str", found)
    if not found.isascii():
        _bytes(found)
    return found


def _bytes(found: object) -> bytes:
    if type(found) is not str:
        raise _expected("str", found)
    try:
        return found.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Malformed("it has surrogates that stand for no byte") from None


def _anything(found: object) -> object:
    if found is _NOTHING:
        raise Malformed("missing")
    return found


_PLAIN: Final[Mapping[object, Form[object]]] = {
    bool: Form(_same, _flag),
    int: Form(_same, _number),
    str: Form(_same, _text),
    bytes: Form(lambda value: cast(bytes, value).decode("utf-8", "surrogateescape"), _bytes),
    object: Form(_same, _anything),
}


def _from_hex(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise Malformed("bad hex digits") from None


HEX: Final = text_form(bytes.hex, _from_hex)
"""Bytes as hexadecimal digits."""


# Documents


def document(value: Mapping[str, object], *, indent: int | None = 2) -> str:
    """Write *value* as one JSON document, with the version first."""
    return json.dumps({"version": VERSION} | lossless(value), indent=indent)


def lossless(value: Mapping[str, object]) -> dict[str, object]:
    """Return *value* with every name in it in a form that a reader of JSON can hold."""
    found: dict[str, object] = {}
    for key, member in value.items():
        found[key] = _readable(member)
        exact = _exact(member)
        if exact is not None:
            found[key + _SUFFIX] = exact
    return found


def restored(value: Mapping[str, object]) -> dict[str, object]:
    """Return the original of `lossless`, for a Python program: the bytes as surrogates again."""
    found = {}
    for key, member in value.items():
        exact = value.get(key + _SUFFIX)
        if key.endswith(_SUFFIX) and key.removesuffix(_SUFFIX) in value:
            continue
        found[key] = _restored(member) if exact is None else _decoded(exact)
    return found


def _readable(member: object) -> object:
    if isinstance(member, str):
        return _data(member).decode("utf-8", "replace") if _is_lost(member) else member
    if isinstance(member, Mapping):
        return lossless(member)
    if isinstance(member, list | tuple):
        return [_readable(one) for one in member]
    return member


def _exact(member: object) -> object | None:
    """The bytes of a string, or of an array of strings, that is not UTF-8; None where nothing is lost."""
    if isinstance(member, str):
        return _encoded(member) if _is_lost(member) else None
    if isinstance(member, list | tuple) and all(isinstance(one, str) for one in member):
        return [_encoded(one) for one in member] if any(map(_is_lost, member)) else None
    return None


def _is_lost(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _data(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # No file name, but a string that claims to be one.
        return text.encode("utf-8", "surrogatepass")


def _encoded(text: str) -> str:
    # Imported late: nearly all names are text.
    import base64

    return base64.b64encode(_data(text)).decode("ascii")


def _restored(member: object) -> object:
    if isinstance(member, Mapping):
        return restored(member)
    if isinstance(member, list):
        return [_restored(one) for one in member]
    return member


def _decoded(exact: object) -> object:
    import base64

    if isinstance(exact, list):
        return [_decoded(one) for one in exact]
    return base64.b64decode(str(exact)).decode("utf-8", "surrogateescape")
