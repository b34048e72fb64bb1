"""The mounted view, the walk by path and a plain model show the same tree for the same layers.

Random workspaces, and random uppers over them that nobody vouches for: whiteouts in both encodings, opaque
directories, hard links, redirects to directories, to files, to nothing, into redirected directories, and
damaged ones. The model merges nested dicts, from what state-format.md says about the marks.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.overlay.layers import LayerStack, OverlayPaths
from sandboxfs.overlay.lookup import Lookup
from sandboxfs.overlay.nodes import Directory
from sandboxfs.paths import joined
from sandboxfs.upper.marks import ABSENT, FILE, WHITEOUT, DirMarks, Index, NameState, Whiteouts
from sandboxfs.upper.resolve import AnsweringLayer, Resolved, resolve
from sandboxfs.upper.sandbox_layers import LayerPaths, open_layers
from sandboxfs.upper.unmounted import UnmountedUpper
from sandboxfs.upper.walk import MergedView, map_upper, shown_at

NAMES = (b"a", b"b", b"c")
DEPTH = 4
PATHS = [b"/".join(path) for depth in range(1, DEPTH + 1) for path in product(NAMES, repeat=depth)]
REDIRECTS = [*(b"/" + path for path in PATHS[:12]), *NAMES, b"/nowhere", b"/a/nowhere/b"]
DAMAGED = [b"/", b"", b"/..", b"..", b"/a//b", b"/a/", b"a/b", b"/a/./b", b"/" + b"n" * 300]


@dataclass(frozen=True)
class UpperFile:
    """All files of one number are one file."""

    number: int


@dataclass(frozen=True)
class UpperWhiteout:
    device: bool


@dataclass(frozen=True)
class UpperDir:
    entries: "dict[bytes, UpperFile | UpperWhiteout | UpperDir]"
    opaque: bytes | None
    redirect: bytes | None


LowerTree = dict[bytes, "int | LowerTree"]
"""A file is its number; all files of one number are one file."""
Shown = dict[bytes, "str | Shown"]
WHOLE: LowerTree = {
    name: {inner: {last: number for number, last in enumerate(NAMES)} for inner in NAMES} for name in NAMES
}


def lower_trees(depth: int) -> st.SearchStrategy[LowerTree]:
    file = st.integers(0, 5)
    entry: st.SearchStrategy[int | LowerTree] = lower_trees(depth - 1) | file if depth else file
    return st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, entry))


def upper_dirs(depth: int, *, devices: bool) -> st.SearchStrategy[UpperDir]:
    whiteout = st.builds(UpperWhiteout, st.just(True) if devices else st.booleans())
    entry: st.SearchStrategy[UpperFile | UpperWhiteout | UpperDir] = whiteout
    entry |= st.builds(UpperFile, st.integers(0, 5))
    if depth:
        entry = upper_dirs(depth - 1, devices=devices) | entry
    marks: st.SearchStrategy[tuple[bytes | None, bytes | None]]
    marks = st.sampled_from([(None, None)] * 4 + [(b"x", None), (b"y", None), (b"y", b"/a")])
    marks |= st.tuples(st.none(), st.sampled_from(REDIRECTS))
    marks |= st.tuples(st.none(), st.sampled_from(REDIRECTS) | st.sampled_from(DAMAGED))
    entries = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, entry))
    return st.builds(lambda entries, marked: UpperDir(entries, *marked), entries, marks)


# The model


def merged(upper: UpperDir, below: LowerTree | None, root: LowerTree) -> Shown:
    """What shows in a directory of the upper over the lower directory *below*."""
    shown = {} if below is None else {n: lower(e) for n, e in below.items() if n not in upper.entries}
    for name, entry in upper.entries.items():
        if isinstance(entry, UpperFile):
            shown[name] = f"upper {entry.number}"
        elif isinstance(entry, UpperDir):
            shown[name] = merged(entry, belonging(entry, name, below, root), root)
    return shown


def lower(entry: int | LowerTree) -> str | Shown:
    return f"lower {entry}" if isinstance(entry, int) else {n: lower(e) for n, e in entry.items()}


def belonging(
    directory: UpperDir, name: bytes, beside: LowerTree | None, root: LowerTree
) -> LowerTree | None:
    if directory.opaque == b"y" or directory.redirect in DAMAGED:
        return None
    names = [name] if directory.redirect is None else directory.redirect.lstrip(b"/").split(b"/")
    absolute = directory.redirect is not None and directory.redirect.startswith(b"/")
    found: int | LowerTree | None = root if absolute else beside
    for step in names:
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else None


# On disk


def make_lower(place: Path, tree: LowerTree, pool: Path) -> None:
    for name, entry in tree.items():
        path = place / os.fsdecode(name)
        if isinstance(entry, int):
            link(pool, f"lower {entry}", path)
        else:
            path.mkdir()
            make_lower(path, entry, pool)


def make_upper(place: Path, directory: UpperDir, pool: Path) -> None:
    for name, entry in directory.entries.items():
        path = place / os.fsdecode(name)
        match entry:
            case UpperFile(number):
                link(pool, f"upper {number}", path)
            case UpperWhiteout(device=True):
                os.mknod(path, stat.S_IFCHR, 0)
            case UpperWhiteout():
                path.touch()
                os.setxattr(path, "user.overlay.whiteout", b"y")
            case UpperDir():
                path.mkdir()
                make_upper(path, entry, pool)
                if entry.opaque is not None:
                    os.setxattr(path, "user.overlay.opaque", entry.opaque)
                if entry.redirect is not None:
                    os.setxattr(path, "user.overlay.redirect", entry.redirect)


def link(pool: Path, content: str, path: Path) -> None:
    kept = pool / content
    if not kept.exists():
        # Now and then empty, as a whiteout is.
        kept.write_text("" if content.endswith("0") else content)
    os.link(kept, path)


@dataclass(frozen=True)
class OnDisk:
    place: Path
    # Files by their inode number.
    contents: dict[int, str]

    def path(self, name: str) -> Path:
        return self.place / name


@contextmanager
def layers_on_disk(tree: LowerTree, upper: UpperDir) -> Iterator[OnDisk]:
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        for name in ("workspace", "upper", "work", "index", "baseline", "pool"):
            (place / name).mkdir()
        make_lower(place / "workspace", tree, place / "pool")
        make_upper(place / "upper", upper, place / "pool")
        yield OnDisk(place, {path.stat().st_ino: path.name for path in (place / "pool").iterdir()})


# The callers


@contextmanager
def mounted(disk: OnDisk, *, devices: bool) -> Iterator[Lookup]:
    paths = OverlayPaths([disk.path("workspace")], *map(disk.path, ("upper", "work", "index", "baseline")))
    stack = LayerStack(paths)
    stack.whiteouts = Whiteouts(devices=devices)
    lookup = Lookup(stack)
    try:
        yield lookup
    finally:
        lookup.fds.close()
        stack.close()


def seen_mounted(
    lookup: Lookup, directory: Directory, path: bytes, disk: OnDisk, origins: dict[bytes, bytes | None]
) -> Shown:
    """What the mounted view shows below *directory*; *origins* gets its directories' lower paths."""
    origins[path] = directory.origin if directory.lowers else None
    names = set(lookup.names(directory))
    shown: Shown = {}
    for name in NAMES:
        found = lookup.find(directory, name)
        assert (found is not None) == (name in names), (path, name)
        if found is None:
            continue
        if stat.S_ISDIR(found.stat.st_mode):
            # One lower directory may show in two places; each gets a node of its own here.
            inner = Directory(0, stat.S_IFDIR, directory, name)
            inner.upper, inner.lowers, inner.origin = found.upper, found.lowers, found.origin
            shown[name] = seen_mounted(lookup, inner, joined(path, name), disk, origins)
        else:
            shown[name] = disk.contents[found.stat.st_ino]
    return shown


def at(shown: Shown, path: bytes) -> "str | Shown | None":
    found: str | Shown | None = shown
    for name in path.split(b"/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def files(shown: Shown, top: bytes = b"") -> Iterator[tuple[bytes, str]]:
    for name, entry in shown.items():
        path = joined(top, name)
        if isinstance(entry, dict):
            yield from files(entry, path)
        else:
            yield path, entry


def check_by_path(disk: OnDisk, expected: Shown, origins: dict[bytes, bytes | None]) -> None:
    paths = LayerPaths(
        [disk.path("workspace")], disk.path("upper"), disk.path("index"), disk.path("baseline")
    )
    with open_layers(paths) as layers:
        for path in PATHS:
            model = at(expected, path)
            found = shown_at(layers.upper, layers.workspace, (), path)
            if isinstance(model, dict):
                assert found is not None, path
                assert stat.S_ISDIR(found[2].st_mode), path
            else:
                assert (None if found is None else disk.contents.get(found[2].st_ino)) == model, path
        upper = map_upper(layers)
        # A review takes what a redirect leads to as moved away; nothing that rename leaves shows it twice.
        if all(lower is None or upper.moved.get(lower, path) == path for path, lower in origins.items()):
            shown = {one.path: disk.contents[one.ino] for one in MergedView(layers, upper).below(b"")}
            assert shown == dict(files(expected))


def check_unmounted(lookup: Lookup, origins: dict[bytes, bytes | None]) -> None:
    stack = lookup.stack
    tree = UnmountedUpper(
        upper=stack.upper,
        workspace=stack.workspace,
        staging=stack.staging,
        index=Index(stack.index.directory, stack.staging),
        whiteouts=stack.whiteouts,
        baseline=None,
        lower_number=lambda _: 0,
    )
    for path, origin in origins.items():
        lower_path = tree.lower_of(path)
        if origin is not None:
            assert lower_path == origin, path
        elif lower_path is not None:
            with pytest.raises(OSError, match=r"No such|Not a directory"):
                stack.workspace.descend(lower_path)


@st.composite
def layers(draw: st.DrawFn) -> tuple[LowerTree, UpperDir, bool]:
    devices = draw(st.booleans())
    tree = draw(lower_trees(2) | st.just(WHOLE))
    return tree, draw(upper_dirs(2, devices=devices)), devices


def check(tree: LowerTree, upper: UpperDir, *, devices: bool) -> None:
    expected = merged(upper, tree, tree)
    with layers_on_disk(tree, upper) as disk, mounted(disk, devices=devices) as lookup:
        origins: dict[bytes, bytes | None] = {}
        assert seen_mounted(lookup, lookup.root, b"", disk, origins) == expected
        check_by_path(disk, expected, origins)
        check_unmounted(lookup, origins)


@given(layers())
def test_everybody_sees_the_same_in_any_upper(case: tuple[LowerTree, UpperDir, bool]) -> None:
    tree, upper, devices = case
    check(tree, upper, devices=devices)


def marked(opaque: bytes | None, redirect: bytes | None, **entries: UpperDir) -> UpperDir:
    return UpperDir({os.fsencode(name): entry for name, entry in entries.items()}, opaque, redirect)


CASES = {
    "a name beside it, in an opaque directory": marked(
        None, None, a=marked(b"y", None, b=marked(None, b"c"))
    ),
    "a name beside it, in a moved directory": marked(None, None, a=marked(None, b"/b", b=marked(None, b"c"))),
    "out of an opaque directory": marked(None, None, a=marked(b"y", None, b=marked(None, b"/c/a"))),
    "into a directory that moved too": marked(
        None, None, a=marked(None, b"/b/a"), b=marked(None, b"/c", a=marked(None, b"/a/b"))
    ),
    "opaque as well": marked(None, None, a=marked(b"y", b"/b", c=marked(None, None))),
    "damaged, with a moved directory in it": marked(
        None, None, a=marked(None, b"/..", b=marked(None, b"/b/b"))
    ),
}


@pytest.mark.parametrize("upper", CASES.values(), ids=CASES)
def test_everybody_follows_a_redirect_to_the_same_place(upper: UpperDir) -> None:
    check(WHOLE, upper, devices=True)


FOUND = DirMarks(opaque=False, redirect=None, ino=0)
OPAQUE = FOUND._replace(opaque=True)


@pytest.mark.parametrize(
    ("state", "parent", "answer", "lower_path"),
    [
        (ABSENT, b"", AnsweringLayer.LOWER, b"n"),
        (ABSENT, b"p", AnsweringLayer.LOWER, b"p/n"),
        (ABSENT, None, AnsweringLayer.NOTHING, None),
        (WHITEOUT, b"p", AnsweringLayer.WHITEOUT, None),
        (WHITEOUT, None, AnsweringLayer.WHITEOUT, None),
        (FILE, b"p", AnsweringLayer.UPPER, None),
        (FOUND, b"p", AnsweringLayer.UPPER, b"p/n"),
        (FOUND, None, AnsweringLayer.UPPER, None),
        (OPAQUE, b"p", AnsweringLayer.UPPER, None),
        (FOUND._replace(redirect=b"/x/y"), b"p", AnsweringLayer.UPPER, b"x/y"),
        (FOUND._replace(redirect=b"/x/y"), None, AnsweringLayer.UPPER, b"x/y"),
        (FOUND._replace(redirect=b"old"), b"p", AnsweringLayer.UPPER, b"p/old"),
        (FOUND._replace(redirect=b"old"), None, AnsweringLayer.UPPER, None),
        (OPAQUE._replace(redirect=b"/x"), b"p", AnsweringLayer.UPPER, None),
        (OPAQUE._replace(damaged=True), b"p", AnsweringLayer.UPPER, None),
    ],
)
def test_the_step(
    state: NameState, parent: bytes | None, answer: AnsweringLayer, lower_path: bytes | None
) -> None:
    resolved: Resolved = resolve(state, parent)
    assert resolved.answer is answer
    assert resolved.lower_path(parent, b"n") == lower_path
