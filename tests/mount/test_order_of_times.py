"""Do times in the view tell what came after what?"""

import os

import pytest

from tests.mount.conftest import Mount

pytestmark = pytest.mark.any_user


def test_what_is_written_after_a_touch_is_not_older(mount: Mount) -> None:
    sandbox = mount({"touched": "", "written": ""})
    written = os.open(sandbox.root / "written", os.O_WRONLY)
    try:
        for _ in range(50):
            os.pwrite(written, b"before", 0)
            os.utime(sandbox.root / "touched")
            os.pwrite(written, b"after", 0)
            assert os.fstat(written).st_mtime_ns >= (sandbox.root / "touched").stat().st_mtime_ns
    finally:
        os.close(written)
