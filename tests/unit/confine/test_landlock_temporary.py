"""Is the temporary directory of a run its own, and is one that was left behind removed?"""

import os
import signal
from pathlib import Path

from sandboxfs.confine.landlock import make_temporary


def test_what_a_process_left_is_removed_when_it_has_ended_and_not_before(tmp_path: Path) -> None:
    folder = tmp_path / "run/tmp"
    ready, made = os.pipe()
    owner = os.fork()
    if owner == 0:
        make_temporary(folder / "first")
        (folder / "first/file").write_text("text")
        os.write(made, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"x"
        make_temporary(folder / "second")
        assert (folder / "first/file").read_text() == "text"
    finally:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        for descriptor in (ready, made):
            os.close(descriptor)
    make_temporary(folder / "third")
    assert {path.name for path in folder.iterdir()} == {"second", "third"}


def test_what_no_run_made_stays(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/link").symlink_to(tmp_path)
    (tmp_path / "tmp/file").write_text("")
    make_temporary(tmp_path / "tmp/mine")
    assert {path.name for path in (tmp_path / "tmp").iterdir()} == {"link", "file", "mine"}
