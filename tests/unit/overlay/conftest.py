"""An overlay of an empty workspace, for tests that need no more."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.overlay.overlay import Overlay, OverlayPaths


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Overlay]:
    umask = os.umask(0)
    parts = [tmp_path / name for name in ("workspace", "upper", "work", "index")]
    for part in parts:
        part.mkdir()
    made = Overlay(OverlayPaths(parts[:1], *parts[1:]))
    yield made
    made.close()
    os.umask(umask)
