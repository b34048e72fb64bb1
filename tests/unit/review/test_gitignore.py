"""Ignore rules, judged by `git check-ignore`."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxfs.review.gitignore import IgnoreRules, _expression

GIT = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
NAMES = (b"a", b"b", b"ab", b"a b", b"#a", b"!b", b"a.o", b"b ", b"[a]", b"\xff", b"-")
FOLDERS = (b"a", b"ab", b"b/a", b"b/ab/a", b"foo/bar")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A repository with every one of NAMES, as a file or a directory, in every one of FOLDERS."""
    top = os.fsencode(tmp_path_factory.mktemp("ignore"))
    subprocess.run(["git", "init", "-q", "--template="], cwd=top, env=GIT, check=True)
    os.makedirs(top + b"/.git/info", exist_ok=True)
    for folder in FOLDERS:
        os.makedirs(os.path.join(top, folder), exist_ok=True)
        for name in NAMES:
            place = os.path.join(top, folder, name)
            if not os.path.exists(place):
                Path(os.fsdecode(place)).touch()
    return top


def entries(top: bytes) -> dict[bytes, bool]:
    """Every path below *top*, and whether it is a directory; the ignore files themselves are left out."""
    found = {}
    for folder, folders, files in os.walk(top):
        if b".git" in folders:
            folders.remove(b".git")
        for name in folders + [name for name in files if name != b".gitignore"]:
            found[os.path.relpath(os.path.join(folder, name), top)] = name in folders
    return found


def ignored_by_git(top: bytes, paths: list[bytes]) -> set[bytes]:
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin"]
    asked = b"".join(path + b"\0" for path in paths)
    ended = subprocess.run(command, input=asked, cwd=top, env=GIT, capture_output=True, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    return set(ended.stdout.split(b"\0")) - {b""}


def compare(top: bytes, files: dict[bytes, bytes]) -> None:
    for name, text in files.items():
        Path(os.fsdecode(os.path.join(top, name))).write_bytes(text)
    paths = entries(top)
    rules = IgnoreRules(files.get, [(b"exclude", files.get(b".git/info/exclude", b""))])
    ours = {path for path, is_dir in paths.items() if rules.ignored(path, is_dir)}
    assert ours == ignored_by_git(top, list(paths))


WORDS = (b"a", b"b", b"ab", b"foo", b".o", b"\xff", b" ", b"\\ ", b"\t", b"!", b"#", b"\\", b"/", b"/")
STARS = (b"*", b"**", b"***", b"**/", b"/**", b"?")
BRACKETS = (b"[ab]", b"[!a]", b"[a-", b"]", b"[[:alpha:]]", b"[]a]", b"[^-a]", b"[[:x:]]", b"[[:]", b"[b-a]")
pieces = st.sampled_from(WORDS + STARS + BRACKETS)
patterns = st.builds(
    lambda start, middle, end: start + b"".join(middle) + end,
    st.sampled_from([b"", b"", b"!", b"/", b"\\!", b"\\#", b"#"]),
    st.lists(pieces, min_size=1, max_size=5),
    st.sampled_from([b"", b"", b"/", b" ", b"\r", b"\\ "]),
)
ignore_files = st.lists(patterns, max_size=4).map(b"\n".join)


@settings(max_examples=250, deadline=None)
@given(ignore_files, ignore_files, ignore_files)
@example(b"a/**\n!a/b", b"", b"")
@example(b"*\n!*/\n!*.o", b"", b"")
@example(b"foo**/bar\nb/a**/a", b"", b"")
@example(b"/*\n!/b\n/b/*\n!/b/ab", b"a b", b"*.o")
@example(b"\xef\xbb\xbfa\r\n#b\n\\#a\n\\!b\nb\\ ", b"!*.o", b"a.o")
def test_git_ignores_the_same_paths(tree: bytes, root: bytes, nested: bytes, excluded: bytes) -> None:
    compare(tree, {b".gitignore": root, b"b/.gitignore": nested, b".git/info/exclude": excluded})


def rules(**files: bytes) -> IgnoreRules:
    return IgnoreRules({b".gitignore": files.get("root"), b"d/.gitignore": files.get("d")}.get)


def test_file_below_an_ignored_directory_cannot_come_back() -> None:
    assert rules(root=b"d/\n!d/keep").ignored(b"d/keep", False)
    assert not rules(root=b"d/*\n!d/keep").ignored(b"d/keep", False)


def test_deeper_file_wins() -> None:
    assert not rules(root=b"*.o", d=b"!a.o").ignored(b"d/a.o", False)
    assert rules(root=b"!*.o", d=b"a.o").ignored(b"d/a.o", False)


def test_ignore_file_is_read_once_and_only_when_needed() -> None:
    asked: list[bytes] = []

    def reader(path: bytes) -> bytes | None:
        asked.append(path)
        return b"*.o\nd/" if path == b".gitignore" else None

    ignoring = IgnoreRules(reader)
    for _ in range(3):
        assert ignoring.ignored(b"d/e/f", False)
        assert not ignoring.ignored(b"x", False)
    assert asked == [b".gitignore"]


def test_hostile_pattern_and_deep_path_take_no_time() -> None:
    text = b"\n".join(
        [b"*a" * 60 + b"b", b"**/a/" * 40 + b"b", b"x/" + b"**\\/a*a" * 30 + b"b", b"?*" * 60 + b"b"]
    )
    began = time.process_time()
    ignoring = rules(root=text)
    assert not ignoring.ignored(b"a" * 250, False)
    assert not ignoring.ignored(b"a/" * 1500 + b"a", False)
    assert not ignoring.ignored(b"x/" + b"/".join([b"a" * 100] * 30), False)
    assert time.process_time() - began < 10


def test_a_pattern_becomes_no_expression_of_many_times_its_length() -> None:
    pattern = b"[!a]*[a-z0-9]*[[:graph:]]*" * 250
    expression = _expression(pattern)
    assert expression is not None
    assert len(expression) < 8 * len(pattern)
