"""Does a program that is attended to find every call as it would be without, in its places and nowhere else?

The same calls are made twice in trees that are alike: by a process that is left alone, and by one whose calls
are handed over.
"""

import ctypes
import errno
import json
import os
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.confine import attribute_calls, kernel_calls, seccomp
from sandboxfs.confine.attribute_calls import Attendant, possible
from sandboxfs.confine.seccomp import MACHINES
from tests.support.tree import File, Symlink, build

MACHINE = os.uname().machine
AT_FDCWD, NOFOLLOW, EMPTY = -100, 0x100, 0x1000
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2
libc = ctypes.CDLL(None, use_errno=True)
Words = tuple[object, ...]


def call(name: str, *arguments: object) -> int:
    """Make a call by its name; 0, or the error."""
    (number,) = MACHINES[MACHINE][0].having(name)
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return 0 if libc.syscall(ctypes.c_long(number), *passed) >= 0 else ctypes.get_errno()


def times(*numbers: int) -> bytes:
    return struct.pack(f"={len(numbers)}q", *numbers)


def opened(path: str, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags)


# Each is made in a directory with `file`, `link` to it, `directory/inner` and `dangling`.
CALLS: dict[str, Callable[[], int]] = {
    "chmod": lambda: call("chmod", b"file", 0o640),
    "chmod of a directory": lambda: call("chmod", b"directory", 0o1770),
    "chmod through a link": lambda: call("chmod", b"link", 0o604),
    "chmod below": lambda: call("chmod", b"directory/../directory/inner", 0o600),
    "chmod of nothing": lambda: call("chmod", b"absent", 0o600),
    "chmod through a file": lambda: call("chmod", b"file/below", 0o600),
    "chmod through a dangling link": lambda: call("chmod", b"dangling", 0o600),
    "chmod of an empty path": lambda: call("chmod", b"", 0o600),
    "chmod of too long a path": lambda: call("chmod", b"x" * 5000, 0o600),
    "chmod of too long a name": lambda: call("chmod", b"x" * 300, 0o600),
    "chmod without a path": lambda: call("chmod", 0, 0o600),
    "chmod of a bad address": lambda: call("chmod", 8, 0o600),
    "chmod by an absolute path": lambda: call("chmod", os.fsencode(Path("file").resolve()), 0o622),
    "chmod by a descriptor's path": lambda: call("chmod", b"/proc/self/fd/%d" % opened("file"), 0o611),
    "chmod below a descriptor's path": lambda: call(
        "chmod", b"/proc/self/fd/%d/inner" % opened("directory"), 0o611
    ),
    "fchmod": lambda: call("fchmod", opened("file"), 0o600),
    "fchmod of what is closed": lambda: call("fchmod", 999, 0o600),
    "fchmod of a file in memory": lambda: call("fchmod", os.memfd_create("x"), 0o600),
    "fchmod of a pipe": lambda: call("fchmod", os.pipe()[0], 0o600),
    "fchmodat": lambda: call("fchmodat", opened("directory"), b"inner", 0o601),
    "fchmodat from what is closed": lambda: call("fchmodat", 999, b"inner", 0o601),
    "fchmodat from a file": lambda: call("fchmodat", opened("file"), b"inner", 0o601),
    "fchmodat2": lambda: call("fchmodat2", AT_FDCWD, b"file", 0o602, 0),
    "fchmodat2 of a link": lambda: call("fchmodat2", AT_FDCWD, b"link", 0o602, NOFOLLOW),
    "fchmodat2 of a descriptor": lambda: call("fchmodat2", opened("file", os.O_PATH), b"", 0o603, EMPTY),
    "fchmodat2 with an unknown flag": lambda: call("fchmodat2", AT_FDCWD, b"file", 0o602, 1),
    "chown": lambda: call("chown", b"file", os.getuid(), os.getgid()),
    "chown of nobody": lambda: call("chown", b"link", -1, -1),
    "lchown": lambda: call("lchown", b"dangling", os.getuid(), -1),
    "fchown": lambda: call("fchown", opened("file"), -1, os.getgid()),
    "fchownat": lambda: call("fchownat", opened("directory"), b"inner", -1, os.getgid(), 0),
    "fchownat of a descriptor": lambda: call("fchownat", opened("file"), b"", -1, -1, EMPTY),
    "utime": lambda: call("utime", b"file", times(1, 2)),
    "utimes": lambda: call("utimes", b"file", times(1, 2, 3, 4)),
    "utimes with too many microseconds": lambda: call("utimes", b"file", times(1, 2, 3, 2000000)),
    "futimesat": lambda: call("futimesat", opened("directory"), b"inner", times(1, 2, 3, 4)),
    "futimesat of a descriptor": lambda: call("futimesat", opened("file"), 0, times(1, 2, 3, 4)),
    "utimensat": lambda: call("utimensat", AT_FDCWD, b"link", times(1, 2, 3, 4), 0),
    "utimensat of a link": lambda: call("utimensat", AT_FDCWD, b"link", times(1, 2, 3, 4), NOFOLLOW),
    "utimensat of one": lambda: call("utimensat", AT_FDCWD, b"file", times(0, OMIT, 9, 9), 0),
    "utimensat of none": lambda: call("utimensat", AT_FDCWD, b"file", times(0, OMIT, 0, OMIT), 0),
    "utimensat of a descriptor": lambda: call("utimensat", opened("file"), 0, times(1, 2, 3, 4), 0),
    "utimensat of a bad address": lambda: call("utimensat", AT_FDCWD, b"file", 8, 0),
    "setxattr": lambda: call("setxattr", b"link", b"user.one", b"value", 5, 0),
    "setxattr of nothing": lambda: call("setxattr", b"file", b"user.one", 0, 0, 0),
    "setxattr that is there": lambda: call("setxattr", b"file", b"user.kept", b"v", 1, 1),
    "setxattr that is not there": lambda: call("setxattr", b"file", b"user.absent", b"v", 1, 2),
    "setxattr with too much": lambda: call("setxattr", b"file", b"user.one", b"v" * 65537, 65537, 0),
    "setxattr with too long a name": lambda: call("setxattr", b"file", b"user." + b"x" * 300, b"v", 1, 0),
    "setxattr with no name": lambda: call("setxattr", b"file", b"", b"v", 1, 0),
    "lsetxattr": lambda: call("lsetxattr", b"link", b"user.one", b"value", 5, 0),
    "fsetxattr": lambda: call("fsetxattr", opened("file"), b"user.one", b"value", 5, 0),
    "removexattr": lambda: call("removexattr", b"link", b"user.kept"),
    "removexattr of none": lambda: call("removexattr", b"file", b"user.absent"),
    "lremovexattr": lambda: call("lremovexattr", b"link", b"user.kept"),
    "fremovexattr": lambda: call("fremovexattr", opened("file"), b"user.kept"),
}


def described(place: Path) -> dict[str, list[object]]:
    """All that the calls can change."""
    found = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        marks = [] if path.is_symlink() else sorted(os.listxattr(path))
        seen = [oct(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, marks]
        found[str(path.relative_to(place))] = seen
    return found


def tree(place: Path) -> Path:
    return build(
        place,
        {
            "file": File("", mode=0o644, xattrs={"user.kept": b"1"}),
            "link": Symlink("file"),
            "dangling": Symlink("absent"),
            "directory/inner": "",
        },
    )


@pytest.fixture(autouse=True)
def _dumpable() -> None:
    """Open to readers again, as in a fresh process: taking another user's rights in a test closes it."""
    libc.prctl(4, 1, 0, 0, 0)


def in_a_process(place: Path, action: Callable[[], int], attendant: Attendant | None) -> int:
    """What *action* gives in another process, which is attended to or not."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(place)
            kernel_calls.give_up_capabilities()
            if attendant is not None:
                kernel_calls.give_up_new_privileges()
                attendant.begin()
            os.write(writing, json.dumps(action()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    if attendant is not None:
        attendant.attend()
    with open(reading, "rb") as told:
        result = json.loads(told.read())
    os.waitpid(child, 0)
    assert isinstance(result, int)
    return result


def attending(*places: Path) -> Attendant:
    assert possible()
    return Attendant(places, seccomp.build_filter(MACHINE, attended=True))


@pytest.mark.skipif(MACHINE != "x86_64", reason="the calls are those of x86_64")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_handed_over_does_what_the_kernel_would_do(tmp_path: Path, name: str) -> None:
    alone, attended_to = tree(tmp_path / "alone"), tree(tmp_path / "attended")
    expected = in_a_process(alone, CALLS[name], None)
    assert in_a_process(attended_to, CALLS[name], attending(attended_to)) == expected
    assert described(attended_to) == described(alone)


@pytest.mark.skipif(MACHINE != "x86_64", reason="the calls are those of x86_64")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_about_another_place_changes_nothing(tmp_path: Path, name: str) -> None:
    place, mine = tree(tmp_path / "place"), tree(tmp_path / "place-of-mine")
    before = described(place)
    result = in_a_process(place, CALLS[name], attending(mine))
    assert result != 0 or "memory" in name or "pipe" in name
    assert described(place) == before


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6755])
def test_no_file_gets_set_id_bits_and_a_directory_may_hand_its_group_on(tmp_path: Path, mode: int) -> None:
    place = tree(tmp_path / "place")

    def changed(name: bytes, mode: int) -> int:
        return in_a_process(place, lambda: call("fchmodat", AT_FDCWD, name, mode), attending(place))

    assert changed(b"file", mode) == errno.EPERM
    assert changed(b"directory", 0o2770) == 0
    assert stat.S_IMODE((place / "file").stat().st_mode) == 0o644
    assert stat.S_IMODE((place / "directory").stat().st_mode) == 0o2770


def test_every_call_that_is_handed_over_is_known_but_those_for_old_owners() -> None:
    assert set(seccomp.ATTENDED) - attribute_calls.CHANGES.keys() == {"chown16", "lchown16", "fchown16"}
    assert attribute_calls.CHANGES.keys() <= set(seccomp.ATTENDED)


def test_a_program_of_32_bits_has_its_times_read_as_it_has_them(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory = ctypes.create_string_buffer(struct.pack("=4i", 1, 2, 3, 4), 16)
    address = ctypes.addressof(memory)
    asked = attribute_calls.Call(os.getpid(), "utimensat", [0, 0, address, 0, 0, 0], wide=False)
    _, apply = attribute_calls.CHANGES["utimensat"](asked)
    held = os.open(tmp_path / "file", os.O_PATH)
    caller = attribute_calls.WaitingThread(os.getpid())
    try:
        apply(held, caller)
    finally:
        caller.close()
        os.close(held)
    assert (tmp_path / "file").stat().st_mtime_ns == 3 * 10**9 + 4


def python(text: str, *arguments: str | Path) -> list[str]:
    """What a process of its own prints that runs *text*."""
    words = [sys.executable, "-c", text, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


ATTENDED_ALREADY = """
import os
from sandboxfs.confine import attribute_calls, kernel_calls, seccomp
print(attribute_calls.possible())
kernel_calls.give_up_new_privileges()
kernel_calls.install_attended_filter(seccomp.build_filter(os.uname().machine))
print(attribute_calls.possible())
"""


def test_a_process_that_somebody_attends_to_already_cannot_be_attended_to() -> None:
    assert python(ATTENDED_ALREADY) == ["True", "False"]


ANSWERING = """
import os, signal, sys, threading
from pathlib import Path
from sandboxfs.confine import attribute_calls, kernel_calls, seccomp
made = attribute_calls.Attendant([Path.cwd()], seccomp.build_filter(os.uname().machine, attended=True))
answered, answer = os.pipe()
waiting, wait = os.pipe()
if os.fork() == 0:
    os.close(wait)
    kernel_calls.give_up_capabilities()
    kernel_calls.give_up_new_privileges()
    made.begin()
    os.chmod(".", 0o700)
    os.write(answer, b".")
    os.read(waiting, 1)
    os._exit(0)
made.attend()
os.read(answered, 1)
(thread,) = [one for one in threading.enumerate() if one.name == "attendant"]
status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
blocked = int(status.partition("\\nSigBlk:")[2].split()[0], 16)
print([number.name for number in (signal.SIGCHLD, signal.SIGTERM) if not blocked >> (number - 1) & 1])
"""


def test_no_signal_interrupts_an_answer() -> None:
    assert python(ANSWERING) == ["[]"]


# A program under Landlock, as a run starts it; what it prints is what became of each attempt.
CONFINED = """
import os, socket, sys
from pathlib import Path
from sandboxfs.confine import enter, kernel_calls, landlock
from sandboxfs.confine.init import InitOrders
from sandboxfs.confine.program_values import LandlockConfinement
place, attended, text = Path(sys.argv[1]), sys.argv[2] == "attended", sys.argv[3]
fence = landlock.LandlockRules((place,), (Path("/"),))
become = enter.within_landlock(LandlockConfinement(fence, kernel_calls.landlock_abi(), attended))
command = [os.fsencode(word) for word in (sys.executable, "-c", text)]
orders = InitOrders(command, dict(os.environb), bytes(place), terminal=False, foreground=False, ignored=[])
near, far = socket.socketpair()
child = os.fork()
if child == 0:
    near.close()
    become(far.fileno(), orders)
far.close()
os.waitpid(child, 0)
"""
ATTEMPTS = """
import errno, os
def attempt(call, *arguments):
    try:
        call(*arguments)
        print("done", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
attempt(os.chmod, "file", 0o600)
attempt(os.chmod, "file", 0o4755)
attempt(os.chmod, "directory", 0o2770)
attempt(os.setxattr, "file", "user.one", b"1")
attempt(os.setxattr, os.open("file", os.O_RDONLY), "user.one", b"1")
attempt(os.chmod, "../outside", 0o666)
"""


@pytest.mark.parametrize(
    ("attended_to", "expected"),
    [
        ("attended", ["done", "EPERM", "done", "done", "done", "EACCES"]),
        ("alone", ["done", "EPERM", "EPERM", "ENOTSUP", "done", "done"]),
    ],
)
def test_a_program_can_change_what_security_md_says(
    tmp_path: Path, attended_to: str, expected: list[str]
) -> None:
    place = tree(tmp_path / "place")
    (tmp_path / "outside").touch(mode=0o600)
    assert python(CONFINED, place, attended_to, ATTEMPTS) == expected
    outside = stat.S_IMODE((tmp_path / "outside").stat().st_mode)
    assert outside == (0o600 if attended_to == "attended" else 0o666)


MANY = """
import ctypes, os, signal, sys, threading
def change(number):
    for turn in range(100):
        name = f"{number}-{turn}"
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
        os.chmod(name, 0o640)
        os.utime(name, (turn, turn))
threads = [threading.Thread(target=change, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
# Some are killed while they wait, and orphans keep whoever adopts them busy with signals.
for _ in range(100):
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os._exit(0)
        while True:
            os.chmod("file", 0o600)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
for thread in threads:
    thread.join()
found = [os.stat(f"{number}-{turn}") for number in range(8) for turn in range(100)]
print({oct(status.st_mode) for status in found}, [status.st_mtime for status in found] == [*range(100)] * 8)
PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
try:
    os.chmod("file", 0o666)
except PermissionError:
    print("refused")
"""


def test_many_callers_are_answered_also_when_some_are_killed_and_none_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    place = tree(tmp_path / "place")
    assert python(CONFINED, place, "attended", MANY) == ["{'0o100640'} True", "refused"]
