"""Waiting for processes ends when they do."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxfs.control.unmount import ProcessWatch, detach


def test_a_process_that_ended_is_not_waited_for() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with ProcessWatch([ended.pid]) as watch:
        assert watch.wait_for_all(60)


def test_the_end_of_a_process_is_noticed() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process, ProcessWatch([process.pid]) as watch:
        assert not watch.wait_for_all(0.05)
        process.communicate(b"\n")
        assert watch.wait_for_all(60)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask the kernel itself")
def test_detaching_what_is_not_mounted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError) as refused:
        detach(tmp_path, lazy=False)
    assert refused.value.errno == errno.EINVAL
