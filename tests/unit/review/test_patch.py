"""Patches, judged by the tools that have to take them: `git apply` and `patch -p1`."""

import os
import random
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.patch import FilePatch, change_hunks, load, patch, quote_name

FILE, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120777
Tree = dict[bytes, tuple[int, bytes]]
NOISE = random.Random(1).randbytes(3000)
LINES = b"".join(b"line %d\n" % number for number in range(40))
GIT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "HOME": "/nonexistent",
}


def plant(root: Path, tree: Tree) -> None:
    for name, (mode, content) in tree.items():
        place = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if stat.S_ISLNK(mode):
            os.symlink(content, place)
        else:
            with open(place, "wb") as file:
                file.write(content)
            os.chmod(place, mode & 0o777)


def harvest(root: Path) -> Tree:
    tree: Tree = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for name in files + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
            place = os.path.join(folder, name)
            mode = os.lstat(place).st_mode
            if stat.S_ISLNK(mode):
                tree[os.path.relpath(place, top)] = LINK, os.readlink(place)
            else:
                with open(place, "rb") as file:
                    tree[os.path.relpath(place, top)] = (EXECUTABLE if mode & 0o100 else FILE), file.read()
    return tree


def kind_of(old: tuple[int, bytes] | None, new: tuple[int, bytes] | None) -> ChangeKind:
    if old is None or new is None:
        return ChangeKind.ADDED if old is None else ChangeKind.DELETED
    if stat.S_IFMT(old[0]) != stat.S_IFMT(new[0]):
        return ChangeKind.TYPE
    return ChangeKind.MODE if old[1] == new[1] else ChangeKind.MODIFIED


def changes(old: Tree, new: Tree, renamed: dict[bytes, bytes]) -> list[FilePatch]:
    """Every difference between two trees; *renamed* gives the old names of new ones."""
    found = []
    for name in sorted((old.keys() | new.keys()) - set(renamed.values())):
        source = renamed.get(name, name)
        before, after = old.get(source), new.get(name)
        if before == after and source == name:
            continue
        old_mode, old_bytes = before or (None, b"")
        new_mode, new_bytes = after or (None, b"")
        kind, old_path = (ChangeKind.RENAMED, source) if source != name else (kind_of(before, after), None)
        found.append(FilePatch(name, kind, old_mode, new_mode, old_bytes, new_bytes, old_path))
    return found


def check(command: list[str], text: bytes, old: Tree, new: Tree, root: Path) -> None:
    """Let *command* apply the patch *text* to *old* in *root*, and find *new* there."""
    root.mkdir()
    plant(root, old)
    ended = subprocess.run(command, input=text, cwd=root, env=GIT, capture_output=True, check=False)
    said = ended.stdout.decode(errors="replace") + ended.stderr.decode(errors="replace")
    assert ended.returncode == 0, said + text.decode(errors="replace")
    assert harvest(root) == new
    shutil.rmtree(root)


CASES: dict[str, tuple[Tree, Tree]] = {
    "added": ({}, {b"dir/a": (FILE, LINES)}),
    "added executable": ({}, {b"a": (EXECUTABLE, b"#!/bin/sh\n")}),
    "added empty": ({}, {b"a": (FILE, b"")}),
    "added without newline": ({}, {b"a": (FILE, b"x")}),
    "deleted": ({b"a": (FILE, LINES), b"b": (FILE, b"")}, {b"b": (FILE, b"")}),
    "deleted empty": ({b"a": (FILE, b""), b"b": (FILE, b"")}, {b"b": (FILE, b"")}),
    "modified": ({b"a": (FILE, LINES)}, {b"a": (FILE, LINES.replace(b"line 7\n", b"7\nseven\n"))}),
    "modified in two places": (
        {b"a": (FILE, LINES)},
        {b"a": (FILE, LINES.replace(b"line 7\n", b"").replace(b"line 30\n", b"line thirty\n"))},
    ),
    "emptied": ({b"a": (FILE, LINES)}, {b"a": (FILE, b"")}),
    "filled": ({b"a": (FILE, b"")}, {b"a": (FILE, b"x\n")}),
    "newline added at end": ({b"a": (FILE, b"x\ny")}, {b"a": (FILE, b"x\ny\n")}),
    "newline removed at end": ({b"a": (FILE, b"x\ny\n")}, {b"a": (FILE, b"x\ny")}),
    "never a newline at end": ({b"a": (FILE, b"x\ny\nz")}, {b"a": (FILE, b"w\ny\nz")}),
    "carriage returns": ({b"a": (FILE, b"x\r\ny\r\nz\r\n")}, {b"a": (FILE, b"x\r\nY\r\nz\r\n")}),
    "carriage returns added": ({b"a": (FILE, b"x\ny\n")}, {b"a": (FILE, b"x\r\ny\r\n")}),
    "lone carriage returns": ({b"a": (FILE, b"x\ry\rz\n")}, {b"a": (FILE, b"x\rY\rz\n")}),
    "lines that look like a patch": (
        {b"a": (FILE, b"-- old\n++ new\n@@ -1 +1 @@\n")},
        {b"a": (FILE, b"-- new\n++ old\ndiff --git a/x b/x\n")},
    ),
    "made executable": ({b"a": (FILE, LINES)}, {b"a": (EXECUTABLE, LINES)}),
    "made executable and modified": ({b"a": (FILE, LINES)}, {b"a": (EXECUTABLE, LINES + b"more\n")}),
    "symlink added": ({}, {b"l": (LINK, b"to/nowhere")}),
    "symlink deleted": ({b"l": (LINK, b"to"), b"b": (FILE, b"x")}, {b"b": (FILE, b"x")}),
    "symlink turned": ({b"l": (LINK, b"here")}, {b"l": (LINK, b"there")}),
    "file to symlink": ({b"a": (FILE, LINES)}, {b"a": (LINK, b"target")}),
    "symlink to file": ({b"a": (LINK, b"target")}, {b"a": (EXECUTABLE, LINES)}),
    "spaces in names": (
        {b"a b/c d": (FILE, LINES)},
        {b"a b/c d": (FILE, b"0\n" + LINES), b"e f": (FILE, b"x\n")},
    ),
    "letters in names": ({}, {"größe/語".encode(): (FILE, LINES)}),
}
STRANGE = (
    b'quo"te',
    b"new\nline",
    b"tab\there",
    b"back\\slash",
    b"\x07",
    b"d/\xff\xfe",
    b"\x7f",
    b" a",
    b"a ",
)
ODD_NAMES: dict[str, tuple[Tree, Tree]] = {
    repr(name): ({name: (FILE, LINES)}, {name: (FILE, LINES + b"x\n"), name + b"2": (FILE, b"y\n")})
    for name in STRANGE
}
BINARY: dict[str, tuple[Tree, Tree]] = {
    "added": ({}, {b"a": (FILE, NOISE)}),
    "deleted": ({b"a": (FILE, NOISE), b"b": (FILE, b"")}, {b"b": (FILE, b"")}),
    "modified": ({b"a": (FILE, NOISE)}, {b"a": (EXECUTABLE, NOISE[:1000] + b"\0" + NOISE[900:])}),
    "text to binary": ({b"a": (FILE, LINES)}, {b"a": (FILE, b"\0" * 100_000)}),
    "binary to empty": ({b"a": (FILE, b"\0")}, {b"a": (FILE, b"")}),
    "odd name": ({b'a "b\n': (FILE, NOISE)}, {b'a "b\n': (FILE, NOISE[1:])}),
}


@pytest.mark.parametrize("case", CASES | ODD_NAMES)
def test_git_applies_the_patch_and_takes_it_back(case: str, tmp_path: Path) -> None:
    old, new = (CASES | ODD_NAMES)[case]
    text = b"".join(patch(change) for change in changes(old, new, {}))
    check(["git", "apply", "-"], text, old, new, tmp_path / "forth")
    check(["git", "apply", "-R", "-"], text, new, old, tmp_path / "back")


@pytest.mark.parametrize("case", CASES)
def test_patch_applies_the_patch(case: str, tmp_path: Path) -> None:
    old, new = CASES[case]
    text = b"".join(patch(change) for change in changes(old, new, {}))
    check(["patch", "-p1", "--binary", "--no-backup-if-mismatch"], text, old, new, tmp_path / "forth")


@pytest.mark.parametrize("context", [0, 1, 10])
def test_any_amount_of_context_is_applied(context: int, tmp_path: Path) -> None:
    old, new = CASES["modified in two places"]
    text = b"".join(patch(change, context) for change in changes(old, new, {}))
    check(["git", "apply", "--unidiff-zero", "-"], text, old, new, tmp_path / "forth")


@pytest.mark.parametrize("case", BINARY)
def test_git_applies_the_binary_patch_and_takes_it_back(case: str, tmp_path: Path) -> None:
    old, new = BINARY[case]
    text = b"".join(patch(change, binary=True) for change in changes(old, new, {}))
    check(["git", "apply", "--binary", "-"], text, old, new, tmp_path / "forth")
    check(["git", "apply", "-R", "--binary", "-"], text, new, old, tmp_path / "back")


def test_binary_content_is_only_said_to_differ() -> None:
    text = patch(FilePatch(b"a b", ChangeKind.MODIFIED, FILE, FILE, b"\0", b"\1\0"))
    assert text == b'# Binary files "a/a b" and "b/a b" differ\n'
    assert change_hunks(FilePatch(b"a", ChangeKind.MODIFIED, FILE, FILE, b"\0", b"\1\0")) == []


UNCARRIED: dict[str, tuple[Tree, Tree]] = {
    "added": ({}, {b"b": (FILE, NOISE)}),
    "deleted": ({b"b": (FILE, NOISE)}, {}),
    "modified": ({b"b": (FILE, NOISE)}, {b"b": (EXECUTABLE, NOISE[1:])}),
    "in place of a symlink": ({b"b": (LINK, b"a")}, {b"b": (FILE, NOISE)}),
    "with an odd name": ({b"b \n": (FILE, NOISE)}, {b"b \n": (FILE, NOISE[1:])}),
}


@pytest.mark.parametrize("command", [["git", "apply", "-"], ["patch", "-p1"]], ids=["git", "patch"])
@pytest.mark.parametrize("case", UNCARRIED)
def test_binary_file_that_the_patch_only_names_is_passed_over_and_the_rest_is_applied(
    case: str, command: list[str], tmp_path: Path
) -> None:
    before, after = UNCARRIED[case]
    texts: Tree = {b"a": (FILE, LINES), b"c": (FILE, LINES)}
    edited: Tree = {b"a": (FILE, b"x\n" + LINES), b"c": (FILE, LINES + b"x\n")}
    text = b"".join(patch(change) for change in changes(texts | before, edited | after, {}))
    check(command, text, texts | before, edited | before, tmp_path / "tree")


HEADERS_ONLY: dict[str, tuple[Tree, Tree, dict[bytes, bytes]]] = {
    "an empty file added": ({}, {b"a": (FILE, b"")}, {}),
    "an empty file deleted": ({b"a": (FILE, b"")}, {}, {}),
    "a file made executable": ({b"a": (FILE, LINES)}, {b"a": (EXECUTABLE, LINES)}, {}),
    "a file renamed": ({b"o": (FILE, LINES)}, {b"a": (FILE, LINES)}, {b"a": b"o"}),
}


@pytest.mark.parametrize("command", [["git", "apply", "-"], ["patch", "-p1"]], ids=["git", "patch"])
@pytest.mark.parametrize("binary", UNCARRIED)
@pytest.mark.parametrize("case", HEADERS_ONLY)
def test_binary_file_that_the_patch_only_names_takes_nothing_from_a_header_before_it(
    case: str, binary: str, command: list[str], tmp_path: Path
) -> None:
    old, new, renamed = HEADERS_ONLY[case]
    before, after = UNCARRIED[binary]
    # GNU patch removes a directory that it empties.
    rest: Tree = {b"z": (FILE, LINES)}
    found = changes(old | before | rest, new | after | rest, renamed)
    assert found[0].path == b"a"
    check(command, b"".join(map(patch, found)), old | before | rest, new | before | rest, tmp_path / "tree")


RENAMES: dict[str, tuple[Tree, Tree]] = {
    "as it was": ({b"a": (FILE, LINES)}, {b"d/b": (FILE, LINES)}),
    "with edits": ({b"a": (FILE, LINES)}, {b"d/b": (FILE, LINES.replace(b"line 3\n", b"three\n"))}),
    "and made executable": ({b"a": (FILE, LINES)}, {b"d/b": (EXECUTABLE, LINES)}),
    "of a symlink": ({b"a": (LINK, b"to")}, {b"d/b": (LINK, b"to")}),
}


@pytest.mark.parametrize("command", [["git", "apply", "-"], ["patch", "-p1"]], ids=["git", "patch"])
@pytest.mark.parametrize("case", RENAMES)
def test_rename_is_applied(case: str, command: list[str], tmp_path: Path) -> None:
    old, new = RENAMES[case]
    text = b"".join(patch(change) for change in changes(old, new, {b"d/b": b"a"}))
    assert (b"\nrename from a\nrename to d/b\n" in text) == (case != "of a symlink")
    assert (b"similarity index 100%" in text) == (case in ("as it was", "and made executable"))
    check(command, text, old, new, tmp_path / "forth")


def test_rename_of_binary_and_oddly_named_files_is_applied(tmp_path: Path) -> None:
    old, new = {b'a\n"': (FILE, NOISE)}, {b"b \xff": (FILE, NOISE + b"x")}
    text = b"".join(patch(change, binary=True) for change in changes(old, new, {b"b \xff": b'a\n"'}))
    check(["git", "apply", "--binary", "-"], text, old, new, tmp_path / "forth")


def test_files_and_directories_can_take_each_others_place(tmp_path: Path) -> None:
    folder = stat.S_IFDIR | 0o755
    old = {b"a": (FILE, LINES), b"b/c": (FILE, b"x\n"), b"b/d": (FILE, b"d\n" + LINES)}
    new = {b"a/e": (FILE, LINES), b"b": (FILE, b"b\n"), b"f": (FILE, b"d\n" + LINES)}
    found = [
        FilePatch(b"a", ChangeKind.TYPE, FILE, folder, LINES),
        FilePatch(b"a/e", ChangeKind.ADDED, None, FILE, b"", LINES),
        FilePatch(b"b", ChangeKind.TYPE, folder, FILE, b"", b"b\n"),
        FilePatch(b"b/c", ChangeKind.DELETED, FILE, None, b"x\n"),
        FilePatch(b"f", ChangeKind.RENAMED, FILE, FILE, b"d\n" + LINES, b"d\n" + LINES, old_path=b"b/d"),
    ]
    for order in (found, found[::-1]):
        check(["git", "apply", "-"], b"".join(map(patch, order)), old, new, tmp_path / "forth")


def test_what_git_cannot_say_gives_no_text() -> None:
    folder, pipe = stat.S_IFDIR | 0o755, stat.S_IFIFO | 0o644
    assert patch(FilePatch(b"d", ChangeKind.ADDED, None, folder)) == b""
    assert patch(FilePatch(b"p", ChangeKind.TYPE, folder, pipe)) == b""
    assert patch(FilePatch(b"f", ChangeKind.MODE, 0o100644, 0o100600, b"x", b"x")) == b""


def test_file_that_became_a_directory_is_deleted() -> None:
    text = patch(FilePatch(b"a", ChangeKind.TYPE, FILE, stat.S_IFDIR | 0o755, b"x\n"))
    assert text.startswith(b"diff --git a/a b/a\ndeleted file mode 100644\n")
    assert b"new file" not in text


def test_hunks_of_a_change_are_those_of_its_patch_and_none_for_a_change_of_type() -> None:
    change = FilePatch(b"a", ChangeKind.MODIFIED, FILE, FILE, LINES, LINES.replace(b"line 7\n", b"seven\n"))
    (hunk,) = change_hunks(change)
    assert patch(change).endswith(b"+++ b/a\n" + hunk.text)
    assert change_hunks(FilePatch(b"a", ChangeKind.TYPE, FILE, LINK, LINES, b"target")) == []


def test_content_that_did_not_change_is_not_read() -> None:
    def content() -> bytes:
        raise AssertionError("read")

    old, new = (side(mode, content) for mode in (FILE, EXECUTABLE))
    mode = PathChange(b"a", ChangeKind.MODE, old, new, None, b"a")
    assert patch(load(mode)).endswith(b"\nnew mode 100755\n")
    renamed = PathChange(b"b", ChangeKind.RENAMED, old, old, None, b"a", b"a")
    assert b"100%" in patch(load(renamed))


def side(mode: int, content: Callable[[], bytes]) -> Version:
    return Version(mode, 1, 0, 0, 0, 0, 1, 1, 1, read=content)


def test_headers_are_those_git_writes(tmp_path: Path) -> None:
    old, new = CASES["modified in two places"]
    for side, tree in (("a", old), ("b", new)):
        (tmp_path / side).mkdir()
        plant(tmp_path / side, tree)
    command = ["git", "diff", "--no-index", "--no-prefix", "a/a", "b/a"]
    ended = subprocess.run(command, cwd=tmp_path, env=GIT, capture_output=True, check=False)
    assert patch(changes(old, new, {})[0]) == ended.stdout


NAMES = [
    b"plain", b"a b", b"two  spaces", b"end ", b" start", b" ", b"t\tab", b"nl\nx", b"\n", b'quo"te',
    b"back\\slash", b"\\n", b"\xff\xfe", "caf\u00e9".encode(), b"a/b", b"b/a", b"a/a/b", b" b/c", b"x b/x",
    b"x b/y",
    b"a/x b/a/x", b"-dash", b"--- a", b"+++", b"-p1", b"dev/null", b"dir /file", b"dir/ file", b"\r", b"cr\r",
    b"x\t",
    b"2020-01-01 00:00:00", b"a b\t2020", b"' '", b"$x`id`", b"*", b"[a]", b"~", b"a\x01b", b"\x7f",
    b"x b/x b/x b/x",
    "\u202ex".encode(), b"Binary files a/a and b/a differ", b"# Binary files",
    b"# sandboxfs: x", b"new file mode 100644",
]  # fmt: skip
# What happens to a file of each name: none of these have the same headers.
DEEDS: dict[str, tuple[tuple[int, bytes] | None, tuple[int, bytes] | None]] = {
    "added": (None, (FILE, b"x\n")),
    "added empty": (None, (FILE, b"")),
    "deleted": ((FILE, b"x\n"), None),
    "deleted empty": ((FILE, b""), None),
    "modified": ((FILE, b"x\n"), (FILE, b"y\n")),
    "made executable": ((FILE, b""), (EXECUTABLE, b"")),
    "symlink added": (None, (LINK, b"to")),
}


@pytest.mark.parametrize("command", [["git", "apply", "-"], ["patch", "-p1"]], ids=["git", "patch"])
@pytest.mark.parametrize("deed", DEEDS)
def test_any_name_is_read_as_it_is_written(deed: str, command: list[str], tmp_path: Path) -> None:
    before, after = DEEDS[deed]
    for number, name in enumerate(NAMES):
        other: Tree = {b"other": (FILE, b"o\n")}
        old = other | ({name: before} if before else {})
        new = other | ({name: after} if after else {})
        text = b"".join(patch(change) for change in changes(old, new, {}))
        check(command, text, old, new, tmp_path / str(number))


@pytest.mark.parametrize("command", [["git", "apply", "-"], ["patch", "-p1"]], ids=["git", "patch"])
@pytest.mark.parametrize("content", [b"x\n", b""], ids=["text", "empty"])
def test_any_name_can_be_an_end_of_a_rename(content: bytes, command: list[str], tmp_path: Path) -> None:
    for number, name in enumerate(NAMES[1:]):
        for source, target in ((b"s", name), (name, b"t")):
            old: Tree = {b"other": (FILE, b"o\n"), source: (FILE, content)}
            new: Tree = {b"other": (FILE, b"o\n"), target: (FILE, content)}
            text = b"".join(patch(change) for change in changes(old, new, {target: source}))
            check(command, text, old, new, tmp_path / f"{number}-{target == name}")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (b"plain name", b"a/plain name"),
        (b'"\\\n', b'"a/\\"\\\\\\n"'),
        (b"\x01\x7f", b'"a/\\001\\177"'),
        ("é".encode(), "a/é".encode()),
        ("\u202e".encode(), b'"a/\\342\\200\\256"'),
        ("é".encode() + b"\xff", b'"a/\\303\\251\\377"'),
    ],
)
def test_names_are_quoted_as_git_quotes_them(name: bytes, written: bytes) -> None:
    assert quote_name(name, b"a/") == written


contents = st.lists(st.sampled_from([b"a\n", b"b\r\n", b"c\n", b"-- d\n", b"\n", b"e"]), max_size=12).map(
    b"".join
)
entries = st.one_of(
    st.tuples(st.sampled_from([FILE, EXECUTABLE]), contents),
    st.tuples(st.just(LINK), st.sampled_from([b"a", b"../b", b"c d\n"])),
    st.tuples(st.just(FILE), st.binary(min_size=1, max_size=80)),
)
trees = st.dictionaries(st.sampled_from([b"a", b"b c", b"d/e", b"d/\xe9\n", b'f"/g']), entries, max_size=5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees, trees)
def test_patch_of_a_random_tree_gives_the_other_tree(tmp_path: Path, old: Tree, new: Tree) -> None:
    text = b"".join(patch(change, binary=True) for change in changes(old, new, {}))
    if text:
        shutil.rmtree(tmp_path / "tree", ignore_errors=True)
        check(["git", "apply", "--binary", "-"], text, old, new, tmp_path / "tree")
