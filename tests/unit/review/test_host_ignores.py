"""What git ignores on the host, with what it tracks, judged by `git check-ignore`; and when to ask anew."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.tree import DirTree
from sandboxfs.policy.compiled import Compiled, settle
from sandboxfs.policy.model import Mode, Policy, Rule, RuleCondition, RuleSource, SourceKind
from sandboxfs.review.host_ignores import HostIgnores, ignores_of, opened_ignores
from tests.unit.review.test_gitignore import GIT, entries, ignore_files

FILES = (b"a", b"b", b"ab/a", b"ab/b.o", b"foo/a.o", b"foo/bar/a", b"foo/bar/b.o", b"foo/ab/a")
RULE = Rule("**", Mode.DENY, RuleSource(SourceKind.USER), needs=RuleCondition.IGNORED)


@pytest.fixture(autouse=True, scope="module")
def no_settings_of_a_user() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in GIT.items():
            patch.setenv(name, value)
        yield


def git(top: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=top, check=True, capture_output=True)


def write(top: Path, name: bytes, text: bytes) -> None:
    path = top / os.fsdecode(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)


def ignored_by_git(top: Path, paths: list[bytes]) -> set[bytes]:
    asked = b"".join(path + b"\0" for path in paths)
    command = ["git", "check-ignore", "-z", "--stdin"]
    done = subprocess.run(command, input=asked, cwd=top, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return set(done.stdout.split(b"\0")) - {b""}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("template")
    git(top, "init", "-q", "--template=")
    for name in FILES:
        write(top, name, b"")
    return top


@settings(max_examples=60, deadline=None)
@given(
    root=ignore_files,
    nested=ignore_files,
    excluded=ignore_files,
    mine=ignore_files,
    tracked=st.frozensets(st.sampled_from(FILES), max_size=3),
)
def test_rules_about_ignored_paths_mean_what_git_ignores(
    template: Path,
    tmp_path_factory: pytest.TempPathFactory,
    root: bytes,
    nested: bytes,
    excluded: bytes,
    mine: bytes,
    tracked: frozenset[bytes],
) -> None:
    top = tmp_path_factory.mktemp("made") / "repository"
    shutil.copytree(template, top)
    write(top, b".gitignore", root)
    write(top, b"foo/.gitignore", nested)
    write(top, b".git/info/exclude", excluded)
    write(top, b".git/mine", mine)
    git(top, "config", "core.excludesFile", str(top / ".git/mine"))
    if tracked:
        git(top, "add", "-f", *map(os.fsdecode, tracked))
    # With names that nothing has yet.
    paths = entries(os.fsencode(top)) | {b"ab/new": False, b"foo/new/a": False, b"new.o": False}
    expected = ignored_by_git(top, list(paths))
    tree = DirTree(HostDir.at(top))
    ignores = HostIgnores(tree, (), os.fsencode(top), lambda: mine)
    assert {path for path, is_dir in paths.items() if ignores.ignored(path, is_dir)} == expected
    compiled = Compiled(Policy((RULE,)), str(top), ignores.ignored)
    assert {path for path, is_dir in paths.items() if is_denied(compiled, path, is_dir)} == expected
    assert not ignores.outdated()
    ignores.close()
    shutil.rmtree(top.parent)


def is_denied(compiled: Compiled, path: bytes, is_dir: bool) -> bool:
    """Walk as the overlay does: name by name."""
    state = compiled.start
    names = path.split(b"/")
    for depth, name in enumerate(names, start=1):
        here, directory = b"/".join(names[:depth]), is_dir or depth < len(names)
        step = compiled.step(state, name, directory)
        state = settle(step, partial(answer, compiled, here, directory))
    return state.decision.mode is Mode.DENY


def answer(compiled: Compiled, path: bytes, is_dir: bool, needs: RuleCondition) -> bool:
    return compiled.ignored(path, is_dir)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "repository"
    top.mkdir()
    git(top, "init", "-q", "--template=")
    write(top, b".gitignore", b"# first\n\n*.pem\nbuild/\n")
    return top


@pytest.fixture
def ignores(repository: Path) -> Iterator[HostIgnores]:
    found = ignores_of(repository, {b"masked"})
    yield found
    found.close()


def test_it_is_said_by_which_line_a_path_is_ignored(repository: Path, ignores: HostIgnores) -> None:
    write(repository, b"src/.gitignore", b"*.log\n")
    write(repository, b".git/info/exclude", b"mine\n")
    assert ignores.reason(b"a/key.pem", False) == ".gitignore:3 *.pem"
    assert ignores.reason(b"build/a/b", False) == ".gitignore:4 build/"
    assert ignores.reason(b"src/x.log", False) == "src/.gitignore:1 *.log"
    assert ignores.reason(b"src/x.c", False) is None
    with opened_ignores(repository, ()) as again:
        assert again.reason(b"mine", False) == ".git/info/exclude:1 mine"


def test_git_itself_is_never_ignored(repository: Path) -> None:
    write(repository, b".gitignore", b"*\n")
    with opened_ignores(repository, ()) as ignores:
        assert ignores.ignored(b"a", False)
        assert not ignores.ignored(b".git", True)
        assert not ignores.ignored(b".git/config", False)
        assert not ignores.ignored(b"sub/.git/config", False)
        assert not ignores.ignored(b"", True)


def test_what_is_masked_is_not_looked_at(repository: Path, ignores: HostIgnores) -> None:
    write(repository, b"masked/.gitignore", b"*\n")
    assert not ignores.ignored(b"masked/a", False)
    assert ignores.ignored(b"masked/a.pem", False)


def test_what_is_mounted_meanwhile_is_not_looked_at_either(repository: Path, ignores: HostIgnores) -> None:
    write(repository, b"sub/.gitignore", b"*.log\n")
    assert ignores.ignored(b"sub/a.log", False)
    ignores.mask([b"sub"])
    assert ignores.outdated()
    assert not ignores.ignored(b"sub/a.log", False)
    assert ignores.ignored(b"sub/a.pem", False)


def test_no_link_is_followed(repository: Path, tmp_path: Path, ignores: HostIgnores) -> None:
    write(tmp_path, b"elsewhere/.gitignore", b"*\n")
    (repository / "link").symlink_to(tmp_path / "elsewhere")
    (repository / "sub").mkdir()
    (repository / "sub/.gitignore").symlink_to(tmp_path / "elsewhere/.gitignore")
    assert not ignores.ignored(b"link/a", False)
    assert not ignores.ignored(b"sub/a", False)


def test_an_index_that_cannot_be_read_tracks_nothing(repository: Path) -> None:
    write(repository, b"key.pem", b"")
    git(repository, "add", "-f", "key.pem")
    with opened_ignores(repository, ()) as ignores:
        assert not ignores.ignored(b"key.pem", False)
    write(repository, b".git/index", b"damaged")
    with opened_ignores(repository, ()) as ignores:
        assert ignores.ignored(b"key.pem", False)


def test_it_is_outdated_when_the_host_changes_any_file_that_was_asked(repository: Path) -> None:
    def changed(make: str) -> bool:
        with opened_ignores(repository, ()) as ignores:
            assert not ignores.ignored(b"src/a/b.c", False)
            assert ignores.ignored(b"src/key.pem", False)
            assert not ignores.outdated()
            subprocess.run(["sh", "-c", make], cwd=repository, check=True)
            return ignores.outdated()

    (repository / "src/a").mkdir(parents=True)
    assert not changed("touch src/a/b.c src/other; git log -1 || true")
    assert changed("echo x >> .gitignore")
    assert changed("echo x > src/a/.gitignore")
    assert changed("rm src/a/.gitignore")
    assert changed("mkdir -p .git/info; echo x > .git/info/exclude")
    assert changed("touch src/x.pem; git add -f src/x.pem")
    assert changed("git init -q src/a")
    assert changed("mv src s2; mkdir -p src/a; echo x > src/.gitignore")


def test_a_lasting_answer_does_not_come_from_a_directory_that_was_renamed(
    repository: Path, ignores: HostIgnores
) -> None:
    write(repository, b"one/sub/.gitignore", b"*.one\n")
    assert ignores.ignored(b"one/sub/a.one", False)
    (repository / "one").rename(repository / "two")
    write(repository, b"one/sub/.gitignore", b"*.other\n")
    assert ignores.outdated()
    with opened_ignores(repository, ()) as again:
        assert not again.ignored(b"one/sub/a.one", False)
        assert again.ignored(b"two/sub/a.one", False)


@pytest.mark.parametrize("text", [b"gitdir: a\0b\n", b"gitdir: " + b"a/" * 9000 + b"\n", b"nothing", b""])
@pytest.mark.parametrize("place", [b"", b"sub/"])
def test_a_git_file_that_names_no_directory_tracks_nothing(tmp_path: Path, place: bytes, text: bytes) -> None:
    write(tmp_path, b".gitignore", b"*.pem\n")
    write(tmp_path, place + b".git", text)
    with opened_ignores(tmp_path, ()) as ignores:
        assert ignores.ignored(place + b"key.pem", False)
        assert not ignores.ignored(place + b"page", False)


def test_repositories_elsewhere_are_reached_as_the_caller_reaches(repository: Path, tmp_path: Path) -> None:
    def refuse(path: Path) -> HostDir:
        asked.append(path)
        raise OSError("not there")

    asked: list[Path] = []
    git(tmp_path, "init", "-q", "--template=", "--separate-git-dir=elsewhere", "repository/sub")
    write(repository, b"sub/key.pem", b"")
    git(repository / "sub", "add", "-f", "key.pem")
    with opened_ignores(repository, ()) as ignores:
        assert not ignores.ignored(b"sub/key.pem", False)
    with opened_ignores(repository, (), refuse) as ignores:
        assert ignores.ignored(b"sub/key.pem", False)
    assert asked == [tmp_path / "elsewhere"]


def test_no_index_is_read_that_is_too_large_with_those_before(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, b"key.pem", b"")
    git(repository, "add", "-f", "key.pem")
    for name in (b"one", b"two"):
        write(repository, name + b"/.git", b"gitdir: ../.git\n")
    size = (repository / ".git/index").stat().st_size
    monkeypatch.setattr("sandboxfs.review.git_files.LARGEST_INDEX", 2 * size)
    with opened_ignores(repository, ()) as ignores:
        assert not ignores.ignored(b"key.pem", False)
        assert not ignores.ignored(b"one/key.pem", False)
        assert ignores.ignored(b"two/key.pem", False)


def test_a_path_that_nobody_can_name_has_the_answer_of_the_directory_around_it(ignores: HostIgnores) -> None:
    deep = b"/".join([b"d" * 255] * 5000)
    assert not ignores.ignored(deep + b"/key.pem", False)
    assert ignores.ignored(b"build/" + deep, False)
    assert ignores.ignored(b"a/build/" + deep + b"/a", True)


def test_ignore_files_that_are_too_large_ignore_everything(repository: Path) -> None:
    half = b"nothing\n" * 10_000
    write(repository, b"one/.gitignore", half)
    write(repository, b"one/two/.gitignore", half)
    write(repository, b"whole/.gitignore", half + half)
    with opened_ignores(repository, ()) as ignores:
        assert not ignores.ignored(b"one/a", False)
        assert ignores.reason(b"one/two/a", False) == "one/two/.gitignore:0 (too large to be read)"
        assert ignores.ignored(b"whole/a/b", False)
        assert not ignores.ignored(b"whole", True)
        assert not ignores.ignored(b"a", False)
    write(repository, b".git/info/exclude", half + half)
    with opened_ignores(repository, ()) as ignores:
        assert ignores.ignored(b"a", False)


def test_an_ignore_file_that_is_no_file_is_none_and_not_waited_for(repository: Path) -> None:
    (repository / "sub").mkdir()
    os.mkfifo(repository / "sub/.gitignore")
    (repository / "dir/.gitignore").mkdir(parents=True)
    with opened_ignores(repository, ()) as ignores:
        assert ignores.ignored(b"sub/key.pem", False)
        assert not ignores.ignored(b"sub/a", False)
        assert not ignores.ignored(b"dir/a", False)


def test_what_is_remembered_is_bounded_however_many_names_a_program_makes(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxfs.review.gitignore._MOST_DIRECTORIES", 100)
    monkeypatch.setattr("sandboxfs.review.repositories._MOST_DIRECTORIES", 100)
    monkeypatch.setattr("sandboxfs.review.host_ignores._MOST_BYTES", 100_000)
    with opened_ignores(repository, ()) as ignores:
        for number in range(2000):
            assert not ignores.ignored(b"dir%d" % number, True)
            assert ignores.ignored(b"dir%d/a.pem" % number, False)
        assert len(ignores.rules._directories) <= 102
        assert len(ignores.rules._patterns) <= 102
        assert len(ignores.tracked._around) <= 102
        # Then everything is asked anew.
        assert ignores.outdated()
