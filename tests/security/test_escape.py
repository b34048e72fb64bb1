"""Can a program get out of a run?

One run for each confinement, in which `inside/attacks.py` tries everything it can think of; each attempt is a
claim of its own here. Whether it got out is judged by what it says and by what is left on the host.
"""

import ctypes
import errno
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import conditions, runs
from tests.support.mounted import eventually, package_found
from tests.support.terminal import Terminal
from tests.support.tree import File, Snapshot, Symlink, assert_same_tree, build, capture

SCRIPT = Path(__file__).parent / "inside" / "attacks.py"
ATTACKS = [
    line.removeprefix("def ").partition("(")[0]
    for before, line in zip(
        SCRIPT.read_text().splitlines(), SCRIPT.read_text().splitlines()[1:], strict=False
    )
    if before == "@attack"
]

_libc = ctypes.CDLL(None, use_errno=True)

# What Landlock cannot refuse, and docs/security.md says so: nothing that is in a file, but something about
# it.
REMAINDER = {
    "bubblewrap": {
        # It succeeds, in the view; that the workspace is as it was is checked for all.
        "write_the_workspace_by_its_own_path",
        # The home is another one, and the sandbox's own.
        "write_a_start_up_file_in_the_home",
    },
    "landlock": {
        "see_whether_a_file_of_the_host_exists",
        "see_the_processes_of_the_host",
        "read_a_link_of_the_host",
        "watch_a_directory_of_the_host",
    },
}


@dataclass(frozen=True)
class Assault:
    """What came of the attacks under one confinement, and the host before and after."""

    results: dict[str, str]
    before: dict[str, Snapshot]
    after: dict[str, Snapshot]


@dataclass(frozen=True)
class Host:
    """A machine worth attacking."""

    top: Path
    workspace: Path
    environment: dict[str, str]
    facts: dict[str, str]

    def capture(self) -> dict[str, Snapshot]:
        return {name: capture(self.top / name) for name in ("workspace", "outside", "home", "config")}


def _host(top: Path, confinement: str, stack: ExitStack) -> Host:
    workspace = build(
        top / "workspace",
        {"file": "text", "attacks.py": SCRIPT.read_text(), "link-outside": Symlink(str(top / "outside"))},
    )
    build(
        top / "outside",
        {
            "secret": "secret",
            "mode": "",
            "times": "",
            "attribute": "",
            "marked": File("", xattrs={"user.kept": b"1"}),
            "link": Symlink("secret"),
        },
    )
    build(top / "home", {".ssh/id_ed25519": "key", ".bashrc": ""})
    build(top / "config", {"config.toml": ""})
    (top / "run").mkdir(mode=0o700)
    abstract = f"sandboxfs-test-{os.getpid()}-{confinement}"
    facts = {
        "workspace": str(workspace),
        "real": str(workspace),
        "outside": str(top / "outside"),
        "state": str(top / "state"),
        "home": str(top / "home"),
        "config": str(top / "config/config.toml"),
        "control": "",
        "name": "workspace",
        "abstract": abstract,
        "session": str(top / "run/bus"),
        "log": str(top / "run/log"),
        "port": str(_listening(stack, socket.AF_INET, ("127.0.0.1", 0)).getsockname()[1]),
        "datagrams": str(_bound(stack)),
        "segment": str(_shared(stack)),
        "queue": _queue(stack),
        "test": str(os.getpid()),
        "confinement": confinement,
    }
    _listening(stack, socket.AF_UNIX, f"\0{abstract}")
    _listening(stack, socket.AF_UNIX, facts["session"])
    log = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    log.bind(facts["log"])
    environment = {
        "HOME": str(top / "home"),
        "XDG_RUNTIME_DIR": str(top / "run"),
        "SANDBOXFS_STATE_DIR": str(top / "state"),
        "SANDBOXFS_CONFIG": facts["config"],
        "TEST_API_TOKEN": "secret",
    }
    return Host(top, workspace, environment, facts)


def _listening(stack: ExitStack, family: int, address: object) -> socket.socket:
    listener = stack.enter_context(socket.socket(family))
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen()
    return listener


def _bound(stack: ExitStack) -> int:
    receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver.bind(("127.0.0.1", 0))
    port = receiver.getsockname()[1]
    assert isinstance(port, int)
    return port


def _shared(stack: ExitStack) -> int:
    """Make a segment of shared memory, a message queue and a set of semaphores; return their key."""
    key = 0x5A000000 + os.getpid()
    made = 0o1600  # IPC_CREAT, for this user alone
    segment, queue, semaphores = (
        _libc.shmget(key, 4096, made),
        _libc.msgget(key, made),
        _libc.semget(key, 1, made),
    )
    stack.callback(_libc.shmctl, segment, 0, None)
    stack.callback(_libc.msgctl, queue, 0, None)
    stack.callback(_libc.semctl, semaphores, 0, 0)
    assert min(segment, queue, semaphores) >= 0
    return key


def _queue(stack: ExitStack) -> str:
    """Make a POSIX message queue, where the kernel has them; return its name as the kernel takes it."""
    name = f"sandboxfs-test-{os.getpid()}"
    if _libc.mq_open(f"/{name}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None) >= 0:
        stack.callback(_libc.mq_unlink, f"/{name}".encode())
    return name


@pytest.fixture(scope="module", params=runs.CONFINEMENTS)
def assault(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assault]:
    conditions.require_fuse()
    confinement = str(request.param)
    runs.require(confinement)
    with package_found(), ExitStack() as stack:
        top = tmp_path_factory.mktemp("escape")
        host = _host(top, confinement, stack)
        facts = host.facts | {"control": str(_control_socket(host))}
        (host.workspace / "host.json").write_text(json.dumps(facts))
        yield _assault(host, confinement)


def _control_socket(host: Host) -> Path:
    from sandboxfs.control.control_socket import control_address
    from sandboxfs.state.locations import Locations

    return control_address(Locations.from_environment(host.environment), host.facts["name"]).socket


def _assault(host: Host, confinement: str) -> Assault:
    inherited = [os.open(path, os.O_RDONLY) for path in (host.workspace, host.top / "outside")]
    inherited.append(os.open(host.top / "outside/secret", os.O_RDWR))
    with open(host.workspace / "file") as given:
        process = subprocess.Popen(
            runs.run_words("--confine", confinement, "--", runs.PYTHON, "-I", "attacks.py"),
            cwd=host.workspace,
            env=os.environ | host.environment,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=inherited,
        )
        try:
            lock = host.top / "state/sandboxes/workspace/lock"
            eventually(_control_socket(host).exists, "the sandbox is served", 30)
            staged = host.workspace / "pids.new"
            staged.write_text(f"{lock.read_text().strip()} {process.pid}")
            staged.rename(host.workspace / "pids")
            before = host.capture()
            output, complaint = process.communicate(timeout=runs.PATIENCE)
        finally:
            process.kill()
            for descriptor in inherited:
                os.close(descriptor)
    assert process.returncode == 0, complaint
    return Assault(json.loads(output), before, host.capture())


@pytest.mark.parametrize("attempt", ATTACKS)
def test_a_program_cannot(attempt: str, assault: Assault, request: pytest.FixtureRequest) -> None:
    confinement = request.node.callspec.params["assault"]
    result = assault.results[attempt]
    if attempt in REMAINDER[confinement]:
        assert result.startswith("escaped"), f"no longer a remainder: {result}"
    else:
        assert result.startswith(("refused", "nothing")), result


@pytest.mark.parametrize("place", ["workspace", "outside", "home", "config"])
def test_nothing_on_the_host_has_changed_in(place: str, assault: Assault) -> None:
    assert_same_tree(assault.after[place], assault.before[place], what=place)


# The kernel looks at half of an ioctl's number; a filter that compares all of it lets the second attempt
# through.
INJECT = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
for descriptor in (0, os.open("/dev/tty", os.O_RDWR)):
    for request in (TIOCSTI, TIOCSTI | 1 << 32, TIOCLINUX):
        if libc.ioctl(descriptor, ctypes.c_ulong(request), b"x") == 0:
            print("injected")
        else:
            print("refused", ctypes.get_errno())
"""


@pytest.fixture(params=runs.CONFINEMENTS)
def confinement(request: pytest.FixtureRequest) -> str:
    runs.require(str(request.param))
    return str(request.param)


def test_a_program_cannot_type_into_its_terminal(tmp_path: Path, confinement: str) -> None:
    script = build(tmp_path / "workspace", {"inject.py": INJECT})
    words = runs.run_words("--confine", confinement, "--", runs.PYTHON, "inject.py")
    with Terminal(words, cwd=script) as terminal:
        assert terminal.end() == 0
    assert "injected" not in terminal.seen
    assert terminal.seen.count("refused 1\r\n") == 6, terminal.seen


FAMILIES = """
from socket import *
kinds = {AF_INET: SOCK_STREAM, AF_INET6: SOCK_STREAM, AF_NETLINK: SOCK_RAW, AF_VSOCK: SOCK_STREAM, AF_ALG: 5}
for family, kind in kinds.items():
    try:
        socket(family, kind)
        print("made")
    except OSError as error:
        print(error.errno)
"""


def test_even_with_a_network_there_are_no_sockets_of_unusual_families(
    tmp_path: Path, confinement: str
) -> None:
    workspace = build(tmp_path / "workspace", {})
    words = ("--confine", confinement, "--network", "--", runs.PYTHON, "-I", "-c", FAMILIES)
    told = runs.run(*words, cwd=workspace).stdout.split()
    assert told == ["made", "made", "made", str(errno.EAFNOSUPPORT), str(errno.EAFNOSUPPORT)]


NETLINK = """
from socket import *
for protocol in range(32):
    try:
        socket(AF_NETLINK, SOCK_RAW, protocol)
        print(protocol)
    except OSError:
        pass
"""


@pytest.mark.parametrize("network", [True, False])
def test_netlink_is_there_for_routes_alone_and_under_landlock_only_with_a_network(
    tmp_path: Path, confinement: str, network: bool
) -> None:
    workspace = build(tmp_path / "workspace", {})
    words = ("--confine", confinement, *["--network"][: int(network)], "--", runs.PYTHON, "-I", "-c", NETLINK)
    told = runs.run(*words, cwd=workspace).stdout.split()
    assert told == (["0"] if network or confinement == "bubblewrap" else [])


SET_ID = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
os.umask(0)
for place in (".", os.environ["HOME"], os.environ["TMPDIR"]):
    os.chdir(place)
    for bit in (0o4000, 0o2000):
        mode = bit | 0o755
        file = os.open("plain", os.O_CREAT | os.O_RDWR)
        attempts = [
            lambda: os.chmod("plain", mode),
            lambda: os.fchmod(file, mode),
            lambda: os.chmod("plain", mode, dir_fd=os.open(".", os.O_RDONLY)),
            lambda: libc.syscall(452, AT_FDCWD, b"plain", mode, 0x100),
            lambda: os.open("opened", os.O_CREAT | os.O_RDWR, mode),
            lambda: libc.creat(b"created", mode),
            lambda: os.mknod("node", 0o100000 | mode),
            lambda: os.mkdir("directory", mode),
            lambda: libc.syscall(437, AT_FDCWD, b"how", (ctypes.c_uint64 * 3)(0o102, mode, 0), 24),
        ]
        for attempt in attempts:
            try:
                attempt()
            except OSError:
                pass
    for name in os.listdir("."):
        if os.lstat(name).st_mode & 0o6000:
            print("set-id:", place, name)
print("tried")
"""


def test_under_landlock_no_file_of_a_run_gets_set_id_bits(tmp_path: Path) -> None:
    runs.require("landlock")
    workspace = build(tmp_path / "workspace", {})
    told = runs.run("--confine", "landlock", "--", runs.PYTHON, "-I", "-c", SET_ID, cwd=workspace)
    assert told.stdout == "tried\n"


ATTRIBUTES = """
import os, subprocess
for place in (".", os.environ["HOME"], os.environ["TMPDIR"]):
    os.chdir(place)
    os.makedirs("directory")
    open("file", "w").close()
    os.symlink("file", "link")
    os.chmod("file", 0o640)
    os.chmod("directory", 0o2770)
    os.utime("file", ns=(1, 10**18 + 1))
    os.utime("link", (5, 5), follow_symlinks=False)
    os.chown("link", os.getuid(), os.getgid(), follow_symlinks=False)
    os.setxattr("file", "user.one", b"1")
    found = os.stat("file")
    print(oct(found.st_mode), found.st_mtime_ns, os.listxattr("file"), os.lstat("link").st_mtime_ns)
    print(oct(os.stat("directory").st_mode))
"""


def test_under_landlock_attributes_can_be_changed_where_a_program_may_write(tmp_path: Path) -> None:
    runs.require("landlock")
    workspace = build(tmp_path / "workspace", {})
    told = runs.run("--confine", "landlock", "--", runs.PYTHON, "-I", "-c", ATTRIBUTES, cwd=workspace)
    found = f"0o100640 {10**18 + 1} ['user.one'] {5 * 10**9}\n0o42770\n"
    assert told.stdout == 3 * found


BOMB = """
import os, sys, time
for _ in range(3):
    os.fork()
for _ in range(25):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.argv[1], [sys.argv[1], "-c", "import time; time.sleep(1000)", sys.argv[2]])
        os._exit(0)
"""


def test_no_process_of_a_fork_bomb_outlives_the_run(tmp_path: Path, confinement: str) -> None:
    workspace = build(tmp_path / "workspace", {"bomb.py": BOMB})
    # Of this process's tests alone: others may run beside it.
    mark = f"bomb-{os.getpid()}-of-the-test"
    runs.run("--confine", confinement, "--", runs.PYTHON, "bomb.py", runs.PYTHON, mark, cwd=workspace)
    assert runs.left_behind(mark) == []


def test_filling_the_temporary_directory_is_limited_and_leaves_nothing(tmp_path: Path) -> None:
    runs.require("bubblewrap")
    workspace = build(tmp_path / "workspace", {})
    before = set(os.listdir("/tmp"))
    told = runs.run(
        "--",
        "sh",
        "-c",
        "echo x > /tmp/left-by-the-test; echo x > /var/tmp/left-by-the-test; "
        "stat -f -c '%b %S' /tmp /var/tmp /dev/shm; stat -f -c '%b %S' /; : > /in-the-root",
        cwd=workspace,
        status=2,
    )
    sizes = [int(blocks) * int(size) for blocks, size in map(str.split, told.stdout.splitlines()[:3])]
    assert all(0 < size <= 2 << 30 for size in sizes)
    assert "Read-only file system" in told.stderr
    assert "left-by-the-test" not in set(os.listdir("/tmp")) - before
    assert not os.path.exists("/var/tmp/left-by-the-test")
