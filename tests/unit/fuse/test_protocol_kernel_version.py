"""Is a kernel relied on for what it can do, and for nothing else?"""

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from sandboxfs.fuse import protocol


@pytest.fixture(autouse=True)
def asked_again() -> Iterator[None]:
    protocol._version.cache_clear()
    yield
    protocol._version.cache_clear()


@pytest.mark.parametrize(
    ("release", "drops", "stores"),
    [
        ("5.15.0-122-generic", False, False),
        ("6.1.0-28-amd64", False, False),
        ("6.10.14", False, False),
        ("6.11.0-9-generic", False, True),
        ("6.18.0-5-generic", False, True),
        ("6.18.2", False, True),
        ("6.18.3", True, True),
        ("6.18.44-something", True, True),
        ("6.19-rc1", True, True),
        ("6.19.0", True, True),
        ("7.0", True, True),
        ("something else", False, False),
    ],
)
def test_a_kernel_is_relied_on_from_the_version_on_that_can_do_it(
    monkeypatch: pytest.MonkeyPatch, release: str, drops: bool, stores: bool
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    assert (protocol.drops_what_is_written_over(), protocol.stores_well()) == (drops, stores)
