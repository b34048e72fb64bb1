"""The line of every key is found, however the document is written."""

import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.policy.toml import Key, key_lines

DOCUMENT = '''\
# [[rule]] in a comment
title = "[[rule]] in a string"   # path = "no"

[workspace] # note
root = """
[[rule]]
path = "inside a string"
"""
"mode" = 'rw = [[rule]]'

  [[ workspace . allow ]]
  path = "a"
[[rule]]
path = "x"
mode = "ro"

[[rule]]

mode = "rw"  # mode before path
path = \'\'\'
y\'\'\'
[ "quoted" . 'keys' ]
deep . er = 1
[[rule]]
path = "]["
mode = "hide"
[log]
list = [
  1, # ]
  "}", { path = "in", mode = { a = 1 } },
  [ 2,
    3 ],
]
inline = { "one" = 1, two.three = [ "x" ] }
"esc\\u0061ped" = 2
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("title",), 2),
        (("workspace",), 4),
        (("workspace", "root"), 5),
        (("workspace", "mode"), 9),
        (("workspace", "allow"), 11),
        (("workspace", "allow", 0), 11),
        (("workspace", "allow", 0, "path"), 12),
        (("rule", 0), 13),
        (("rule", 0, "path"), 14),
        (("rule", 0, "mode"), 15),
        (("rule", 1), 17),
        (("rule", 1, "mode"), 19),
        (("rule", 1, "path"), 20),
        (("quoted", "keys"), 22),
        (("quoted", "keys", "deep"), 23),
        (("quoted", "keys", "deep", "er"), 23),
        (("rule", 2), 24),
        (("rule", 2, "path"), 25),
        (("rule", 2, "mode"), 26),
        (("log", "list"), 28),
        (("log", "list", 0), 29),
        (("log", "list", 1), 30),
        (("log", "list", 2, "path"), 30),
        (("log", "list", 2, "mode", "a"), 30),
        (("log", "list", 3, 1), 32),
        (("log", "inline", "one"), 34),
        (("log", "inline", "two", "three", 0), 34),
        (("log", "escaped"), 35),
    ],
)
def test_the_line_of_a_key_is_found(key: Key, line: int) -> None:
    assert key_lines(DOCUMENT)[key] == line


def test_the_document_of_these_tests_is_one_that_the_parser_accepts_and_all_its_keys_are_found() -> None:
    # "quoted" is only named on the way to its "keys".
    assert keys(tomllib.loads(DOCUMENT)) - set(key_lines(DOCUMENT)) == {("quoted",)}


def keys(value: object, above: Key = ()) -> set[Key]:
    found: set[Key] = {above} if above else set()
    members: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        members += [(str(name), member) for name, member in value.items()]
    if isinstance(value, list):
        members += list(enumerate(value))
    for name, member in members:
        found |= keys(member, (*above, name))
    return found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "a=1",
        "a = \"\"\nb = ''\n",
        'a = """""" # x\nb = 1',
        'a = """x""""\nb = 1',
        'a = """x\\""""\nb = 1',
        "a = '''x'''''\nb = 1",
        'a = "\\\\"\nb = "#"',
        "a = [[1, 2], [3]]\nb = 1",
        "[[a]]\n[[a.b]]\nc = 1\n[[a.b]]\nc = 2\n[[a]]\n[[a.b]]\nc = 3",
        "[a.b]\nc = 1\n[a]\nd = 1979-05-27T07:32:00Z\ne = -inf",
        "a = {}\nb = []\nc = { d = [] }",
    ],
)
def test_every_key_of_a_document_is_found(text: str) -> None:
    lines = key_lines(text)
    expected = keys(tomllib.loads(text))
    # A table that is only named on the way to another one has no line of its own.
    assert expected - set(lines) <= {("a",)}
    assert set(lines) <= expected
    if ("b",) in lines:
        assert lines["b",] == text.split("b =")[0].count("\n") + 1


scalars = st.one_of(
    st.integers(),
    st.booleans(),
    st.text(),
    st.sampled_from(["[a]", "#", '"""', "'''", "x = 1\n"]),
)
names = st.one_of(st.sampled_from(["a", "b", "c"]), st.text(max_size=3))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names, values, max_size=4), st.booleans())
def test_every_key_of_a_random_document_is_found(document: dict[str, object], multiline: bool) -> None:
    text = tomli_w.dumps(document, multiline_strings=multiline)
    read = tomllib.loads(text)
    lines = key_lines(text)
    assert set(lines) <= keys(read)
    for key in keys(read) - set(lines):
        # Only a table that is named on the way to another one has no line of its own.
        assert any(len(other) > len(key) and other[: len(key)] == key for other in lines), key
    for key, line in lines.items():
        if isinstance(key[-1], str) and key[-1].isalnum() and key[-1].isascii():
            assert key[-1] in text.split("\n")[line - 1]


def test_elements_of_nested_arrays_of_tables_are_counted_in_their_own_parent() -> None:
    lines = key_lines("[[a]]\n[[a.b]]\nc = 1\n[[a.b]]\nc = 2\n[[a]]\n[[a.b]]\nc = 3")
    assert lines["a", 0, "b", 1, "c"] == 5
    assert lines["a", 1, "b", 0, "c"] == 8
