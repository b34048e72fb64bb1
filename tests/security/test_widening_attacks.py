"""Can a program turn its asking for directories against the host, the person, or the daemon?"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.control.control_socket import ask, control_address
from sandboxfs.errors import UsageError
from sandboxfs.state.locations import Locations
from tests.security.conftest import Guarded
from tests.support import runs
from tests.support.asked import following
from tests.support.live_run import LiveRun, live_run
from tests.support.mount_driver import run_sandboxfs
from tests.support.mounted import python
from tests.support.tree import Tree, assert_same_tree, build, capture

pytestmark = [pytest.mark.mount, pytest.mark.security]

MARK = f"of these attacks alone {os.getpid()}"
PLACES: Tree = {"test/file": "text\n", "library/code": "code\n", "deep/er/thing": "thing\n"}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    runs.require("bubblewrap")
    top = build(tmp_path / "places", PLACES)
    before = capture(top)
    yield top
    runs.check_nothing_left(MARK)
    assert_same_tree(capture(top), before, what="the places")


@pytest.fixture
def run(places: Path) -> Iterator[LiveRun]:
    with live_run(places / "test", "--confine", "bubblewrap") as made:
        yield made


def allow(place: Path, status: int) -> str:
    done = run_sandboxfs("allow", "-s", "test", place, cwd=Path("/"))
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def companion_mounts(run: LiveRun, workspace: Path) -> list[str]:
    """Where the program sees views of sandboxes other than its own."""
    table = [line.split() for line in run.do("cat /proc/self/mountinfo").splitlines()]
    own = {line[2] for line in table if line[4] == str(workspace)}
    return [line[4] for line in table if "fuse.sandboxfs" in line and line[2] not in own]


@pytest.mark.parametrize(
    "obstacle",
    [
        "ln -s /etc {place}",
        "ln -s {home} {place}",
        "echo x > {place}",
        "mkfifo {place}",
    ],
)
def test_what_the_program_has_put_in_the_place_is_not_followed(
    run: LiveRun, places: Path, obstacle: str
) -> None:
    place = places / "library"
    run.do(obstacle.format(place=place, home=os.environ["HOME"]))
    assert "there is no directory inside" in allow(place, 2)
    assert companion_mounts(run, places / "test") == []
    # Nor what stands above it.
    run.do(f"ln -s /etc {places}/deep")
    assert "there is no directory inside" in allow(places / "deep/er", 2)
    assert companion_mounts(run, places / "test") == []


# Exchanges a directory with a link, and makes and removes it, as fast as it can.
RACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
place, other = (os.fsencode(word) for word in sys.argv[1:])
os.makedirs(place, exist_ok=True)
os.symlink(b"/etc", other)
print("begun", flush=True)
while not os.path.exists("/tmp/enough"):
    libc.renameat2(-100, place, -100, other, 2)
    try:
        os.rename(place, place + b".moved")
        os.rename(place + b".moved", place)
    except OSError:
        pass
"""


def test_a_program_that_exchanges_what_is_on_the_way_has_no_say_in_where_the_mount_lands(
    run: LiveRun, places: Path
) -> None:
    place = places / "deep/er"
    run.do(f"cat > /tmp/race.py <<'EOF'\n{RACE}\nEOF\n:")
    run.do(
        f"mkdir -p {places}/deep; {runs.PYTHON} /tmp/race.py {places}/deep {places}/link > /tmp/begun & "
        "until [ -s /tmp/begun ]; do :; done"
    )
    for _ in range(6):
        done = run_sandboxfs("allow", "-s", "test", place, "--json", cwd=Path("/"))
        assert companion_mounts(run, places / "test") == ([str(place)] if done.returncode == 0 else [])
        if done.returncode == 0:
            run_sandboxfs("revoke", "-s", "test", str(json.loads(done.stdout)["grant"]), cwd=Path("/"))
    run.do("touch /tmp/enough; wait")


def answered(run: LiveRun, line: str) -> str:
    """What the program gets for writing *line* to `request`."""
    path = Path("/tmp/line")
    run.do(f"cat > {path} <<'EOF'\n{line}\nEOF\n:")
    script = (
        "import os; f = os.open('.sandboxfs/request', os.O_RDWR); "
        f"os.write(f, open('{path}', 'rb').read()); print(os.read(f, 9999).decode(), end='')"
    )
    return run.do(f'{runs.PYTHON} -c "{script}" 2>&1 | tail -n 1')


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "{}",
        '{"path": "relative"}',
        '{"path": "/srv/../etc"}',
        '{"path": "/srv/"}',
        '{"path": "//srv"}',
        '{"path": "/srv\\u0000"}',
        '{"path": "/srv\\ud800"}',
        '{"path": 1}',
        '{"path": "/srv", "mode": "hide"}',
        '{"path": "/srv", "mode": ["rw"]}',
        '{"path": "/srv", "reason": "two\\nlines"}',
        '{"path": "/srv", "reason": "\\u202eright to left"}',
        '{"path": "/srv", "decision": "allow"}',
        '{"path": "/srv", "reason": "' + 600 * "x" + '"}',
        '{"path": "/' + 5000 * "x" + '"}',
        100 * "[" + 100 * "]",
    ],
)
def test_a_line_that_makes_no_sense_is_refused(run: LiveRun, line: str) -> None:
    with following(run) as person:
        assert "Invalid argument" in answered(run, line)
        assert person.ask("asks")["questions"] == []


def test_a_path_of_any_bytes_is_shown_safely(run: LiveRun) -> None:
    with following(run) as person:
        answered(run, json.dumps({"path": "/srv/\x1b[2J\udcff\u202e"}))
        assert person.question()["path"] == "/srv/\x1b[2J\udcff\u202e"
        shown = run_sandboxfs("asks", "-s", "test", cwd=Path("/")).stdout
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def test_what_may_not_be_shown_is_not_shown_whoever_allows_it(run: LiveRun, places: Path) -> None:
    state = Path(os.environ["SANDBOXFS_STATE_DIR"])
    for path, why in (
        (Path("/"), "the workspace lies inside it"),
        (places, "the workspace lies inside it"),
        (places / "test", "it is in the workspace"),
    ):
        assert why in json.loads(answered(run, json.dumps({"path": str(path)})))["reason"]
    for path in (
        state,
        state / "sandboxes",
        Path("/proc"),
        Path("/dev"),
        Path("/usr"),
        Path(os.environ["HOME"]),
    ):
        with following(run) as person:
            answer = json.loads(answered(run, json.dumps({"path": str(path)})))
            assert answer["state"] == "waiting"
            person.answer(person.question())
            told = json.loads(run.do(f"cat .sandboxfs/answers/{answer['id']}"))
            assert told["state"] == "failed", told
        assert companion_mounts(run, places / "test") == []
    assert run_sandboxfs("grants", "-s", "test", cwd=Path("/")).stdout == ""


def test_a_request_tells_nothing_about_the_host(run: LiveRun, places: Path) -> None:
    (places.parent / "link").symlink_to(places / "deep")
    with following(run) as person:
        told = []
        for path in (
            places / "library",
            places / "nothing",
            places / "test/../library",
            places.parent / "link",
        ):
            plain = os.path.normpath(path)
            answer = json.loads(answered(run, json.dumps({"path": plain, "mode": "ro"})))
            person_sees = person.question() if path != places / "test/../library" else None
            later = json.loads(run.do(f"cat .sandboxfs/requests/{answer['id']}"))
            assert later == answer
            assert later.pop("path") == plain
            told.append({key: value for key, value in later.items() if key not in ("id", "advice")})
            if path == places / "nothing":
                assert person_sees is not None
                assert person_sees["problem"] == "No such file or directory"
            if path.name == "link":
                assert person_sees is not None
                assert person_sees["path"] == str(places / "deep")
        assert all(one == told[0] for one in told)
    (places.parent / "link").unlink()


def test_a_flood_of_requests_is_bounded_and_others_are_served(run: LiveRun, places: Path) -> None:
    script = (
        "import os, json\nfor n in range(1000):\n"
        " f = os.open('.sandboxfs/request', os.O_RDWR)\n"
        " try: os.write(f, json.dumps({'path': f'/srv/{n % %d}'}).encode())\n"
        " except BlockingIOError: pass\n"
        " os.close(f)\n"
    )
    with following(run) as person:
        run.do(f'{runs.PYTHON} -c "{script.replace("%d", "1")}"')
        assert len(person.ask("asks")["questions"]) == 1
        begun = time.monotonic()
        run.do(f'{runs.PYTHON} -c "{script.replace("%d", "1000")}"')
        assert run.do("cat file") == "text\n"
        assert time.monotonic() - begun < 30
        assert len(person.ask("asks")["questions"]) <= 16
        assert len(run.do("ls .sandboxfs/requests").split()) <= 500


def test_nobody_inside_the_view_shows_itself_anything(guarded: Guarded) -> None:
    mount = guarded({"file": "f\n"})
    address = control_address(
        Locations.from_environment(os.environ | {"SANDBOXFS_STATE_DIR": str(mount.state)}), "test"
    )
    script = (
        "import json, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "args = {'path': '/srv', 'run': 1, 'id': 1}\n"
        "s.sendall(json.dumps({'v': 1, 'id': 1, 'verb': sys.argv[2], 'args': args}).encode() + b'\\n')\n"
        "print(s.makefile().readline())"
    )
    for verb in ("widen", "widenings", "widened", "answer"):
        told = json.loads(python(script, address.found(), verb, cwd=mount.root))
        assert told["ok"] is False
        assert "is not for processes inside the view" in told["error"]["message"]
    with pytest.raises(UsageError, match="cannot be shown now"):
        ask(address, "widen", {"path": "/srv"})


def test_inside_a_run_no_verb_answers(run: LiveRun) -> None:
    for verb in ("answer 1 allow", "allow /srv", "asks", "grants", "revoke 1"):
        assert "cannot work" in run.do(f"sandboxfs {verb}")
