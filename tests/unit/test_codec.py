"""Frozen values come back as they were written, all else is refused by place; documents lose no name."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.codec import (
    APART,
    HEX,
    OPTIONAL,
    SPARSE,
    Check,
    Form,
    Malformed,
    Variants,
    between,
    decode,
    document,
    encode,
    lossless,
    restored,
    row,
)
from sandboxfs.errors import UsageError, error_from_json

PACKAGE = Path(__file__).parents[2] / "sandboxfs"
ODD = "a\udcffb"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int
    seen: int = 0


POINT: Final = row(Point, "x", "y")


def no_slash(name: bytes) -> bytes:
    if b"/" in name:
        raise ValueError("no slash")
    return name


@dataclass(frozen=True)
class Inner:
    name: Annotated[bytes, Check(no_slash)]
    points: tuple[Annotated[Point, POINT], ...] = ()


@dataclass(frozen=True)
class Outer:
    flag: bool
    text: str
    path: bytes
    colour: Colour
    mode: Annotated[int, between(0, 0o7777)]
    digest: Annotated[bytes, HEX]
    pair: tuple[int, bytes]
    state: Inner | Literal["gone"] | None
    inner: Mapping[bytes, Inner]
    anything: object
    late: int = field(default=7, metadata=OPTIONAL)
    rare: str | None = field(default=None, metadata=SPARSE)
    many: tuple[str, ...] = field(default=(), metadata=SPARSE)
    apart: Path = field(default=Path("/"), metadata=APART)


@dataclass(frozen=True)
class Cut:
    path: bytes


@dataclass(frozen=True)
class Turn:
    by: int
    whole: bool = field(default=False, metadata=SPARSE)


Deed = Cut | Turn
DEED: Final[Variants[Deed]] = Variants("op", {"cut": Cut, "turn": Turn})

numbers = st.integers(-(1 << 64) + 1, (1 << 64) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
inners = st.builds(
    Inner,
    st.binary(max_size=8).map(lambda name: name.replace(b"/", b"")),
    st.lists(st.builds(Point, numbers, numbers), max_size=3).map(tuple),
)
outers = st.builds(
    Outer,
    st.booleans(),
    texts,
    st.binary(max_size=8),
    st.sampled_from(Colour),
    st.integers(0, 0o7777),
    st.binary(max_size=8),
    st.tuples(numbers, st.binary(max_size=8)),
    st.none() | st.just("gone") | inners,
    st.dictionaries(st.binary(max_size=8), inners, max_size=3),
    st.none() | st.integers() | st.lists(st.booleans()),
    late=numbers,
    rare=st.none() | texts,
    many=st.lists(texts, max_size=3).map(tuple),
)
OUTER = Outer(
    True,
    "t",
    b"a\xff",
    Colour.RED,
    0o644,
    b"\x01\xff",
    (1, b"one"),
    Inner(b"n", (Point(1, 2), Point(3, 4))),
    {b"k": Inner(b"m")},
    None,
)


@given(outers)
def test_a_value_is_read_as_it_was_written(value: Outer) -> None:
    assert decode(Outer, json.loads(json.dumps(encode(value)))) == value


def test_a_value_is_an_object_with_the_names_of_its_fields_in_their_order() -> None:
    assert list(encode(OUTER).items()) == [
        ("flag", True),
        ("text", "t"),
        ("path", ODD.removesuffix("b")),
        ("colour", "red"),
        ("mode", 0o644),
        ("digest", "01ff"),
        ("pair", [1, "one"]),
        ("state", {"name": "n", "points": [[1, 2], [3, 4]]}),
        ("inner", {"k": {"name": "m", "points": []}}),
        ("anything", None),
        ("late", 7),
    ]


@pytest.mark.parametrize("deed", [Cut(b"\xff"), Turn(3), Turn(-3, whole=True)], ids=repr)
def test_one_of_several_classes_is_told_by_its_tag(deed: Deed) -> None:
    described = DEED.written(deed)
    assert next(iter(described)) == "op"
    assert decode(DEED, described) == deed


def test_fields_that_earlier_versions_did_not_write_may_be_missing_and_no_others() -> None:
    described = encode(OUTER)
    del described["late"]
    assert decode(Outer, described) == OUTER
    for key in described:
        left = {other: value for other, value in described.items() if other != key}
        with pytest.raises(Malformed, match=rf"^{key}: "):
            decode(Outer, left)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"flag": 1}, "flag: expected bool, found int"),
        ({"flag": None}, "flag: expected bool, found NoneType"),
        ({"text": b"t"}, "text: expected str, found bytes"),
        ({"text": "\ud800"}, "text: it has surrogates that stand for no byte"),
        ({"path": "a\udc7f"}, "path: it has surrogates that stand for no byte"),
        ({"path": ["a"]}, "path: expected str, found list"),
        ({"colour": "green"}, "colour: expected 'red' or 'blue', found 'green'"),
        ({"colour": ["red"]}, "colour: expected 'red' or 'blue', found list"),
        ({"mode": True}, "mode: expected int, found bool"),
        ({"mode": 1.0}, "mode: expected int, found float"),
        ({"mode": 0o10000}, "mode: expected a number from 0 to 4095"),
        ({"late": 1 << 64}, "late: expected a number of at most 64 bits"),
        ({"late": -(1 << 64)}, "late: expected a number of at most 64 bits"),
        ({"digest": "0g"}, "digest: bad hex digits"),
        ({"pair": [1]}, "pair: expected 2 items, found 1"),
        ({"pair": ["1", "one"]}, "pair[0]: expected int, found str"),
        ({"pair": {"0": 1}}, "pair: expected list, found dict"),
        ({"state": "come"}, "state: expected dict, found str"),
        (
            {"state": {"name": "n", "points": [[1, 2], [3, 4, 5]]}},
            "state.points[1]: expected 2 items, found 3",
        ),
        ({"state": {"name": "n", "points": [[1, None]]}}, "state.points[0][1]: expected int, found NoneType"),
        ({"state": {"name": "a/b", "points": []}}, "state.name: no slash"),
        ({"inner": {"k": {"name": "m"}}}, "inner['k'].points: expected list, found nothing"),
        ({"inner": {"\u200b": {}}}, "inner['\\u200b'].name: expected str, found nothing"),
        ({"inner": {"\ud800": {}}}, "inner['\\ud800']: it has surrogates that stand for no byte"),
        ({"inner": []}, "inner: expected dict, found list"),
        ({"many": [1]}, "many[0]: expected str, found int"),
        ({"apart": "/"}, "unknown key 'apart'"),
        ({"n\u0435w": 1}, "unknown key 'n\\u0435w'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_refused_with_its_place(changed: dict[str, object], complaint: str) -> None:
    with pytest.raises(Malformed) as refused:
        decode(Outer, encode(OUTER) | changed)
    assert str(refused.value) == complaint


@pytest.mark.parametrize(
    ("described", "complaint"),
    [
        ([], "here: expected dict, found list"),
        ({"path": "a"}, "here.op: expected 'cut' or 'turn', found nothing"),
        ({"op": "fly"}, "here.op: expected 'cut' or 'turn', found 'fly'"),
        ({"op": {}}, "here.op: expected 'cut' or 'turn', found dict"),
        ({"op": "cut", "path": 1}, "here.path: expected str, found int"),
        ({"op": "cut", "path": "a", "by": 1}, "here: unknown key 'by'"),
    ],
    ids=str,
)
def test_what_is_none_of_several_classes_is_refused(described: object, complaint: str) -> None:
    with pytest.raises(Malformed) as refused:
        decode(DEED, described, "here")
    assert str(refused.value) == complaint


def test_a_lenient_reader_passes_over_unknown_keys_at_every_depth() -> None:
    described = encode(OUTER) | {"new": 1, "state": {"name": "n", "points": [], "newer": 2}}
    assert decode(Outer, described, lenient=True).state == Inner(b"n")
    with pytest.raises(Malformed, match=r"^state: unknown key 'newer'"):
        decode(Outer, described)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts | st.sampled_from(["op", "by", "path"]), inner),
)


@pytest.mark.parametrize("read", [partial(decode, POINT), partial(decode, DEED), partial(decode, Outer)])
@given(json_values)
def test_whatever_is_read_is_a_value_or_malformed(read: Callable[[object], object], found: object) -> None:
    with suppress(Malformed):
        read(found)


def test_a_class_with_a_type_that_nobody_knows_how_to_write_is_a_mistake() -> None:
    @dataclass(frozen=True)
    class Odd:
        where: Path

    with pytest.raises(TypeError):
        encode(Odd(Path("/")))


def test_a_form_of_ones_own_decides_how_a_value_is_written() -> None:
    @dataclass(frozen=True)
    class Placed:
        where: Annotated[Path, Form(str, lambda found: Path(str(found)))]

    assert encode(Placed(Path("/a"))) == {"where": "/a"}
    assert decode(Placed, {"where": "/a"}) == Placed(Path("/a"))


# Documents

names = st.binary(max_size=6).map(lambda name: name.decode("utf-8", "surrogateescape"))
keys = st.sampled_from(["path", "old_path", "why", "lines"])
# As documents have them: arrays of names, or of objects.
values = st.recursive(
    st.none() | st.integers() | names | st.lists(names, max_size=3),
    lambda inner: (
        st.dictionaries(keys, inner, max_size=3)
        | st.lists(st.dictionaries(keys, inner, max_size=3), max_size=3)
    ),
    max_leaves=8,
)


def test_a_document_is_an_object_with_its_version_first() -> None:
    assert document({"name": "app"}) == '{\n  "version": 1,\n  "name": "app"\n}'


def test_a_name_that_is_not_utf_8_has_its_bytes_beside_it() -> None:
    found = json.loads(document({"path": ODD, "left": [{"path": "b", "old_path": ODD}], "paths": ["c", ODD]}))
    exact = base64.b64encode(b"a\xffb").decode()
    assert found == {
        "version": 1,
        "path": "a\ufffdb",
        "path_bytes": exact,
        "left": [{"path": "b", "old_path": "a\ufffdb", "old_path_bytes": exact}],
        "paths": ["c", "a\ufffdb"],
        "paths_bytes": [base64.b64encode(b"c").decode(), exact],
    }


@given(st.dictionaries(st.sampled_from(["path", "changes", "left"]), values))
def test_every_reader_can_have_a_document_and_nothing_is_lost(value: dict[str, object]) -> None:
    text = document(value)
    found = json.loads(text)
    json.dumps(found, ensure_ascii=False).encode()
    del found["version"]
    assert restored(found) == value
    assert restored(lossless(value)) == value


def test_an_error_has_the_same_form_and_gives_its_names_back() -> None:
    error = UsageError("no", details={"untouched": [ODD], "refused": [{"path": ODD, "why": "x"}]})
    found = json.loads(error.as_text(as_json=True))
    assert (found["version"], found["error"]["refused"][0]["path"]) == (1, "a\ufffdb")
    assert error_from_json(found["error"]).details == error.details


def test_no_verb_writes_json_of_a_form_of_its_own() -> None:
    writers = {
        path.name
        for path in (PACKAGE / "cli").glob("*.py")
        if re.search(r"json\.dumps?\(", path.read_text(encoding="utf-8"))
    }
    # One writes a document in pieces, the other lines of the audit log.
    assert writers == {"diff.py", "log.py"}
