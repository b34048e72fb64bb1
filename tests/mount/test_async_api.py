"""`AsyncSandbox`: programs of one event loop run at once, and end when what waits for them is cancelled."""

import asyncio
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sandboxfs import AsyncSandbox, Sandbox
from sandboxfs.api.sandbox import PIPE
from tests.support import runs
from tests.support.tree import build

pytestmark = pytest.mark.any_user

FOREVER = "trap '' TERM HUP INT; echo begun > begun; exec sleep 98762"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(tmp_path / "workspace", {"file": "text\n"})


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + runs.PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def test_a_block_runs_programs_and_reviews_what_they_did(workspace: Path) -> None:
    async def use() -> None:
        async with AsyncSandbox(Sandbox(workspace)) as sandbox:
            done = await sandbox.run(
                ["sh", "-c", "cat; echo more >> file; touch made; exit 3"], input=b"\xff", capture_output=True
            )
            assert (done.returncode, done.stdout, done.stderr) == (3, b"\xff", b"")
            assert [str(change) for change in await sandbox.changes()] == ["M file", "A made"]
            assert await sandbox.denials() == ()
            await sandbox.commit("file")
            await sandbox.discard()
            assert await sandbox.changes() == ()
            await sandbox.undo()
            assert [change.path for change in await sandbox.changes()] == ["made"]
            with pytest.raises(subprocess.CalledProcessError):
                await sandbox.run(["false"], check=True)

    asyncio.run(use())
    assert (workspace / "file").read_text() == "text\nmore\n"


def test_cancellation_ends_the_program(workspace: Path) -> None:
    async def use() -> None:
        async with AsyncSandbox(Sandbox(workspace)) as sandbox:
            running = asyncio.create_task(sandbox.run(["sh", "-c", FOREVER]))
            await asyncio.to_thread(wait_for, sandbox.view / "begun")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert runs.processes_with("98762") == []
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await sandbox.run(["sh", "-c", FOREVER])
            assert runs.processes_with("98762") == []

    asyncio.run(use())
    runs.check_nothing_left("98762")


def test_cancelling_the_block_ends_it_and_its_programs(workspace: Path) -> None:
    async def use() -> None:
        async with AsyncSandbox(Sandbox(workspace)) as sandbox:
            await sandbox.run(["sh", "-c", FOREVER])

    async def main() -> None:
        for seconds in (0.0, 0.05, 0.2, 1.0):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await use()
            runs.check_nothing_left("98762")
            for one in Sandbox.list():
                Sandbox.remove(one.name, force=True)

    asyncio.run(main())


def test_more_programs_run_at_once_than_a_pool_has_threads(workspace: Path) -> None:
    meeting = "echo > $0.here; until [ $(ls | grep -c here) = 8 ]; do sleep 0.05; done"

    async def use() -> None:
        async with AsyncSandbox(Sandbox(workspace)) as sandbox:
            calls = [sandbox.run(["sh", "-c", meeting, str(number)]) for number in range(8)]
            assert [done.returncode for done in await asyncio.gather(*calls)] == [0] * 8

    asyncio.run(use())


def test_a_program_is_talked_with_by_streams(workspace: Path) -> None:
    async def use() -> None:
        script = "while read line; do echo got $line; done"
        async with AsyncSandbox(Sandbox(workspace)) as sandbox:
            program = await sandbox.popen(["sh", "-c", script], stdin=PIPE, stdout=PIPE)
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write(b"a\n")
            await program.stdin.drain()
            assert await program.stdout.readline() == b"got a\n"
            assert program.returncode is None
            program.stdin.close()
            assert await program.wait() == 0
            second = await sandbox.popen(["sh", "-c", FOREVER])
            second.kill()
            assert await second.wait() == 128 + signal.SIGKILL

    asyncio.run(use())
