"""What this machine lacks is said together with what mends it."""

from pathlib import Path

import pytest

from sandboxfs.control import start_daemon
from sandboxfs.errors import MountFailed


def test_a_missing_device_is_reported_with_its_mend(tmp_path: Path) -> None:
    with pytest.raises(MountFailed) as refused:
        start_daemon.check_device(tmp_path / "fuse")
    assert "there is no" in refused.value.message
    assert "modprobe fuse" in str(refused.value.hint)


def test_a_device_that_does_not_open_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MountFailed, match="cannot open"):
        start_daemon.check_device(tmp_path)


def test_root_needs_no_helper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    start_daemon.check_helper(privileged=True)


def test_a_missing_helper_is_reported_with_its_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MountFailed) as refused:
        start_daemon.check_helper(privileged=False)
    assert refused.value.hint == "apt install fuse3"


def test_a_helper_that_is_not_setuid_is_reported_with_its_mend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    helper = tmp_path / "fusermount3"
    helper.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MountFailed) as refused:
        start_daemon.check_helper(privileged=False)
    assert refused.value.hint == f"chmod u+s {helper} (as root)"


@pytest.mark.parametrize(
    ("text", "permitted"),
    [
        ("user_allow_other\n", True),
        ("  user_allow_other  ", True),
        ("#user_allow_other\n", False),
        ("", False),
    ],
)
def test_allow_other_is_permitted_by_a_line_of_its_own(tmp_path: Path, text: str, permitted: bool) -> None:
    config = tmp_path / "fuse.conf"
    config.write_text(text)
    assert start_daemon.allow_other_permitted(config) == permitted
    start_daemon.check_allow_other(privileged=True, config=config)
    if not permitted:
        with pytest.raises(MountFailed, match="may not use --allow-other"):
            start_daemon.check_allow_other(privileged=False, config=config)


def test_allow_other_is_not_permitted_where_there_is_no_configuration(tmp_path: Path) -> None:
    assert not start_daemon.allow_other_permitted(tmp_path / "fuse.conf")
