"""The run lock: one run may choose a sandbox, others may be named into it."""

import os
from pathlib import Path

import pytest

from sandboxfs.errors import NoSuchSandbox
from sandboxfs.state.locations import SandboxPlaces
from sandboxfs.state.lock import claim, share


@pytest.fixture
def places(tmp_path: Path) -> SandboxPlaces:
    (tmp_path / "app").mkdir()
    return SandboxPlaces(tmp_path / "app")


def test_a_sandbox_that_a_run_uses_cannot_be_claimed_until_it_ends(places: SandboxPlaces) -> None:
    first = claim(places)
    assert first is not None
    assert claim(places) is None
    os.close(first)
    second = claim(places)
    assert second is not None
    os.close(second)


def test_a_sandbox_is_in_use_until_the_last_of_its_runs_has_ended(places: SandboxPlaces) -> None:
    first = claim(places)
    assert first is not None
    second, third = share(places), share(places)
    for descriptor in (first, second, third):
        assert claim(places) is None
        os.close(descriptor)
    fourth = claim(places)
    assert fourth is not None
    os.close(fourth)


@pytest.mark.parametrize("use", [claim, share])
def test_a_sandbox_that_is_gone_cannot_be_used(places: SandboxPlaces, use: object) -> None:
    places.home.rmdir()
    with pytest.raises(NoSuchSandbox):
        claim(places) if use is claim else share(places)


def test_a_failed_claim_leaves_no_descriptor_open(places: SandboxPlaces) -> None:
    held = share(places)
    before = len(os.listdir("/proc/self/fd"))
    assert claim(places) is None
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(held)
