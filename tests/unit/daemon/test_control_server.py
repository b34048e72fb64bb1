"""No client, whatever it does, stalls or ends the daemon; those who may ask are answered."""

import json
import logging
import os
import select
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
import trio

from sandboxfs.control.control_socket import (
    ANSWER_LIMIT,
    REQUEST_LIMIT,
    ControlAddress,
    DaemonBug,
    Request,
    ask,
    bindable,
)
from sandboxfs.control.mount_table import Mount, MountTable
from sandboxfs.daemon import control_peers
from sandboxfs.daemon.control_peers import Peer, ViewWatch, device_of
from sandboxfs.daemon.control_server import ControlServer, Handler
from sandboxfs.errors import DaemonLost, MountFailed, SandboxBusy, UsageError

# Of a daemon whose clients do nothing wrong, however long a busy machine keeps them from it.
PATIENCE = 60.0
# Of one that a test waits for to lose it.
LITTLE_PATIENCE = 1.0


def echo(request: Request, peer: Peer) -> object:
    return {"args": dict(request.args), "pid": peer.pid}


async def later(request: Request, peer: Peer) -> object:
    await trio.sleep(0.01)
    return "later"


def busy(request: Request, peer: Peer) -> object:
    raise SandboxBusy("in use", hint="wait", details={"users": [1]})


def bug(request: Request, peer: Peer) -> object:
    return 1 // 0


def large(request: Request, peer: Peer) -> object:
    return "x" * (ANSWER_LIMIT - 1000)


def too_large(request: Request, peer: Peer) -> object:
    return "x" * (ANSWER_LIMIT + 1000)


HANDLERS: Mapping[str, Handler] = {
    "echo": echo,
    "later": later,
    "busy": busy,
    "bug": bug,
    "large": large,
    "too-large": too_large,
}


@pytest.fixture
def address(tmp_path: Path) -> ControlAddress:
    return ControlAddress(
        "app", tmp_path / "run" / "control" / "app.sock", tmp_path / "control", tmp_path / "daemon.log"
    )


@contextmanager
def serving(
    address: ControlAddress,
    handlers: Mapping[str, Handler] = HANDLERS,
    view: ViewWatch | None = None,
    harmless: tuple[str, ...] = (),
    connections: int = 32,
    patience: float = PATIENCE,
) -> Iterator[None]:
    """A daemon that serves in a thread of its own, and must be alive at the end."""
    ready = threading.Event()
    ended: list[BaseException | None] = []
    stop: list[Callable[[], object]] = []

    async def main() -> None:
        server = ControlServer(
            handlers, view=view, harmless=harmless, patience=patience, connections=connections
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, address)
            token = trio.lowlevel.current_trio_token()
            stop.append(lambda: token.run_sync_soon(nursery.cancel_scope.cancel))
            ready.set()

    def run() -> None:
        try:
            trio.run(main)
            ended.append(None)
        except BaseException as error:
            ended.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield
        assert not ended, f"the daemon ended: {ended}"
        assert ask(address, "echo", {"still": "here"}) == {"args": {"still": "here"}, "pid": os.getpid()}
    finally:
        if stop:
            stop[0]()
        thread.join()
    assert ended == [None]


@contextmanager
def connected(address: ControlAddress) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        with bindable(address.socket) as name:
            connection.connect(name)
        yield connection


def line(verb: str = "echo", **args: object) -> bytes:
    return json.dumps({"v": 1, "id": 1, "verb": verb, "args": args}).encode() + b"\n"


def answers(connection: socket.socket) -> list[dict[str, object]]:
    """Everything that the daemon says until it closes the connection."""
    said = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 16):
            said += chunk
    return [json.loads(one) for one in said.splitlines()]


def problem(answer: dict[str, object]) -> str:
    error = answer["error"]
    assert answer["ok"] is False
    assert isinstance(error, dict)
    return str(error["message"])


def test_plain_and_async_handlers_answer(address: ControlAddress) -> None:
    with serving(address):
        assert ask(address, "echo", {"x": [1, "\udcff"]}) == {
            "args": {"x": [1, "\udcff"]},
            "pid": os.getpid(),
        }
        assert ask(address, "later") == "later"


def test_a_sandbox_error_is_the_answer(address: ControlAddress) -> None:
    with serving(address), pytest.raises(SandboxBusy, match="in use") as raised:
        ask(address, "busy")
    assert raised.value.hint == "wait"
    assert raised.value.details == {"users": [1]}


@pytest.mark.parametrize("verb", ["bug", "too-large"])
def test_a_bug_in_a_handler_is_answered_and_logged_with_its_traceback(
    verb: str, address: ControlAddress, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(address), pytest.raises(DaemonBug):
        ask(address, verb)
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert record.exc_info is not None


def test_several_requests_of_one_connection_are_answered_in_order(address: ControlAddress) -> None:
    with serving(address), connected(address) as connection:
        connection.sendall(line(n=1) + line("later") + line("busy") + line(n=2))
        connection.shutdown(socket.SHUT_WR)
        assert [one["ok"] for one in answers(connection)] == [True, True, False, True]


def test_the_socket_is_for_its_owner_alone_whatever_the_umask(address: ControlAddress) -> None:
    umask = os.umask(0)
    try:
        with serving(address):
            assert stat.S_IMODE(address.socket.stat().st_mode) == 0o600
            assert stat.S_IMODE(address.socket.parent.stat().st_mode) == 0o700
            assert address.link.readlink() == address.socket
    finally:
        os.umask(umask)
    assert not address.socket.exists()
    assert not address.link.is_symlink()


def test_a_directory_that_others_may_enter_is_closed_to_them(address: ControlAddress) -> None:
    address.socket.parent.mkdir(parents=True)
    address.socket.parent.chmod(0o777)
    with serving(address):
        assert stat.S_IMODE(address.socket.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(address: ControlAddress) -> None:
    address.socket.parent.mkdir(parents=True)
    os.chown(address.socket.parent, 12345, 12345)
    with pytest.raises(MountFailed, match="belongs to another user"):
        trio.run(ControlServer({}).serve, address)


def test_what_a_daemon_that_died_left_behind_is_replaced(address: ControlAddress) -> None:
    address.socket.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(address.socket))
    address.link.symlink_to("/nowhere")
    with serving(address):
        assert ask(address, "later") == "later"


def test_a_socket_at_a_very_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-directory-name"] * 8)
    address = ControlAddress("app", deep / "app.sock", tmp_path / "control", tmp_path / "log")
    with serving(address):
        assert ask(address, "later") == "later"
    assert not address.socket.exists()


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"hello\n",
        b"\x00\xff\xfe\n",
        b"[" * 60_000 + b"\n",
        b'{"v": 1, "verb": 5}\n',
        b'{"v": 1, "verb": "nothing"}\n',
        b'{"v": 1, "verb": "echo", "args": []}\n',
        b'{"v": 99, "verb": "echo"}\n',
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_a_malformed_request_is_told_so_and_the_connection_closed(
    said: bytes, address: ControlAddress
) -> None:
    with serving(address), connected(address) as connection:
        connection.sendall(said + line())
        (answer,) = answers(connection)
        assert problem(answer)


def test_an_unknown_version_is_told_the_one_that_is_spoken(address: ControlAddress) -> None:
    with serving(address), connected(address) as connection:
        connection.sendall(b'{"v": 2, "id": 9, "verb": "echo"}\n')
        (answer,) = answers(connection)
    assert "speaks version 1" in problem(answer)
    assert answer["id"] == 9


def test_a_request_of_just_the_largest_size_is_answered(address: ControlAddress) -> None:
    with serving(address), connected(address) as connection:
        padding = REQUEST_LIMIT - len(line(x=""))
        connection.sendall(line(x="y" * padding))
        connection.shutdown(socket.SHUT_WR)
        (answer,) = answers(connection)
        assert answer["ok"] is True


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_an_oversized_request_is_told_so(ending: bytes, address: ControlAddress) -> None:
    with serving(address), connected(address) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(line(x="y" * REQUEST_LIMIT)[:-1] + ending)
            connection.sendall(b"z" * (1 << 20))
        (answer,) = answers(connection)
        assert "larger than 64 KiB" in problem(answer)


def test_a_client_that_says_nothing_is_left(address: ControlAddress) -> None:
    with serving(address, patience=LITTLE_PATIENCE), connected(address) as connection:
        assert answers(connection) == []


def test_a_client_that_stops_in_the_middle_is_told_so(address: ControlAddress) -> None:
    with serving(address, patience=LITTLE_PATIENCE), connected(address) as connection:
        connection.sendall(line()[:-5])
        (answer,) = answers(connection)
        assert "not complete after" in problem(answer)


def test_a_client_that_drips_does_not_get_more_time_for_it(address: ControlAddress) -> None:
    with serving(address, patience=LITTLE_PATIENCE), connected(address) as connection:
        stop = threading.Event()
        connection.sendall(b" ")

        def drip() -> None:
            with suppress(OSError):
                while not stop.wait(LITTLE_PATIENCE / 5):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        (answer,) = answers(connection)
        stop.set()
        thread.join()
        assert "not complete after" in problem(answer)


def test_a_client_that_does_not_read_its_answer_is_left(address: ControlAddress) -> None:
    with serving(address, patience=LITTLE_PATIENCE), connected(address) as connection:
        connection.sendall(line("large"))
        # The others are served meanwhile, and afterwards the answer is not whole.
        assert ask(address, "later") == "later"
        closed = select.poll()
        closed.register(connection, 0)
        assert closed.poll(20_000), "the daemon waits on"
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
        assert 0 < len(received) < ANSWER_LIMIT - 1000


def test_a_large_answer_is_delivered_whole(address: ControlAddress) -> None:
    with serving(address):
        assert ask(address, "large") == "x" * (ANSWER_LIMIT - 1000)


def test_a_client_that_has_closed_its_writing_side_is_answered(address: ControlAddress) -> None:
    with serving(address), connected(address) as connection:
        connection.sendall(line("later"))
        connection.shutdown(socket.SHUT_WR)
        (answer,) = answers(connection)
        assert answer["result"] == "later"


def test_a_client_that_closes_in_the_middle_is_told_so(address: ControlAddress) -> None:
    with serving(address), connected(address) as connection:
        connection.sendall(line()[:-1])
        connection.shutdown(socket.SHUT_WR)
        (answer,) = answers(connection)
        assert "does not end with a newline" in problem(answer)


@pytest.mark.parametrize("said", [b"", b"{", line(), line("later"), line("large"), line("bug")])
def test_a_client_that_goes_away_without_waiting_harms_nobody(said: bytes, address: ControlAddress) -> None:
    with serving(address):
        for _ in range(20):
            with connected(address) as connection:
                connection.sendall(said)


def test_a_client_that_closes_its_reading_side_harms_nobody(address: ControlAddress) -> None:
    with serving(address), connected(address) as connection:
        connection.shutdown(socket.SHUT_RD)
        with suppress(OSError):
            connection.sendall(line() * 50)


def test_a_hundred_clients_at_once_are_all_answered(address: ControlAddress) -> None:
    told: list[object] = []

    def client(number: int) -> None:
        told.append(ask(address, "echo", {"n": number}, timeout=30))

    with serving(address):
        threads = [threading.Thread(target=client, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    numbers = [one["args"]["n"] for one in told if isinstance(one, dict)]
    assert sorted(numbers) == list(range(100))


def test_a_hundred_idle_connections_keep_nobody_out_for_long(address: ControlAddress) -> None:
    with serving(address, patience=LITTLE_PATIENCE):
        idle = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        try:
            for one in idle:
                one.connect(str(address.socket))
            assert ask(address, "later", timeout=30) == "later"
        finally:
            for one in idle:
                one.close()


def test_no_more_connections_are_served_at_once_than_allowed(address: ControlAddress) -> None:
    now, most = 0, 0
    full = trio.Event()

    async def count(request: Request, peer: Peer) -> object:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 4:
            full.set()
        await full.wait()
        # Whoever should have to wait may come in now.
        await trio.sleep(0.02)
        now -= 1
        return None

    with serving(address, {**HANDLERS, "count": count}, connections=4):
        threads = [threading.Thread(target=ask, args=(address, "count")) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == 4


def test_a_slow_handler_keeps_nobody_else_waiting(address: ControlAddress) -> None:
    entered, leave = threading.Event(), threading.Event()

    async def slow(request: Request, peer: Peer) -> object:
        entered.set()
        await trio.to_thread.run_sync(leave.wait)
        return "done"

    told: list[object] = []
    with serving(address, {**HANDLERS, "slow": slow}):
        thread = threading.Thread(target=lambda: told.append(ask(address, "slow")))
        thread.start()
        entered.wait()
        assert ask(address, "later") == "later"
        leave.set()
        thread.join()
    assert told == ["done"]


def test_a_daemon_that_ends_leaves_its_clients(address: ControlAddress) -> None:
    with connected_after(address) as connection:
        assert answers(connection) == []
    with pytest.raises(DaemonLost):
        ask(address, "echo")


@contextmanager
def connected_after(address: ControlAddress) -> Iterator[socket.socket]:
    """A connection whose daemon has ended."""
    with socket.socket(socket.AF_UNIX) as connection:
        with serving(address):
            connection.connect(str(address.socket))
        yield connection


def test_root_and_the_daemons_own_user_are_trusted_and_nobody_else() -> None:
    own = os.geteuid()
    assert Peer(1, own, 0).trusted
    assert Peer(1, 0, 0).trusted
    assert not Peer(1, own + 1, 0).trusted


def test_an_untrusted_peer_is_not_answered_by_any_verb() -> None:
    server = ControlServer({"echo": echo}, harmless=["echo"])
    stranger = Peer(os.getpid(), os.geteuid() + 1, 0)

    async def ask_as(peer: Peer) -> tuple[bytes, bool]:
        answer, going_on = await server._answer(line()[:-1], peer)
        assert isinstance(answer, bytes)
        return answer, going_on

    answer, going_on = trio.run(ask_as, stranger)
    assert "only the user who serves the sandbox" in problem(json.loads(answer))
    assert not going_on
    assert json.loads(trio.run(ask_as, Peer(os.getpid(), os.geteuid(), 0))[0])["ok"] is True


class ViewStandingAt(ViewWatch):
    """Takes the filesystem of *place* for the view."""

    def __init__(self, place: str) -> None:
        super().__init__(Path("/nowhere/mounted"))
        self._device = device_of(place)


CLIENT = """
import sys
from itertools import count
from pathlib import Path
from sandboxfs.control.control_socket import ControlAddress
from sandboxfs.control.control_socket import ask
from sandboxfs.errors import SandboxError
here = Path(sys.argv[1])
address = ControlAddress("app", here, here.with_name("none"), here)
try:
    print(ask(address, sys.argv[2])["args"])
except SandboxError as error:
    print(error.message)
"""


def ask_from(directory: str, address: ControlAddress, verb: str = "echo") -> str:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(address.socket), verb],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_process_that_stands_in_the_view_may_only_ask_what_is_harmless(address: ControlAddress) -> None:
    view = ViewStandingAt("/proc")
    with serving(address, {**HANDLERS, "status": echo}, view=view, harmless=("status",)):
        refused = ask_from("/proc", address)
        assert refused == "'echo' is not for processes inside the view: its current directory is in the view"
        assert ask_from("/proc", address, "status") == "{}"
        assert ask_from("/", address) == "{}"


def test_a_process_whose_root_is_the_view_is_inside_it() -> None:
    view = ViewStandingAt("/")
    objection = view.objection(Peer(os.getpid(), os.geteuid(), 0))
    assert objection == "its root directory is in the view"


def test_a_process_for_which_the_view_lies_elsewhere_is_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def mounts(*places: str) -> list[Mount]:
        return [Mount(9, "0:99999", Path(place), "fuse.sandboxfs", "sandboxfs") for place in places]

    monkeypatch.setattr(MountTable, "read", lambda: MountTable(mounts("/mnt/view")))
    view = ViewWatch(Path("/mnt/view"))
    peer = Peer(os.getpid(), os.geteuid(), 0)
    monkeypatch.setattr(control_peers, "parse_mountinfo", lambda content: mounts("/mnt/view"))
    assert view.objection(peer) is None
    monkeypatch.setattr(control_peers, "parse_mountinfo", lambda content: mounts("/home/me/project"))
    assert view.objection(peer) == "it has the view where others have the workspace"


def test_a_process_that_is_gone_has_handed_its_connection_on() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    view = ViewStandingAt("/proc")
    assert view.objection(Peer(gone.pid, os.geteuid(), 0)) == "the process that connected is gone"


def test_nothing_is_held_against_anyone_before_there_is_a_view() -> None:
    assert ViewWatch(Path("/nowhere/mounted")).objection(Peer(os.getpid(), os.geteuid(), 0)) is None


def test_the_device_of_a_path_is_found_as_stat_finds_it(tmp_path: Path) -> None:
    for place in (tmp_path, Path("/proc"), Path("/proc/self/cwd")):
        device = os.stat(place).st_dev
        assert device_of(str(place)) == f"{os.major(device)}:{os.minor(device)}"
    with pytest.raises(FileNotFoundError):
        device_of(str(tmp_path / "missing"))


def test_a_request_is_an_error_before_it_is_a_verb(address: ControlAddress) -> None:
    with serving(address), pytest.raises(UsageError, match="knows no verb 'fly'") as raised:
        ask(address, "fly")
    assert "echo" in str(raised.value.details["verbs"])


class Counting:
    """Results without end, for each connection that wants them."""

    def __init__(self, pause: float, size: int) -> None:
        self.ended = threading.Semaphore(0)
        self._pause = pause
        self._size = size

    def __call__(self, request: Request, peer: Peer) -> object:
        return self.results()

    async def results(self) -> AsyncIterator[object]:
        try:
            for number in count():
                yield [number, "x" * self._size]
                await trio.sleep(self._pause)
        finally:
            self.ended.release()


def test_a_handler_may_give_results_until_the_client_has_enough(address: ControlAddress) -> None:
    counting = Counting(0.01, 0)
    with serving(address, {**HANDLERS, "count": counting}):
        with connected(address) as connection:
            connection.sendall(line("count"))
            with connection.makefile("rb") as lines:
                told = [json.loads(lines.readline()) for _ in range(3)]
            # What it sends meanwhile is ignored.
            connection.sendall(line("echo"))
        assert [one["result"][0] for one in told] == [0, 1, 2]
        assert {one["id"] for one in told} == {1}
        assert counting.ended.acquire(timeout=PATIENCE)


def test_a_client_that_takes_no_results_is_left(
    address: ControlAddress, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting(0, 1 << 16)
    verbs: dict[str, Handler] = {**HANDLERS, "count": counting}
    with serving(address, verbs, patience=LITTLE_PATIENCE), connected(address) as connection:
        connection.sendall(line("count"))
        assert counting.ended.acquire(timeout=PATIENCE)
    assert not caplog.records


def test_a_client_that_goes_while_it_is_told_something_is_no_bug(
    address: ControlAddress, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting(0, 1 << 16)
    with serving(address, {**HANDLERS, "count": counting}):
        for _ in range(10):
            with connected(address) as connection:
                connection.sendall(line("count"))
                connection.recv(100)
            assert counting.ended.acquire(timeout=PATIENCE)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
