"""Does the view hold when its parts lie inside one another, on other filesystems, or under odd names?

Whatever might ask a daemon to answer itself runs in a process with a time limit.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.mount_driver import run_sandboxfs
from tests.support.mounted import eventually, run, serving
from tests.support.placed import PlacedMount, small_filesystem
from tests.support.tree import Symlink, Tree, assert_same_tree, build, capture


class Place(Protocol):
    def __call__(
        self, workspace: Path, view: Path, state: Path, name: str = ..., beside: Path | None = ...
    ) -> PlacedMount: ...


# Far longer than anything here takes: whatever does not end by then hangs.
QUICKLY = 60.0
TREE: Tree = {
    "file": "text\n",
    "dir/inner": "inner\n",
    "dir/deep/leaf": "leaf\n",
    "link": Symlink("file"),
}

# What find tells of it.
DEEP = ["./dir", "./dir/deep", "./dir/deep/leaf", "./dir/inner", "./file", "./link"]


@pytest.fixture
def place() -> Iterator[Place]:
    """Mounts wherever the test wants; the last one made is ended first."""
    with ExitStack() as stack:

        def made(
            workspace: Path, view: Path, state: Path, name: str = "test", beside: Path | None = None
        ) -> PlacedMount:
            return stack.enter_context(serving(PlacedMount(workspace, view, state, name, beside)))

        yield made


def found(root: Path) -> list[str]:
    """All paths below *root*, as find sees them."""
    return sorted(run("find", ".", "-mindepth", "1", cwd=root, timeout=QUICKLY).splitlines())


# The mountpoint inside the workspace: only where the runtime directory lies there


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: Place) -> Callable[[Tree], PlacedMount]:
    """Mounts a workspace of these files whose runtime directory is `run` in it."""

    def made(tree: Tree) -> PlacedMount:
        workspace = build(tmp_path / "ws", {**tree, "run/other": ""})
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(workspace / "run"))
        return place(workspace, workspace / VIEW, tmp_path / "state", beside=workspace / "run")

    return made


VIEW = "run/sandboxfs/mnt/test"


def test_a_mountpoint_inside_the_workspace_is_refused(tmp_path: Path) -> None:
    workspace = build(tmp_path / "ws", {**TREE, "dir/view/": ""})
    for view in (workspace / "dir/view", workspace / "new", workspace):
        done = run_sandboxfs("mount", "--mkdir", workspace, view, state=tmp_path / "state")
        assert done.returncode == 6
        assert f"cannot mount at '{view}': it " in done.stderr
        assert "hint: choose a place outside the workspace" in done.stderr
    assert not (workspace / "new").exists()


def test_the_own_mountpoint_shows_as_an_empty_directory(inside: Callable[[Tree], PlacedMount]) -> None:
    view = inside(TREE).root
    assert f"./{VIEW}" in found(view)
    assert run("ls", "-A", VIEW, cwd=view, timeout=QUICKLY) == ""
    assert "directory" in run("stat", VIEW, cwd=view, timeout=QUICKLY)


def test_nothing_can_be_made_in_or_done_to_the_own_mountpoint(inside: Callable[[Tree], PlacedMount]) -> None:
    view = inside(TREE).root
    own = view / VIEW
    attempts: list[Callable[[], object]] = [
        lambda: own.rmdir(),
        lambda: own.rename(view / "moved"),
        lambda: (view / "dir").rename(own),
        lambda: (own / "new").touch(),
        lambda: (own / "new").mkdir(),
        lambda: own.chmod(0o700),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as refused:
            attempt()
        assert refused.value.errno in (errno.EBUSY, errno.EACCES, errno.EROFS)
    assert (view / "file").read_text() == "text\n"


def test_removing_everything_in_the_view_leaves_only_the_mountpoint(
    inside: Callable[[Tree], PlacedMount],
) -> None:
    view = inside(TREE).root
    run("sh", "-c", "rm -rf ./*", cwd=view, status=1, timeout=QUICKLY)
    assert found(view) == ["./run", "./run/sandboxfs", "./run/sandboxfs/mnt", f"./{VIEW}"]


def test_tools_that_walk_the_view_do_not_fall_into_its_own_mountpoint(
    inside: Callable[[Tree], PlacedMount],
) -> None:
    view = inside(TREE).root
    run("cp", "-a", "run/sandboxfs/mnt", "copied", cwd=view, timeout=QUICKLY)
    assert found(view / "copied") == ["./test"]
    run("tar", "cf", "all.tar", "run/sandboxfs/mnt", "dir", "file", cwd=view, timeout=QUICKLY)
    assert "leaf" in run("grep", "-r", "leaf", "dir", "run/sandboxfs/mnt", cwd=view, timeout=QUICKLY)
    run("mv", "run/sandboxfs/mnt", "moved", cwd=view, timeout=QUICKLY)
    assert run("ls", "-A", "moved/test", cwd=view, timeout=QUICKLY) == ""


def test_walking_the_workspace_itself_enters_the_view_and_comes_back(
    inside: Callable[[Tree], PlacedMount],
) -> None:
    names = found(inside(TREE).lower)
    assert f"./{VIEW}/dir/deep/leaf" in names
    assert not any(f"{VIEW}/{VIEW}/" in name for name in names)


def test_two_sandboxes_whose_mountpoints_lie_in_each_others_workspace_do_not_wait_for_each_other(
    tmp_path: Path, place: Place
) -> None:
    left = build(tmp_path / "left", {**TREE, "two/": ""})
    right = build(tmp_path / "right", {**TREE, "one/": ""})
    one = place(left, right / "one", tmp_path / "state", "first", beside=left / "two")
    two = place(right, left / "two", tmp_path / "state", "second", beside=right / "one")
    for sandbox, other in ((one, "two"), (two, "one")):
        (sandbox.root / "file").write_text(f"changed by {sandbox.name}\n")
        # It is sealed when its daemon has heard of the mount.
        eventually(lambda: run("ls", "-A", other, cwd=sandbox.root, timeout=QUICKLY) == "", "it is sealed")  # noqa: B023
        names = found(sandbox.root)
        assert {f"./{other}", "./dir/deep/leaf"} <= set(names)
        assert not any(name.startswith(f"./{other}/") for name in names)
    assert (one.root / "file").read_text() == "changed by first\n"
    assert (two.root / "file").read_text() == "changed by second\n"
    found(left)
    found(right)
    run("sh", "-c", "rm -rf ./*", cwd=one.root, status=1, timeout=QUICKLY)
    assert (two.root / "dir/deep/leaf").read_text() == "leaf\n"


# The state directory inside the workspace


@pytest.mark.parametrize("where", [".state", ".cache/sandboxfs"])
def test_a_state_directory_inside_the_workspace_is_hidden(tmp_path: Path, place: Place, where: str) -> None:
    workspace = build(tmp_path / "ws", {**TREE, ".cache/other": "other\n"})
    state = workspace / where
    sandbox = place(workspace, tmp_path / "view", state, beside=state)
    (sandbox.root / "file").write_text("changed\n")
    inside = sandbox.root / where
    assert not any("state" in name or "sandboxfs" in name for name in found(sandbox.root))
    assert not inside.exists()
    with pytest.raises(FileNotFoundError):
        os.listdir(inside)
    with pytest.raises(FileNotFoundError):
        (inside / "sandboxes").stat()
    assert (state / "sandboxes/test/sandbox.toml").exists()


@pytest.mark.parametrize("where", [".state", ".cache/sandboxfs"])
def test_a_hidden_state_directory_can_be_neither_made_nor_taken_away(
    tmp_path: Path, place: Place, where: str
) -> None:
    workspace = build(tmp_path / "ws", {**TREE, ".cache/other": "other\n"})
    state = workspace / where
    sandbox = place(workspace, tmp_path / "view", state, beside=state)
    inside = sandbox.root / where
    making: list[Callable[[], object]] = [
        inside.mkdir,
        inside.touch,
        lambda: inside.symlink_to("file"),
        lambda: os.mkfifo(inside),
        lambda: os.link(sandbox.root / "file", inside),
        lambda: (sandbox.root / "file").rename(inside),
        lambda: (sandbox.root / "dir").rename(inside),
    ]
    for attempt in making:
        with pytest.raises(PermissionError):
            attempt()
    taking: list[Callable[[], object]] = [
        inside.rmdir,
        inside.unlink,
        lambda: inside.rename(sandbox.root / "moved"),
    ]
    for attempt in taking:
        with pytest.raises(FileNotFoundError):
            attempt()
    sandbox.remount()
    assert found(sandbox.root) == sorted([*DEEP, "./.cache", "./.cache/other"])


def test_removing_everything_in_the_view_does_not_reach_the_hidden_state(
    tmp_path: Path, place: Place
) -> None:
    workspace = build(tmp_path / "ws", {**TREE, ".cache/other": "other\n"})
    state = workspace / ".cache/sandboxfs"
    sandbox = place(workspace, tmp_path / "view", state, beside=state)
    run("sh", "-c", "rm -rf ./* ./.cache", cwd=sandbox.root, timeout=QUICKLY)
    assert os.listdir(sandbox.root) == []
    sandbox.remount()
    assert os.listdir(sandbox.root) == []


# Other filesystems


def exercise(sandbox: PlacedMount) -> None:
    """Change a bit of everything and see that it is there, now and on the next mount."""
    view = sandbox.root
    (view / "file").write_text("changed\n")
    (view / "dir/new").write_text("new\n")
    (view / "dir/deep").rename(view / "moved")
    (view / "dir/inner").unlink()
    os.link(view / "file", view / "hard")
    os.setxattr(view / "file", "user.test", b"value")
    wanted = {
        "./dir": None,
        "./dir/new": "new\n",
        "./file": "changed\n",
        "./hard": "changed\n",
        "./link": "changed\n",
        "./moved": None,
        "./moved/leaf": "leaf\n",
    }
    for _ in range(2):
        assert found(view) == sorted(wanted)
        assert {p: (view / p).read_text() for p, text in wanted.items() if text} == {
            p: text for p, text in wanted.items() if text
        }
        assert os.getxattr(view / "file", "user.test") == b"value"
        assert (view / "hard").stat().st_ino == (view / "file").stat().st_ino
        sandbox.remount()


def test_the_workspace_may_lie_on_another_filesystem_than_the_state(tmp_path: Path) -> None:
    with small_filesystem(tmp_path / "other") as other, ExitStack() as stack:
        sandbox = stack.enter_context(
            serving(PlacedMount(build(other / "ws", TREE), tmp_path / "view", tmp_path / "state"))
        )
        exercise(sandbox)


def test_the_state_may_lie_on_a_filesystem_of_memory(tmp_path: Path) -> None:
    with small_filesystem(tmp_path / "other") as other, ExitStack() as stack:
        sandbox = stack.enter_context(
            serving(PlacedMount(build(tmp_path / "ws", TREE), tmp_path / "view", other / "state"))
        )
        exercise(sandbox)


def test_filesystems_mounted_inside_the_workspace_are_part_of_the_view(tmp_path: Path) -> None:
    workspace = build(tmp_path / "ws", {**TREE, "mounted/": ""})
    with small_filesystem(workspace / "mounted") as inner, ExitStack() as stack:
        build(inner, {"there": "there\n", "sub/leaf": "leaf\n"})
        before = capture(inner)
        sandbox = stack.enter_context(serving(PlacedMount(workspace, tmp_path / "view", tmp_path / "state")))
        view = sandbox.root
        assert (view / "mounted/sub/leaf").read_text() == "leaf\n"
        (view / "mounted/there").write_text("changed\n")
        (view / "mounted/sub").rename(view / "dir/sub")
        (view / "mounted/there").rename(view / "there")
        (view / "file").rename(view / "mounted/file")
        (view / "dir/deep").rename(view / "mounted/deep")
        numbers = [os.lstat(view / name).st_ino for name in found(view)]
        assert len(set(numbers)) == len(numbers), "two files share a number"
        for _ in range(2):
            assert (view / "dir/sub/leaf").read_text() == "leaf\n"
            assert (view / "there").read_text() == "changed\n"
            assert sorted(os.listdir(view / "mounted")) == ["deep", "file"]
            assert (view / "mounted/deep/leaf").read_text() == "leaf\n"
            assert {os.lstat(view / name).st_dev for name in found(view)} == {view.stat().st_dev}
            sandbox.remount()
        assert [os.lstat(view / name).st_ino for name in found(view)] == numbers
        assert_same_tree(capture(inner), before, what="the filesystem inside")


def test_a_view_can_be_the_workspace_of_another_sandbox(tmp_path: Path, place: Place) -> None:
    workspace = build(tmp_path / "ws", TREE)
    first = place(workspace, tmp_path / "first", tmp_path / "state", "first")
    (first.root / "made").write_text("made\n")
    second = place(first.root, tmp_path / "second", tmp_path / "state", "second")
    (second.root / "made").write_text("changed\n")
    (second.root / "dir").rename(second.root / "moved")
    assert (first.root / "made").read_text() == "made\n"
    assert (second.root / "moved/deep/leaf").read_text() == "leaf\n"


# Permissions


CLOSED = {
    "secret": 0o000,
    "write-only": 0o200,
    "closed": 0o000,
    "search-only": 0o311,
    "list-only": 0o444,
}


@contextmanager
def closed_on_the_host(sandbox: PlacedMount) -> Iterator[None]:
    """Take the permissions away, and give them back unless something else has changed too."""
    before, modes = capture(sandbox.lower), {n: (sandbox.lower / n).stat().st_mode for n in CLOSED}
    for name, mode in CLOSED.items():
        (sandbox.lower / name).chmod(mode)
    try:
        yield
    finally:
        for name, mode in modes.items():
            (sandbox.lower / name).chmod(mode & 0o7777)
    assert_same_tree(capture(sandbox.lower), before, ignoring=frozenset({"ctime_ns"}), what="the workspace")
    sandbox.host_changed()


@pytest.fixture
def partly_closed(tmp_path: Path, place: Place) -> Iterator[PlacedMount]:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    tree: Tree = {
        "secret": "secret\n",
        "write-only": "text\n",
        "closed/inside": "inside\n",
        "search-only/known": "known\n",
        "list-only/seen": "seen\n",
        "open": "open\n",
    }
    sandbox = place(build(tmp_path / "ws", tree), tmp_path / "view", tmp_path / "state")
    with closed_on_the_host(sandbox):
        yield sandbox


def test_what_the_daemon_may_not_read_is_shown_and_refused(partly_closed: PlacedMount) -> None:
    view, workspace = partly_closed.root, partly_closed.lower
    assert sorted(os.listdir(view)) == sorted(os.listdir(workspace))
    for name in ("secret", "write-only"):
        assert (view / name).stat().st_size == (workspace / name).stat().st_size
        with pytest.raises(PermissionError):
            (view / name).read_bytes()
    for name in ("closed", "search-only"):
        with pytest.raises(PermissionError):
            os.listdir(view / name)
    for name in ("closed/inside", "list-only/seen"):
        with pytest.raises(PermissionError):
            (view / name).stat()
    assert (view / "search-only/known").read_text() == "known\n"
    assert (view / "open").read_text() == "open\n"


def test_a_file_that_the_daemon_may_not_read_can_be_replaced_and_removed(partly_closed: PlacedMount) -> None:
    view = partly_closed.root
    (view / "write-only").write_text("new\n")
    assert (view / "write-only").stat().st_size == 4
    (view / "secret").unlink()
    assert not (view / "secret").exists()
    (view / "secret").write_text("another\n")
    assert (view / "secret").read_text() == "another\n"


def test_what_would_copy_a_file_that_the_daemon_may_not_read_is_refused_whole(
    partly_closed: PlacedMount,
) -> None:
    view = partly_closed.root
    attempts: list[Callable[[], object]] = [
        lambda: os.open(view / "write-only", os.O_WRONLY | os.O_APPEND),
        lambda: (view / "secret").chmod(0o600),
        lambda: (view / "secret").rename(view / "renamed"),
        lambda: os.truncate(view / "write-only", 2),
    ]
    for attempt in attempts:
        with pytest.raises(PermissionError):
            attempt()
    assert os.listdir(partly_closed.upper) == []
    assert os.listdir(partly_closed.work) == []
    assert "renamed" not in os.listdir(view)


# Names


ODD = {
    "spaces": b"a  work space ",
    "a newline": b"work\nspace",
    "quotes and backslashes": b'it\'s "a" \\012 wo\\rkspace',
    "a comma and an equals sign": b"a,b=c:d",
    "invalid UTF-8": b"work\xff\xfespace",
    "a leading dash": b"-workspace",
    "non-ASCII": "Zürich 日本 🐍".encode(),
}


@pytest.mark.parametrize("kind", ODD)
def test_workspace_and_mountpoint_may_have_any_name(tmp_path: Path, place: Place, kind: str) -> None:
    name = os.fsdecode(ODD[kind])
    workspace = build(tmp_path / "host" / name, {**TREE, b"odd \xff\n": "odd\n"})
    sandbox = place(workspace, tmp_path / "views" / name, tmp_path / "state")
    (sandbox.root / "file").write_text("changed\n")
    sandbox.remount()
    assert (sandbox.root / "file").read_text() == "changed\n"
    assert (sandbox.root / os.fsdecode(b"odd \xff\n")).read_text() == "odd\n"
    for verb in ("list", "status"):
        for form in ([], ["--json"]):
            assert "test" in sandbox.command(verb, *form)


def test_a_state_directory_may_have_any_name(tmp_path: Path, place: Place) -> None:
    workspace = build(tmp_path / "ws", TREE)
    sandbox = place(workspace, tmp_path / "view", tmp_path / os.fsdecode(b"st\xffa te\n,:"))
    exercise(sandbox)


def test_a_workspace_given_through_a_symlink_is_the_one_it_led_to(tmp_path: Path, place: Place) -> None:
    workspace = build(tmp_path / "ws", TREE)
    link, view_link = tmp_path / "link", tmp_path / "view link"
    link.symlink_to("ws")
    view = tmp_path / "view"
    view.mkdir()
    view_link.symlink_to("view")
    done = run_sandboxfs("mount", "--name", "test", link, view_link, state=tmp_path / "state")
    assert done.returncode == 0, done.stderr
    done = run_sandboxfs("unmount", view_link, state=tmp_path / "state")
    assert done.returncode == 0, done.stderr
    # It is the same sandbox under its real name, and the link plays no part any more.
    link.unlink()
    link.symlink_to("elsewhere")
    sandbox = place(workspace, view, tmp_path / "state")
    (sandbox.root / "file").write_text("changed\n")
    assert (workspace / "file").read_text() == "text\n"


def test_a_workspace_that_is_moved_away_while_mounted_is_still_served(tmp_path: Path, place: Place) -> None:
    workspace = build(tmp_path / "ws", TREE)
    sandbox = place(workspace, tmp_path / "view", tmp_path / "state")
    moved = tmp_path / "moved"
    workspace.rename(moved)
    assert (sandbox.root / "dir/deep/leaf").read_text() == "leaf\n"
    (sandbox.root / "file").write_text("changed\n")
    sandbox.stop()
    moved.rename(workspace)
    sandbox.host_changed()
