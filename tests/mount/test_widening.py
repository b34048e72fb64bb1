"""Does a directory that a person grants appear to the program that runs, and nothing else?"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import conditions, runs
from tests.support.asked import following, soon
from tests.support.live_run import LiveRun, live_run
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.mounts import detach_mount, mountpoints
from tests.support.tree import Tree, assert_same_tree, build, capture

pytestmark = pytest.mark.mount

MARK = f"of these tests alone {os.getpid()}"
PLACES: Tree = {
    "test/file": "text\n",
    "library/code": "code\n",
    "library/.ssh/key": "key\n",
    "other/thing": "thing\n",
}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    """A workspace and what is beside it, proved unchanged at the end, with nothing left of the runs."""
    top = build(tmp_path / "places", PLACES)
    before = capture(top)
    yield top
    runs.check_nothing_left(MARK)
    assert_same_tree(capture(top), before, what="the places")


@pytest.fixture
def run(places: Path) -> Iterator[LiveRun]:
    runs.require("bubblewrap")
    with live_run(places / "test", "--confine", "bubblewrap") as made:
        yield made


def command(*words: str | Path, status: int = 0) -> str:
    """Run a command outside; what it wrote on stdout, or on stderr where it fails."""
    done = run_sandboxfs(*words, cwd=Path("/"))
    assert done.returncode == status, f"{words} gave {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stderr if status else done.stdout


def granted(run: LiveRun, place: Path, mode: str = "rw") -> int:
    """Have the program ask for a directory, and allow it; return the number of the grant."""
    with following(run) as person:
        run.say(f"sandboxfs request {place} {mode} > /tmp/said 2>&1; echo $? >> /tmp/said")
        grant = person.answer(person.question())["grant"]
    assert run.do("cat /tmp/said") == f"granted: {place} ({mode})\n0\n"
    return grant["id"]


def test_what_was_asked_for_and_granted_is_there_copy_on_write(run: LiveRun, places: Path) -> None:
    library = places / "library"
    assert "No such file" in run.do(f"cat {library}/code")
    with following(run) as person:
        run.say(f"sandboxfs request {library} rw --reason 'the tests import it' > /tmp/said 2>&1 &")
        question = person.question()
        assert (question["access"], question["path"]) == ("widen", str(library))
        assert question["mode"] == "rw"
        assert question["reason"] == "the tests import it"
        assert question["problem"] is None
        # Nothing is there before it is granted, and the program is not held up.
        assert "No such file" in run.do(f"cat {library}/code")
        assert person.answer(question)["grant"]["path"] == str(library)
        run.do("wait")
    assert run.do("cat /tmp/said") == f"granted: {library} (rw)\n"
    assert run.do(f"cat {library}/code; echo more >> {library}/code; cat {library}/code") == (
        "code\ncode\nmore\n"
    )
    assert (library / "code").read_text() == "code\n"
    assert json.loads(command("status", "-s", "test.library", "--json"))["state"] == "mounted"
    run.say("exit 0")
    said = run.end()
    assert f"sandbox 'test.library' of '{library}': 1 change" in said
    assert "+more" in command("diff", "-s", "test.library")


def test_the_changes_are_committed_by_name(tmp_path: Path) -> None:
    runs.require("bubblewrap")
    place = build(tmp_path / "place", {"test/file": "text\n", "library/code": "code\n"})
    with live_run(place / "test", "--confine", "bubblewrap") as run:
        granted(run, place / "library")
        run.do(f"echo more >> {place}/library/code; echo new > file")
        run.say("exit 0")
        run.end()
    command("commit", "-s", "test.library", "--yes")
    assert (place / "library/code").read_text() == "code\nmore\n"
    assert (place / "test/file").read_text() == "text\n"


def test_a_refusal_carries_the_reason_and_nothing_appears(run: LiveRun, places: Path) -> None:
    with following(run) as person:
        run.say(f"sandboxfs request {places}/library ro > /tmp/said 2>&1; echo $? >> /tmp/said")
        question = person.question()
        person.answer(question, "deny", reason="use other")
    assert run.do("cat /tmp/said") == "sandboxfs: refused (denied): use other\n1\n"
    assert "No such file" in run.do(f"ls {places}/library")
    told = json.loads(run.do(f"cat .sandboxfs/requests/{question['id']}"))
    assert (told["state"], told["reason"], told["retry"]) == ("denied", "use other", False)


def test_read_only_is_read_only(run: LiveRun, places: Path) -> None:
    granted(run, places / "library", "ro")
    assert "Read-only file system" in run.do(f"echo x > {places}/library/new")


def test_with_nobody_to_ask_it_is_refused_at_once(run: LiveRun, places: Path) -> None:
    said = run.do(f"sandboxfs request {places}/library; echo $?")
    assert said == "sandboxfs: refused (withdrawn): nobody is connected who could be asked\n1\n"


def test_an_agent_asks_by_writing_a_line_and_reads_what_became_of_it(run: LiveRun, places: Path) -> None:
    assert "request /path" in run.do("cat .sandboxfs/README")
    with following(run) as person:
        line = json.dumps({"path": str(places / "library"), "mode": "ro", "reason": "to read"})
        answer = json.loads(run.do(f"exec 3<> .sandboxfs/request; echo '{line}' >&3; read -r a <&3; echo $a"))
        assert answer["state"] == "waiting"
        assert json.loads(run.do(f"cat .sandboxfs/requests/{answer['id']}"))["state"] == "waiting"
        question = person.question()
        assert question["id"] == answer["id"]
        run.say(f"cat .sandboxfs/answers/{answer['id']} > /tmp/said &")
        person.answer(question)
    assert json.loads(run.do("wait; cat /tmp/said"))["state"] == "granted"
    assert run.do(f"cat {places}/library/code") == "code\n"


def test_a_program_need_not_wait(run: LiveRun, places: Path) -> None:
    with following(run) as person:
        told = json.loads(run.do(f"sandboxfs request {places}/library --no-wait --json; true"))
        assert told["state"] == "waiting"
        person.answer(person.question(), "deny")
    assert json.loads(run.do(f"cat .sandboxfs/answers/{told['id']}"))["state"] == "denied"


def test_a_program_that_is_ended_while_it_waits_is_not_asked_for_any_more(run: LiveRun, places: Path) -> None:
    with following(run) as person:
        run.say(f"sandboxfs request {places}/library & echo $! > /tmp/pid")
        question = person.question()
        soon(lambda: "/answers/" in run.do("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo"))
        run.do("kill -9 $(cat /tmp/pid) $(grep -l '^cat' /proc/[0-9]*/comm | cut -d / -f 3)")
        over = person.next("over")
        assert (over["id"], over["outcome"]) == (question["id"], "withdrawn")
        assert run.do("cat file") == "text\n"


def test_a_command_that_is_asked_grants_directories_as_well(places: Path, tmp_path: Path) -> None:
    runs.require("bubblewrap")
    script = tmp_path / "decide"
    script.write_text('#!/bin/sh\ngrep -q \'"access": "widen"\' && echo \'{"decision": "allow"}\'\n')
    script.chmod(0o755)
    options = ("--confine", "bubblewrap", "--ask-command", script, "--log-level", "all", "--ask", "code")
    with live_run(places / "test", *options) as run:
        assert run.do(f"sandboxfs request {places}/library") == f"granted: {places}/library (rw)\n"
        # Its rules, and who is asked about them, are those of the run.
        assert "Permission denied" in run.do(f"cat {places}/library/code")
        asked = json.loads(command("log", "-s", "test.library", "--asks", "--json").splitlines()[0])
        assert (asked["event"], asked["path"]) == ("asked", "code")


def test_a_person_shows_a_directory_without_being_asked(run: LiveRun, places: Path) -> None:
    assert "is shown as ro, at its own path" in command("allow", "-s", "test", f"{places}/library:ro")
    assert run.do(f"cat {places}/library/code") == "code\n"
    command("allow", "-s", "test", f"{places}/other", "rw")
    assert run.do(f"echo x > {places}/other/new; ls {places}/other") == "new\nthing\n"
    assert "is shown already" in command("allow", "-s", "test", f"{places}/library", "rw", status=2)
    grants = json.loads(command("grants", "-s", "test", "--json"))["grants"]
    assert [(one["access"], one["path"], one["rule"]["mode"]) for one in grants] == [
        ("widen", str(places / "library"), "ro"),
        ("widen", str(places / "other"), "rw"),
    ]
    run.say("exit 0")
    assert "sandbox 'test.other'" in run.end()
    command("discard", "-s", "test.other", "--all", "--yes")


def test_what_is_taken_back_is_gone_and_can_be_granted_again(run: LiveRun, places: Path) -> None:
    library = places / "library"
    grant = granted(run, library)
    run.do(f"exec 4< {library}/code; echo x > {library}/new")
    assert "taken back" in command("revoke", "-s", "test", str(grant))
    assert run.do(f"ls -A {library}") == ""
    assert "cat: " in run.do("cat <&4")
    granted(run, library)
    assert run.do(f"cat {library}/new") == "x\n"
    run.say("exit 0")
    run.end()
    events = [json.loads(line) for line in command("log", "-s", "test", "--asks", "--json").splitlines()]
    assert [event["event"] for event in events] == [
        *("asked", "answered", "widened", "revoked", "narrowed"),
        *("asked", "answered", "widened"),
    ]


def test_what_was_granted_for_a_time_goes_when_that_is_over(run: LiveRun, places: Path) -> None:
    with following(run) as person:
        run.say(f"sandboxfs request {places}/library > /tmp/said 2>&1")
        person.answer(person.question(), during="3s")
        assert run.do(f"cat {places}/library/code") == "code\n"
        soon(lambda: run.do(f"ls -A {places}/library") == "", 30)
        assert person.ask("grants")["grants"] == []


def test_of_a_run_that_changed_nothing_nothing_is_kept(run: LiveRun, places: Path) -> None:
    granted(run, places / "library")
    assert run.do(f"cat {places}/library/code") == "code\n"
    run.say("exit 0")
    assert "nothing changed, and no sandbox is kept" in run.end()
    assert json.loads(command("list", "--json"))["sandboxes"] == []


def test_what_is_written_there_can_be_asserted_about(places: Path) -> None:
    runs.require("bubblewrap")
    nothing = ("--assert-no-writes", f"{places}/library/**")
    with live_run(places / "test", "--confine", "bubblewrap", *nothing) as run:
        granted(run, places / "library")
        run.do(f"echo x > {places}/library/new")
        run.say("exit 0")
        assert f"'{places}/library/new' was written" in run.end(1)


def test_a_helper_that_is_killed_leaves_nothing_and_another_does_it(run: LiveRun, places: Path) -> None:
    words = [sys.executable, "-m", "sandboxfs", "allow", "-s", "test", str(places / "library")]
    for moment in (0.0, 0.1, 0.2, 0.3, 0.4):
        with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as asking:
            helper: list[int] = []
            while not helper and asking.poll() is None:
                helper = [pid for pid in children(run.process.pid) if "widen_helper" in words_of(pid)]
            time.sleep(moment)
            for pid in helper:
                # On a fast machine it has done its work by now.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            asking.wait(runs.PATIENCE)
            grants = json.loads(command("grants", "-s", "test", "--json"))["grants"]
            assert len(grants) == (0 if asking.returncode else 1)
            for grant in grants:
                command("revoke", "-s", "test", str(grant["id"]))
    command("allow", "-s", "test", places / "library")
    assert run.do(f"cat {places}/library/code") == "code\n"


def children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(word) for word in text.split()]


def words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_it_ends_with_the_run_that_is_killed(run: LiveRun, places: Path) -> None:
    granted(run, places / "library")
    run.kill()
    runs.check_nothing_left(MARK)


def test_the_run_ends_with_a_daemon_that_is_killed(run: LiveRun, places: Path) -> None:
    granted(run, places / "library")
    pid = json.loads(command("status", "-s", "test.library", "--json"))["pid"]
    os.kill(pid, signal.SIGKILL)
    run.process.wait(runs.PATIENCE)
    assert "the program was ended" in run.end(125)


def test_two_runs_of_a_sandbox_both_see_it_and_so_does_a_third(run: LiveRun, places: Path) -> None:
    with live_run(places / "test", "-s", "test", "--confine", "bubblewrap") as second:
        granted(run, places / "library")
        soon(lambda: second.do(f"cat {places}/library/code") == "code\n")
        words = ("-s", "test", "--confine", "bubblewrap", "--", "cat", places / "library/code")
        assert runs.run(*words, cwd=places / "test").stdout == "code\n"
        run.say("exit 0")
        run.end()
        assert second.do(f"cat {places}/library/code") == "code\n"
        second.say("exit 0")
        second.end()


def test_in_the_home_it_appears_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.require("bubblewrap")
    home = build(tmp_path / "home", {"projects/test/file": "text\n", "projects/deep/library/code": "code\n"})
    monkeypatch.setenv("HOME", str(home))
    library = home / "projects/deep/library"
    with live_run(home / "projects/test", "--confine", "bubblewrap") as run:
        granted(run, library)
        assert run.do(f"cat {library}/code file") == "code\ntext\n"
        for path in (home / "projects", home / "projects/deep"):
            assert "busy" in run.do(f"mv {path} {path}.moved")
        assert "busy" in run.do(f"rmdir {library}")
        words = ("-s", "test", "--confine", "bubblewrap", "--", "cat", library / "code")
        assert runs.run(*words, cwd=home / "projects/test").stdout == "code\n"
        run.say("exit 0")
        run.end()
    assert sorted(os.listdir(home / "projects/deep/library")) == ["code"]


def test_in_a_home_that_another_run_uses_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.require("bubblewrap")
    home = build(tmp_path / "home", {"projects/test/file": "text\n", "library/code": "code\n"})
    monkeypatch.setenv("HOME", str(home))
    with (
        live_run(home / "projects/test", "--confine", "bubblewrap") as run,
        live_run(home / "projects/test", "-s", "test", "--confine", "bubblewrap") as second,
    ):
        assert "another run uses this sandbox's home" in command(
            "allow", "-s", "test", home / "library", status=2
        )
        for one in (run, second):
            one.say("exit 0")
            one.end()


@pytest.mark.parametrize("confinement", ["landlock", "none"])
def test_without_bubblewrap_it_is_refused_at_once_and_the_option_is_named(
    places: Path, confinement: str
) -> None:
    if confinement != "none":
        runs.require(confinement)
    with live_run(places / "test", "--confine", confinement) as run, following(run):
        top = run.do("echo $SANDBOXFS_VIEW").strip()
        line = json.dumps({"path": str(places / "library"), "mode": "ro"})
        script = f"exec 3<> {top}/.sandboxfs/request; echo '{line}' >&3; cat <&3"
        told = json.loads(run.do(script))
        assert told["state"] == "failed"
        assert f"to have it in the next run: --allow '{places}/library:ro'" in told["reason"]
        refusal = command("allow", "-s", "test", places / "library", status=2)
        assert "--allow" in refusal
        run.say("exit 0")
        run.end()


def test_in_a_plain_mount_it_is_said_that_nothing_is_confined(tmp_path: Path) -> None:
    place = build(tmp_path / "place", {"workspace/file": "", "library/code": ""})
    mount = MountDriver(tmp_path, place / "workspace")
    try:
        with following(mount):
            done = run_sandboxfs("request", place / "library", "ro", cwd=mount.root)
        assert done.returncode == 1
        assert "in a plain mount other paths are not kept from programs" in done.stderr
        allowed = run_sandboxfs("allow", "-s", "test", place / "library", state=mount.state)
        assert allowed.returncode == 2
        assert "--allow" in allowed.stderr
    finally:
        mount.stop()


def test_outside_of_any_view_nothing_can_be_asked_for(tmp_path: Path) -> None:
    done = run_sandboxfs("request", "/srv", cwd=tmp_path)
    assert done.returncode == 2
    assert "this is no view" in done.stderr


def test_where_no_run_goes_on_the_option_for_the_next_is_named(places: Path) -> None:
    runs.run("--", "sh", "-c", "echo > new", cwd=places / "test")
    refusal = command("allow", "-s", "test", places / "library", status=2)
    assert f"name it when the next run is started: --allow '{places}/library:rw'" in refusal
    command("discard", "-s", "test", "--all", "--yes")


def test_the_machine_has_no_mount_more_than_that_of_the_companion(run: LiveRun, places: Path) -> None:
    granted(run, places / "library")
    ours = Path(os.environ["XDG_RUNTIME_DIR"])
    found = [
        place.name for place in mountpoints() if place.is_relative_to(ours) or place.is_relative_to(places)
    ]
    assert sorted(found) == ["test", "test.library"]


NOBODY = 65534
# An ordinary user, who may open /dev/fuse whatever its mode is on this machine.
AS_NOBODY = f"""mount --bind "$1" /dev/fuse; shift
exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups "$@"
"""
# What the user does outside, while a shell that reads from a FIFO runs inside.
OUTSIDE = f"""
sandboxfs() {{ {sys.executable} -m sandboxfs "$@"; }}
cd "$0/app"
mkfifo "$0/words"
sandboxfs run --confine bubblewrap -- sh < "$0/words" > "$0/said" 2> "$0/complaints" &
exec 3> "$0/words"
echo "cat $0/library/code; touch begun" >&3
until sandboxfs diff -s app --name-status 2> /dev/null | grep -q begun; do sleep 0.1; done
sandboxfs allow -s app "$0/library"
echo "cat $0/library/code; echo x > $0/library/new; exit" >&3
exec 3>&-
wait $!
cat "$0/said"
sandboxfs diff -s app.library --name-status
"""


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """A directory of an ordinary user; pytest's are closed to others."""
    conditions.require_root()
    conditions.require_tool("setpriv")
    runs.require("bubblewrap")
    outermost = Path(tempfile.mkdtemp())
    outermost.chmod(0o755)
    place = build(outermost / "place", {"app/file": "text\n", "library/code": "code\n"})
    for name in ("home", "run"):
        (place / name).mkdir(mode=0o700)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", place], check=True)
    os.mknod(outermost / "fuse", 0o020666, os.makedev(10, 229))
    (outermost / "fuse").chmod(0o666)
    yield place
    for mount in reversed([one for one in mountpoints() if one.is_relative_to(outermost)]):
        detach_mount(mount)
    shutil.rmtree(outermost)


def test_an_ordinary_user_shows_a_directory(of_nobody: Path) -> None:
    words = ["sh", "-ec", OUTSIDE, str(of_nobody)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", AS_NOBODY, "sh", of_nobody.parent / "fuse", *words],
        env={
            **os.environ,
            "HOME": str(of_nobody / "home"),
            "XDG_CONFIG_HOME": str(of_nobody / "home/config"),
            "XDG_RUNTIME_DIR": str(of_nobody / "run"),
            "SANDBOXFS_STATE_DIR": str(of_nobody / "home/state"),
        },
        cwd="/",
        capture_output=True,
        text=True,
        timeout=runs.PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + (of_nobody / "complaints").read_text()
    shown, code, change = done.stdout.splitlines()
    assert shown.endswith(f"{of_nobody}/library is shown as rw, at its own path")
    assert (code, change) == ("code", "A\tnew")
    assert os.listdir(of_nobody / "library") == ["code"]
