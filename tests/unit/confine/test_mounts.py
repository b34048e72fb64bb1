"""What is bubblewrap asked for?"""

from itertools import pairwise
from pathlib import Path

import pytest

from sandboxfs.confine.mounts import ConfinedMounts, System, bubblewrap_arguments

SYSTEM = System(
    (Path("/usr"), Path("/etc")),
    links=((Path("/bin"), "usr/bin"),),
    secret_files=(Path("/etc/shadow"),),
    secret_directories=(Path("/etc/ssl/private"),),
    kernel_settings=(Path("/proc/sys"),),
)


def asked(network: bool = False, *more: tuple[str, str]) -> list[str]:
    writable = tuple((Path(source), Path(place)) for source, place in more)
    return bubblewrap_arguments(ConfinedMounts(SYSTEM, writable, network=network), filter_descriptor=7)


def place(words: list[str], *wanted: str) -> int:
    """Where *wanted* stands among *words*, one after the other."""
    found = [at for at in range(len(words)) if tuple(words[at : at + len(wanted)]) == wanted]
    assert len(found) == 1, f"{wanted} is there {len(found)} times"
    return found[0]


def test_every_namespace_is_new_and_the_network_unless_it_is_allowed() -> None:
    for kind in ("user", "ipc", "pid", "uts", "cgroup-try", "net"):
        assert f"--unshare-{kind}" in asked()
    assert "--unshare-net" not in asked(network=True)


def test_no_capability_is_kept() -> None:
    place(asked(), "--cap-drop", "ALL")


def test_inner_places_come_after_outer_ones_so_that_they_are_not_covered() -> None:
    words = asked(False, ("/state/view", "/home/u/app"), ("/state/home", "/home/u"))
    assert place(words, "--bind", "/state/home", "/home/u") < place(
        words, "--bind", "/state/view", "/home/u/app"
    )
    assert place(words, "--ro-bind", "/etc", "/etc") < place(words, "--ro-bind", "/dev/null", "/etc/shadow")
    assert place(words, "--proc", "/proc") < place(words, "--ro-bind", "/proc/sys", "/proc/sys")


@pytest.mark.parametrize("temporary", ["/tmp", "/var/tmp", "/dev/shm"])
def test_a_place_below_one_that_is_made_anew_comes_after_it(temporary: str) -> None:
    words = asked(False, ("/state/view", f"{temporary}/app"))
    bound = place(words, "--bind", "/state/view", f"{temporary}/app")
    assert place(words, "--tmpfs", temporary) < bound
    assert place(words, "--dev", "/dev") < bound < place(words, "--remount-ro", "/dev")


def test_a_place_below_run_comes_after_it() -> None:
    words = asked(False, ("/state/view", "/run/user/0/app"))
    assert place(words, "--dir", "/run") < place(words, "--bind", "/state/view", "/run/user/0/app")


@pytest.mark.parametrize(
    ("shown", "temporary"),
    [("/tmp", "/tmp"), ("/var/tmp", "/var/tmp"), ("/dev/shm", "/dev/shm"), ("/var", "/var/tmp")],
)
def test_no_temporary_directory_covers_what_was_asked_for(shown: str, temporary: str) -> None:
    words = asked(False, ("/state/view", shown))
    place(words, "--bind", "/state/view", shown)
    assert ("--tmpfs", temporary) not in pairwise(words)


def test_the_root_and_the_devices_are_read_only_in_the_end() -> None:
    words = asked(False, ("/state/view", "/home/u/app"))
    assert place(words, "--bind", "/state/view", "/home/u/app") < place(words, "--remount-ro", "/")
    assert place(words, "--dev", "/dev") < place(words, "--remount-ro", "/dev")


def test_temporary_directories_have_a_limit_where_bubblewrap_knows_one() -> None:
    assert asked().count("--size") == 3
    assert "--size" not in bubblewrap_arguments(ConfinedMounts(SYSTEM, ()), filter_descriptor=7, sizes=False)


def test_without_a_filter_the_program_is_kept_from_the_terminal() -> None:
    assert "--new-session" not in asked()
    assert "--new-session" in bubblewrap_arguments(ConfinedMounts(SYSTEM, ()), filter_descriptor=None)


def test_symlinks_of_the_system_are_made_anew() -> None:
    place(asked(), "--symlink", "usr/bin", "/bin")
