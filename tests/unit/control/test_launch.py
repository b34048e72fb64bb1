"""A daemon that does not get ready is reported, and none is left behind."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.control import launch as launching
from sandboxfs.errors import DaemonLost, MountFailed
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store

# What each stand-in finds: the name of the sandbox, then options, with the pipe as the last word.
PREFIX = "import os, sys\npipe = int(sys.argv[-1])\n"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Locations(tmp_path / "state", tmp_path / "run", tmp_path / "config.toml"))


@pytest.fixture
def lock(store: Store, tmp_path: Path) -> SandboxLock:
    record = SandboxRecord("app", tmp_path / "w", tmp_path / "m", datetime(2026, 1, 2, tzinfo=UTC))
    return store.create(record)


def stand_in(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let *script* be started instead of the daemon."""
    monkeypatch.setattr(
        launching, "daemon_command", lambda name, lock: [sys.executable, "-c", PREFIX + script, name]
    )


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
    stand_in(monkeypatch, f"os.write(pipe, b'''{report}\\n''')")
    with pytest.raises(MountFailed, match="no luck") as failed:
        launching.launch(store.locations, "app", lock)
    assert failed.value.hint == "try again"


def test_a_daemon_that_says_nothing_in_time_is_ended(
    store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "PATIENCE", 3.0)
    stand_in(monkeypatch, "print(os.getpid(), flush=True)\nimport signal\nsignal.pause()")
    with pytest.raises(DaemonLost, match="was not ready"):
        launching.launch(store.locations, "app", lock)
    pid = int(store.places("app").log.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_daemon_gets_the_state_directory_and_no_descriptors_but_the_needed(
    store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = os.open("/", os.O_RDONLY)
    os.set_inheritable(stray, True)
    stand_in(
        monkeypatch,
        "names = sorted(int(name) for name in os.listdir('/proc/self/fd'))\n"
        "print(names, pipe, os.getcwd(), os.getsid(0) == os.getpid(), os.environ['SANDBOXFS_STATE_DIR'])",
    )
    with pytest.raises(DaemonLost):
        launching.launch(store.locations, "app", lock)
    os.close(stray)
    said = store.places("app").log.read_text().strip()
    names, rest = said[1:].split("] ")
    pipe, directory, leads, state = rest.split()
    held = {int(number) for number in names.split(",")}
    # The listing itself has one more open, which takes the lowest free number.
    assert held - {3} == {0, 1, 2, int(pipe), lock.descriptor} - {3}
    assert (directory, leads, state) == ("/", "True", str(store.locations.state))


def test_a_long_log_is_put_aside(store: Store, lock: SandboxLock, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store.places("app").log
    log.write_bytes(b"x" * (2 << 20))
    stand_in(monkeypatch, "print('new', flush=True)")
    with pytest.raises(DaemonLost):
        launching.launch(store.locations, "app", lock)
    assert log.read_text() == "new\n"
    assert log.with_name("daemon.log.1").stat().st_size == 2 << 20
