"""What is bubblewrap asked for?"""

from pathlib import Path

from sandboxfs.confine.bubblewrap import World, arguments
from sandboxfs.confine.system import System

SYSTEM = System(
    (Path("/usr"), Path("/etc")),
    links=((Path("/bin"), "usr/bin"),),
    secret_files=(Path("/etc/shadow"),),
    secret_directories=(Path("/etc/ssl/private"),),
    kernel_settings=(Path("/proc/sys"),),
)


def asked(network: bool = False, *more: tuple[str, str]) -> list[str]:
    writable = tuple((Path(source), Path(place)) for source, place in more)
    return arguments(World(SYSTEM, writable, network=network), filter_descriptor=7)


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


def test_a_workspace_below_a_temporary_directory_comes_after_it() -> None:
    words = asked(False, ("/state/view", "/tmp/app"))
    assert place(words, "--tmpfs", "/tmp") < place(words, "--bind", "/state/view", "/tmp/app")


def test_the_root_and_the_devices_are_read_only_in_the_end() -> None:
    words = asked(False, ("/state/view", "/home/u/app"))
    assert place(words, "--bind", "/state/view", "/home/u/app") < place(words, "--remount-ro", "/")
    assert place(words, "--dev", "/dev") < place(words, "--remount-ro", "/dev")


def test_temporary_directories_have_a_limit_where_bubblewrap_knows_one() -> None:
    assert asked().count("--size") == 3
    assert "--size" not in arguments(World(SYSTEM, ()), filter_descriptor=7, sizes=False)


def test_without_a_filter_the_program_is_kept_from_the_terminal() -> None:
    assert "--new-session" not in asked()
    assert "--new-session" in arguments(World(SYSTEM, ()), filter_descriptor=None)


def test_symlinks_of_the_system_are_made_anew() -> None:
    place(asked(), "--symlink", "usr/bin", "/bin")
