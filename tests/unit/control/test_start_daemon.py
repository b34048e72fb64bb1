"""A daemon that does not get ready is reported, and none is left behind."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.control import prestart
from sandboxfs.control import start_daemon as launching
from sandboxfs.errors import DaemonLost, MountFailed
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.store import SandboxRecord, Store

# What each stand-in finds: the channel as the last word, and through it its orders, the lock and the log.
PREFIX = """
import json, os, socket, sys
channel = socket.socket(fileno=int(sys.argv[-2]))
orders, (lock, output), _, _ = socket.recv_fds(channel, 65536, 4)
orders = json.loads(orders)
for standard in (1, 2):
    os.dup2(output, standard)
os.close(output)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Locations(tmp_path / "state", tmp_path / "run", tmp_path / "config.toml"))


@pytest.fixture
def lock(store: Store, tmp_path: Path) -> SandboxLock:
    record = SandboxRecord("app", tmp_path / "w", tmp_path / "m", datetime(2026, 1, 2, tzinfo=UTC))
    return store.create(record)


def stand_in(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let *script* be started instead of the daemon."""
    monkeypatch.setattr(prestart, "daemon_command", lambda: [sys.executable, "-c", PREFIX + script])


def test_a_daemon_that_dies_is_lost_and_its_last_words_are_told(
    store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "print('last words', flush=True)\nos._exit(3)")
    with pytest.raises(DaemonLost) as lost:
        launching.launch(store.locations, "app", lock)
    assert "last words" in lost.value.message
    assert str(store.places("app").log) in str(lost.value.hint)


def test_the_error_that_a_daemon_reports_is_raised(
    store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = '{"error": {"code": "mount-failed", "exit": 6, "message": "no luck", "hint": "try again"}}'
    stand_in(monkeypatch, f"channel.send(b'''{report}''')")
    with pytest.raises(MountFailed, match="no luck") as failed:
        launching.launch(store.locations, "app", lock)
    assert failed.value.hint == "try again"


def test_a_daemon_that_says_nothing_in_time_is_ended(
    store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "PATIENCE", 1.0)
    stand_in(monkeypatch, "import signal\nsignal.pause()")
    waiting = prestart.WaitingDaemon.start()
    with pytest.raises(DaemonLost, match="was not ready"):
        launching.launch(store.locations, "app", lock, waiting)
    with pytest.raises(ProcessLookupError):
        os.kill(waiting.process.pid, 0)


def test_a_daemon_gets_the_state_directory_and_no_descriptors_but_the_needed(
    store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = os.open("/", os.O_RDONLY)
    os.set_inheritable(stray, True)
    stand_in(
        monkeypatch,
        "names = sorted(int(name) for name in os.listdir('/proc/self/fd'))\n"
        "print(names, channel.fileno(), lock, os.getcwd(), os.getsid(0) == os.getpid(), orders['state'])",
    )
    with pytest.raises(DaemonLost):
        launching.launch(store.locations, "app", lock)
    os.close(stray)
    said = store.places("app").log.read_text().strip()
    names, rest = said[1:].split("] ")
    channel, handed, directory, leads, state = rest.split()
    held = {int(number) for number in names.split(",")}
    # The listing itself has one more open, which takes the lowest free number.
    others = held - {0, 1, 2, int(channel), int(handed)}
    assert len(others) == 1
    assert min(others) <= 5
    assert (directory, leads, state) == ("/", "True", str(store.locations.state))


def test_a_long_log_is_put_aside(store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store.places("app").log
    log.write_bytes(b"x" * (2 << 20))
    stand_in(monkeypatch, "print('new', flush=True)")
    with pytest.raises(DaemonLost):
        launching.launch(store.locations, "app", lock)
    assert log.read_text() == "new\n"
    assert log.with_name("daemon.log.1").stat().st_size == 2 << 20


def test_a_daemon_that_waits_serves_when_it_has_its_orders(
    store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "channel.send(json.dumps({'ready': orders['name'] == 'app'}).encode())")
    waiting = prestart.WaitingDaemon.start()
    launched = launching.launch(store.locations, "app", lock, waiting)
    assert launched.pid == waiting.process.pid
    os.waitpid(launched.pid, 0)


def test_the_lifeline_that_a_daemon_sends_is_the_callers(
    store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(
        monkeypatch,
        "reading, writing = os.pipe()\nsocket.send_fds(channel, [b'{}'], [writing])\nos.close(writing)\n"
        "channel.send(b'{\"ready\": true}')\nprint(os.read(reading, 9), os.read(reading, 9), flush=True)",
    )
    launched = launching.launch(store.locations, "app", lock, with_lifeline=True)
    assert launched.lifeline is not None
    os.write(launched.lifeline, b"alive")
    os.close(launched.lifeline)
    os.waitpid(launched.pid, 0)
    assert store.places("app").log.read_text() == "b'alive' b''\n"


def test_a_daemon_whose_orders_do_not_come_ends_by_itself() -> None:
    waiting = prestart.WaitingDaemon.start()
    waiting.channel.close()
    assert waiting.process.wait(60) == 0


def test_a_daemon_that_is_not_needed_is_ended_at_once() -> None:
    waiting = prestart.WaitingDaemon.start()
    waiting.end()
    assert waiting.process.returncode is not None
