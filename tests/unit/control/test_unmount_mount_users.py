"""Who uses a mount is read from /proc alone. Here an ordinary filesystem stands in for the mount."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs.control.mount_table import Mount
from sandboxfs.control.unmount import users_elsewhere, users_of


@contextmanager
def process(script: str, folder: Path) -> Iterator[int]:
    """Run Python in *folder* until the block ends; the script has run when the block starts."""
    command = [sys.executable, "-c", f"{script}\nprint(flush=True)\ninput()"]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        try:
            yield started.pid
        finally:
            started.communicate(b"\n")


def place(folder: Path) -> Mount:
    """A mount at *folder* that has the id and the device of the filesystem that *folder* lies on."""
    descriptor = os.open(folder, os.O_RDONLY)
    info = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    os.close(descriptor)
    mount_id = int(info.split("mnt_id:\t")[1].split("\n")[0])
    device = os.stat(folder).st_dev
    return Mount(mount_id, f"{os.major(device)}:{os.minor(device)}", folder, "fuse.sandboxfs", "sandboxfs")


@pytest.mark.parametrize(
    ("script", "inside"),
    [
        ("", True),
        ("held = open('file')", True),
        ("import os; os.chdir('/'); held = os.open(FILE, os.O_RDONLY)", False),
    ],
)
def test_a_process_that_stands_in_a_mount_or_has_a_file_open_is_found(
    tmp_path: Path, script: str, inside: bool
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path if inside else Path("/")
    with process(script.replace("FILE", repr(str(tmp_path / "file"))), folder) as pid:
        found = {user.pid: user for user in users_of(place(tmp_path), besides=set())}
        assert pid in found
        assert found[pid].command == Path(sys.executable).name
        assert str(found[pid]) == f"{Path(sys.executable).name} (pid {pid})"
        assert pid not in {user.pid for user in users_of(place(tmp_path), besides={pid})}


def test_a_process_that_only_maps_a_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * mmap.PAGESIZE)
    script = "import mmap\nwith open('file', 'rb') as file: held = mmap.mmap(file.fileno(), 0, prot=1)\n"
    elsewhere = place(tmp_path)
    # No file descriptor and no directory leads there: an id and a place that nothing has.
    only_mapped = Mount(-1, elsewhere.device, Path("/nowhere"), elsewhere.fstype, elsewhere.source)
    with process(script, tmp_path) as pid:
        assert pid in {user.pid for user in users_of(only_mapped, besides=set())}


def test_who_uses_what_got_the_id_of_a_mount_that_is_gone_does_not_use_that(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    next_one = place(tmp_path)
    gone = Mount(next_one.mount_id, "511:1048575", Path("/nowhere"), "fuse.sandboxfs", "sandboxfs")
    with process("held = open('file')", tmp_path) as pid:
        assert pid in {user.pid for user in users_of(gone, besides=set())}
        assert users_elsewhere(gone, besides=set()) == []


def test_who_uses_what_got_the_device_of_a_mount_that_is_gone_does_not_use_that(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * mmap.PAGESIZE)
    gone = Mount(-1, place(tmp_path).device, Path("/nowhere"), "fuse.sandboxfs", "sandboxfs")
    script = "import mmap\nwith open('file', 'rb') as file: held = mmap.mmap(file.fileno(), 0, prot=1)\n"
    with process(script, tmp_path) as pid:
        assert pid in {user.pid for user in users_of(gone, besides=set())}
        assert users_elsewhere(gone, besides=set()) == []


def test_a_mount_that_nobody_uses_has_no_users() -> None:
    unused = Mount(-1, "511:1048575", Path("/nowhere"), "fuse.sandboxfs", "sandboxfs")
    assert users_of(unused, besides=set()) == []
