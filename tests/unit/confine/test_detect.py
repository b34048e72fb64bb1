"""Is a confinement tried once, and chosen for a reason?"""

import os
from pathlib import Path

import pytest

from sandboxfs.confine import detect
from sandboxfs.confine.detect import Confinement, ProbeResult, choose, forget
from sandboxfs.confine.mounts import System
from sandboxfs.errors import MountFailed

NOTHING = System(())


@pytest.fixture
def bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bubblewrap that says how often it was asked."""
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho asked >> "{tmp_path}/asked"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def asked(tmp_path: Path) -> int:
    try:
        return (tmp_path / "asked").read_text().count("asked")
    except FileNotFoundError:
        return 0


def test_what_worked_is_not_tried_again(tmp_path: Path, bwrap: Path) -> None:
    memory = tmp_path / "memory"
    for _ in range(3):
        chosen = choose(Confinement.AUTO, NOTHING, memory)
        assert (chosen.confinement, chosen.finding.program) == (Confinement.BUBBLEWRAP, bwrap)
    assert asked(tmp_path) == 1
    os.utime(bwrap, (1, 1))
    for _ in range(2):
        choose(Confinement.AUTO, NOTHING, memory)
    assert asked(tmp_path) == 2
    forget(memory)
    choose(Confinement.AUTO, NOTHING, memory)
    assert asked(tmp_path) == 3


def test_without_bubblewrap_it_is_landlock_and_said_why(
    tmp_path: Path, bwrap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    monkeypatch.setattr(detect, "try_landlock", lambda: ProbeResult(abi=6))
    chosen = choose(Confinement.AUTO, NOTHING, tmp_path / "memory")
    assert (chosen.confinement, chosen.weaker) == (
        Confinement.LANDLOCK,
        "No permissions to create new namespace",
    )
    assert not (tmp_path / "memory").exists()
    with pytest.raises(MountFailed, match="No permissions") as refused:
        choose(Confinement.BUBBLEWRAP, NOTHING, tmp_path / "memory")
    assert refused.value.hint is not None


def test_without_either_it_is_refused(tmp_path: Path, bwrap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bwrap.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(detect, "try_landlock", lambda: ProbeResult("this kernel has none"))
    with pytest.raises(MountFailed, match="this kernel has none; bubblewrap: bwrap ended with status 1"):
        choose(Confinement.AUTO, NOTHING, tmp_path / "memory")
    assert choose(Confinement.NONE, NOTHING, tmp_path / "memory").confinement is Confinement.NONE


def test_an_old_bubblewrap_is_used_without_sizes(tmp_path: Path, bwrap: Path) -> None:
    complaint = 'echo "bwrap: Unknown option --size" >&2; exit 1'
    bwrap.write_text(f'#!/bin/sh\nfor word; do [ "$word" != --size ] || {{ {complaint}; }}; done\n')
    for _ in range(2):
        assert choose(Confinement.AUTO, NOTHING, tmp_path / "memory").finding.sizes is False
