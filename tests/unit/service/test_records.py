"""What is listed of commits and discards."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandboxfs.cli.main import main
from sandboxfs.codec import restored
from sandboxfs.commit.records import COMMIT, Records, RecordSummary
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import SandboxRecord, Store


@pytest.mark.parametrize(
    ("message", "listed"),
    [
        ("it's a first try", "it's a first try"),
        ("Grüße", "Grüße"),
        ("two\nlines", r"'two\nlines'"),
        ("\x1b[2J", r"'\x1b[2J'"),
        ("\udcff", r"'\xff'"),
    ],
)
def test_a_message_cannot_write_to_the_terminal(
    message: str, listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(Locations.from_environment())
    store.create(
        SandboxRecord("app", Path("/srv/app"), Path("/mnt/app"), datetime(2026, 1, 2, tzinfo=UTC))
    ).release()
    with (
        HostDir.at(store.places("app").home) as home,
        Records(home).new(RecordSummary.now(COMMIT, (), message)) as made,
    ):
        made.write("done", value=True)
    assert main(["undo", "--list"]) == 0
    _, row = capsys.readouterr().out.splitlines()
    assert row.endswith(f"  {listed}")
    assert main(["undo", "--list", "--json"]) == 0
    record = restored(json.loads(capsys.readouterr().out)["records"][0])
    assert record["message"] == message
