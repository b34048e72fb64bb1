"""Does sqlite keep its promises in the view, with several writers and on a database of the workspace?"""

import sqlite3
from pathlib import Path

import pytest

from tests.support.mount_driver import MountDriver
from tests.support.mounted import companion, run, says, tell
from tests.support.placed import kill_daemon
from tests.workloads.conftest import Mount

ROWS = 150

WRITE_ROWS = """
import sqlite3, sys
database = sqlite3.connect("app.db", timeout=60, isolation_level=None)
database.execute("pragma synchronous = normal")
print("open")
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    database.execute("begin immediate")
    count, = database.execute("select count(*) from lines").fetchone()
    database.execute("insert into lines values (?, ?, ?)", (sys.argv[1], number, count))
    database.execute("commit")
    if number % 20 == 0:
        print(number)
database.close()
print("done")
"""


def make_database(path: Path, mode: str) -> None:
    database = sqlite3.connect(path)
    assert database.execute(f"pragma journal_mode = {mode}").fetchone() == (mode,)
    database.execute("create table lines (writer text, number integer, seen integer unique)")
    database.executemany(
        "insert into lines values ('host', ?, ?)", ((number, number) for number in range(ROWS))
    )
    database.commit()
    database.close()


def check_sound(path: Path, rows: int) -> None:
    database = sqlite3.connect(path, timeout=60)
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    assert database.execute("select count(*), count(distinct seen) from lines").fetchone() == (rows, rows)
    database.close()


@pytest.fixture(params=["wal", "delete"])
def sandbox(mount: Mount, request: pytest.FixtureRequest) -> MountDriver:
    """A mount whose workspace holds a database."""
    made = mount({})
    make_database(made.lower / "app.db", request.param)
    made.host_changed()
    return made


def test_two_writers_at_once_lose_nothing_and_repeat_nothing(sandbox: MountDriver) -> None:
    path = sandbox.root / "app.db"
    # A reader that was there before the database was copied up, and stays.
    reader = sqlite3.connect(path, timeout=60)
    assert reader.execute("select count(*) from lines").fetchone() == (ROWS,)
    with (
        companion(WRITE_ROWS, "one", str(ROWS), cwd=sandbox.root) as one,
        companion(WRITE_ROWS, "two", str(ROWS), cwd=sandbox.root) as two,
    ):
        writers = (one, two)
        assert [says(writer) for writer in writers] == ["open", "open"]
        for writer in writers:
            tell(writer, "go")
        for writer in writers:
            while says(writer) != "done":
                assert reader.execute("select count(*) from lines").fetchone() >= (ROWS,)
    assert reader.execute("select count(*) from lines").fetchone() == (3 * ROWS,)
    reader.close()
    check_sound(path, 3 * ROWS)
    sandbox.remount()
    check_sound(path, 3 * ROWS)
    check_sound_on_the_host(sandbox)


def check_sound_on_the_host(sandbox: MountDriver) -> None:
    # Opened as a file that nobody changes, or looking at it would make files beside it.
    database = sqlite3.connect(f"file:{sandbox.lower / 'app.db'}?immutable=1", uri=True)
    assert database.execute("select count(*) from lines").fetchone() == (ROWS,)
    database.close()


def test_a_database_survives_that_the_daemon_is_killed_under_its_writer(mount: Mount) -> None:
    sandbox = mount({})
    make_database(sandbox.root / "app.db", "wal")
    with companion(WRITE_ROWS, "one", "100000", cwd=sandbox.root) as writer:
        assert says(writer) == "open"
        tell(writer, "go")
        written = 0
        while written < 100:
            written = int(says(writer))
        kill_daemon(sandbox)
    sandbox.start()
    database = sqlite3.connect(sandbox.root / "app.db")
    assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    (count,) = database.execute("select count(*) from lines where writer = 'one'").fetchone()
    assert count > written
    database.close()
    run("sync", "-f", ".", cwd=sandbox.root)
