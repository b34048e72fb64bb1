"""Do everyday tools do in the view what they do in a directory?

Where that can be told, the result is compared with what the same tool makes of a plain copy of the workspace.
"""

import os
import py_compile
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import conditions
from tests.support.mount_driver import MountDriver
from tests.support.mounted import run
from tests.support.tree import LONG_AGO, Fifo, File, HardLink, Symlink, Tree, assert_same_tree, build, capture
from tests.workloads.conftest import Mount

TREE: Tree = {
    **{f"src/package{number % 5}/module{number}.py": f"value = {number}\n" * 30 for number in range(60)},
    "src/script": File("#!/bin/sh\necho ran\n", mode=0o755),
    "data/binary": bytes(range(256)) * 500,
    "data/read-only": File("read-only\n", mode=0o444),
    "data/tagged": File("tagged\n", xattrs={"user.colour": b"red"}),
    "data/hard1": "hard\n",
    "data/hard2": HardLink("data/hard1"),
    "data/link": Symlink("binary"),
    "data/fifo": Fifo(),
    "notes.txt": "first line\nsecond line\nthird line\n",
}
# The change time is nobody's to keep; the count of a directory's links is every filesystem's own.
NOT_KEPT = frozenset({"ctime_ns", "nlink"})


@pytest.fixture
def sandbox(mount: Mount) -> MountDriver:
    return mount(TREE)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The workspace once more, outside the sandbox."""
    return build(tmp_path / "plain", TREE)


def check_same(view: Path, plain: Path, *more: str) -> None:
    assert_same_tree(capture(view), capture(plain), ignoring=NOT_KEPT | set(more), what="the view")


def test_tar_packs_the_view_and_unpacks_it_in_the_view(sandbox: MountDriver, plain: Path) -> None:
    conditions.require_tool("tar")
    run("tar", "--xattrs", "-czf", "../all.tgz", "src", "data", cwd=sandbox.lower)
    run("tar", "--xattrs", "-cf", "from the view.tar", "src", "data", cwd=sandbox.root)
    for name in ("../all.tgz", "from the view.tar"):
        archive = sandbox.lower / name if name.startswith("..") else sandbox.root / name
        target = sandbox.root / "unpacked"
        target.mkdir()
        run("tar", "--xattrs", "-xf", archive, cwd=target)
        check_same(target / "src", plain / "src")
        check_same(target / "data", plain / "data")
        # Over what is there already.
        run("tar", "--xattrs", "-xf", archive, cwd=target)
        check_same(target / "data", plain / "data")
        shutil.rmtree(target)


def test_cp_a_copies_everything_there_is_to_a_file(sandbox: MountDriver, plain: Path, tmp_path: Path) -> None:
    run("cp", "-a", "data", tmp_path / "out of the view", cwd=sandbox.root)
    check_same(tmp_path / "out of the view", plain / "data")
    run("cp", "-a", "data", "within", cwd=sandbox.root)
    check_same(sandbox.root / "within", plain / "data")
    assert (sandbox.root / "within/hard1").stat().st_nlink == 2
    # Onto the files of the workspace, which the view shows.
    run("cp", "-a", "--remove-destination", plain / "src", plain / "data", ".", cwd=sandbox.root)
    check_same(sandbox.root / "src", plain / "src")
    check_same(sandbox.root / "data", plain / "data")


def test_rsync_transfers_everything_once_and_nothing_the_second_time(
    sandbox: MountDriver, plain: Path, tmp_path: Path
) -> None:
    conditions.require_tool("rsync")
    ways = [
        (f"{plain}/", f"{sandbox.root}/synced/"),
        (f"{sandbox.root}/data/", f"{tmp_path}/out/"),
        (f"{sandbox.root}/src/", f"{sandbox.root}/within/"),
        # Onto the files of the workspace, which the view shows.
        (f"{plain}/", f"{sandbox.root}/"),
    ]
    for source, target in ways:
        run("rsync", "-aHX", source, target, cwd=tmp_path)
        assert run("rsync", "-aHX", "--itemize-changes", source, target, cwd=tmp_path) == ""
    check_same(sandbox.root / "synced", plain)
    check_same(tmp_path / "out", plain / "data")
    sandbox.remount()
    assert run("rsync", "-aHX", "--itemize-changes", *ways[0], cwd=tmp_path) == ""


def test_rsync_takes_away_what_is_not_in_its_source(
    sandbox: MountDriver, plain: Path, tmp_path: Path
) -> None:
    conditions.require_tool("rsync")
    shutil.rmtree(plain / "src/package1")
    (plain / "notes.txt").unlink()
    (plain / "data/new").write_text("new\n")
    for changed in (plain, plain / "src", plain / "data"):
        # rsync takes two times of the same second for one.
        os.utime(changed, ns=(LONG_AGO, LONG_AGO))
    run("rsync", "-aHX", "--delete", f"{plain}/", f"{sandbox.root}/", cwd=tmp_path)
    check_same(sandbox.root, plain)


# Editors


def save_by_rename(path: Path, text: str) -> None:
    """As VS Code and many others: a temporary file beside it, synced, takes the name."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    shutil.copystat(path, temporary)
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.close(directory)


def save_with_backup(path: Path, text: str) -> None:
    """As vim: the old file becomes the backup, a new one is written, the backup goes."""
    backup = path.with_name(path.name + "~")
    mode = path.stat().st_mode
    path.rename(backup)
    with open(path, "x") as file:
        file.write(text)
        os.fsync(file.fileno())
    path.chmod(mode & 0o7777)
    backup.unlink()


@pytest.mark.parametrize("save", [save_by_rename, save_with_backup])
def test_a_file_is_saved_atomically_again_and_again(sandbox: MountDriver, save: object) -> None:
    assert callable(save)
    for name in ("notes.txt", "src/script"):
        path = sandbox.root / name
        mode = path.stat().st_mode
        early = open(path, encoding="utf-8")  # noqa: SIM115 - stays open over all the saving
        before = (sandbox.lower / name).read_text()
        for number in range(20):
            save(path, f"version {number}\n")
            assert path.read_text() == f"version {number}\n"
        assert path.stat().st_mode == mode
        assert early.read() == before, "who had it open reads what it was"
        early.close()
        assert sorted(os.listdir(path.parent)) == sorted(os.listdir((sandbox.lower / name).parent))
    sandbox.remount()
    assert (sandbox.root / "notes.txt").read_text() == "version 19\n"
    assert [p.name for p in sandbox.upper.iterdir() if p.is_char_device()] == [], "a whiteout too many"


@pytest.mark.parametrize(
    "backup", ["nobackup nowritebackup", "backup writebackup backupcopy=no", "backupcopy=yes"]
)
def test_vim_edits_files_of_the_view(sandbox: MountDriver, backup: str) -> None:
    vim = shutil.which("vim.tiny") or conditions.require_tool("vim")
    for round_ in range(3):
        commands = (f"set {backup}", f"%s/line/row{round_}/", "wq")
        arguments = [word for command in commands for word in ("-c", command)]
        if round_:
            arguments[3] = f"%s/row{round_ - 1}/row{round_}/"
        run(vim, "-u", "NONE", "-es", *arguments, "notes.txt", cwd=sandbox.root)
        assert (sandbox.root / "notes.txt").read_text() == "".join(
            f"{word} row{round_}\n" for word in ("first", "second", "third")
        )
    assert set(os.listdir(sandbox.root)) - set(os.listdir(sandbox.lower)) <= {"notes.txt~"}


def test_sed_and_patch_edit_in_place(sandbox: MountDriver, plain: Path) -> None:
    conditions.require_tool("patch")
    (plain / "notes.txt").write_text("first line\nanother line\nthird line\n")
    difference = run("diff", "-u", sandbox.lower / "notes.txt", plain / "notes.txt", cwd=plain, status=1)
    assert "patching" in run("patch", "-b", "notes.txt", cwd=sandbox.root, text=difference)
    assert (sandbox.root / "notes.txt").read_text() == (plain / "notes.txt").read_text()
    assert (sandbox.root / "notes.txt.orig").read_text() == (sandbox.lower / "notes.txt").read_text()
    run("sh", "-c", "sed -i s/value/worth/ src/*/*.py", cwd=sandbox.root)
    run("sh", "-c", "sed -i s/value/worth/ src/*/*.py", cwd=plain)
    check_same(sandbox.root / "src", plain / "src", "mtime_ns")
    run("sed", "-i.bak", "s/first/1st/", "notes.txt", cwd=sandbox.root)
    assert (sandbox.root / "notes.txt").read_text().startswith("1st line")
    assert (sandbox.root / "notes.txt.bak").read_text().startswith("first line")


def test_compileall_compiles_once_and_finds_its_work_done(sandbox: MountDriver) -> None:
    command = (sys.executable, "-m", "compileall", "-j", "2", "src")
    assert run(*command, cwd=sandbox.root).count("Compiling") == 60
    assert "Compiling" not in run(*command, cwd=sandbox.root)
    sandbox.remount()
    assert "Compiling" not in run(*command, cwd=sandbox.root)
    (sandbox.root / "src/package0/module0.py").write_text("value = 'changed'\n")
    assert run(*command, cwd=sandbox.root).count("Compiling") == 1
    compiled = py_compile.compile(str(sandbox.root / "src/package1/module1.py"), doraise=True)
    assert compiled is not None
    assert Path(compiled).exists()


# Removing


def test_find_delete_removes_what_it_names(sandbox: MountDriver, plain: Path) -> None:
    for where in (sandbox.root, plain):
        run("find", ".", "-name", "*[02468].py", "-delete", cwd=where)
    check_same(sandbox.root, plain, "mtime_ns")
    run("find", ".", "-mindepth", "1", "-delete", cwd=sandbox.root)
    assert os.listdir(sandbox.root) == []
    sandbox.remount()
    assert os.listdir(sandbox.root) == []


def test_a_tree_removed_and_made_again_holds_only_what_is_new(sandbox: MountDriver) -> None:
    for round_ in range(3):
        run("rm", "-rf", "src", "data", cwd=sandbox.root)
        assert os.listdir(sandbox.root) == ["notes.txt"]
        (sandbox.root / "src/package1").mkdir(parents=True)
        (sandbox.root / "src/package1" / f"new{round_}.py").write_text("new\n")
        assert os.listdir(sandbox.root / "src") == ["package1"]
        assert os.listdir(sandbox.root / "src/package1") == [f"new{round_}.py"]
    sandbox.remount()
    assert run("find", "src", cwd=sandbox.root).split() == ["src", "src/package1", "src/package1/new2.py"]


def test_moving_a_tree_away_and_copying_it_back_gives_the_same_tree(
    sandbox: MountDriver, plain: Path
) -> None:
    for name in ("src", "data"):
        run("mv", name, f"{name}.old", cwd=sandbox.root)
        run("cp", "-a", f"{name}.old", name, cwd=sandbox.root)
        check_same(sandbox.root / name, plain / name)
        run("rm", "-rf", f"{name}.old", cwd=sandbox.root)
    sandbox.remount()
    for name in ("src", "data"):
        check_same(sandbox.root / name, plain / name)
    assert (sandbox.root / "notes.txt").stat().st_mtime_ns == LONG_AGO
