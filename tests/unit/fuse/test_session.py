"""Which kernels are trusted with what?"""

import os
from types import SimpleNamespace

import pytest

from sandboxfs.fuse import session


@pytest.mark.parametrize(
    ("release", "given"),
    [
        ("5.15.0-122-generic", False),
        ("6.1.0-28-amd64", False),
        ("6.10.14", False),
        ("6.11.0-9-generic", True),
        ("6.18.44", True),
        ("7.0.0", True),
        ("something else", False),
    ],
)
def test_files_are_given_to_kernels_that_clear_what_follows_their_end(
    monkeypatch: pytest.MonkeyPatch, release: str, given: bool
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    assert session._stores_well.__wrapped__() is given
