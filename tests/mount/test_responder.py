"""Do a command and a webhook answer for a person, and does nothing of them outlast what it is for?"""

import base64
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import pytest

from sandboxfs import Sandbox
from tests.mount.conftest import Mount
from tests.support.asked import PATIENCE, following, output, python, soon, started
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import Tree

pytestmark = pytest.mark.mount

TREE: Tree = {".env": "SECRET=1", "config/.env": "SECRET=2", "plain": "plain"}
ASK = "--ask", ".env*"
ALLOW = """echo '{"decision": "allow"}'"""


class Responder(TypedDict):
    command: list[str] | None
    url: str | None
    token_file: str | None
    pid: int | None
    log: str
    trouble: str | None


def script(place: Path, body: str) -> str:
    """A command of the test's own, as it is given to an option."""
    path = place / "bot"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def cat(view: MountDriver, *paths: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["cat", *paths], cwd=view.root, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def responder(view: MountDriver) -> Responder:
    done = run_sandboxfs("status", "-s", "test", "--json", state=view.state)
    assert done.returncode == 0, done.stderr
    found: Responder = json.loads(done.stdout)["responder"]
    return found


def log(view: MountDriver) -> str:
    return (view.home / "responder.log").read_text()


def refusals(view: MountDriver) -> str:
    return (view.root / ".sandboxfs/denials").read_text()


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(*pids: int) -> None:
    soon(lambda: not any(map(is_running, pids)), 30)


def written(path: Path) -> str:
    """Wait for a line in a file."""
    soon(lambda: path.exists() and path.read_text().endswith("\n"), 30)
    return path.read_text()


# A command


def test_a_command_is_asked_as_a_follower_is_and_its_answer_counts(mount: Mount, tmp_path: Path) -> None:
    bot = script(tmp_path, f"cat >{tmp_path}/asked; pwd >{tmp_path}/where; env >{tmp_path}/env; {ALLOW}")
    view = mount(TREE, *ASK, "--ask-command", f"{bot} --room 'a b'")
    follow = [sys.executable, "-m", "sandboxfs", "asks", "-s", "test", "--follow", "--json"]
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(view.state)}
    with subprocess.Popen(follow, env=environment, stdout=subprocess.PIPE, text=True) as follower:
        try:
            listed = ["asks", "-s", "test", "--json"]
            soon(lambda: '"followers": 2' in run_sandboxfs(*listed, state=view.state).stdout, 30)
            # The first that is opened in the session.
            assert cat(view, ".env").stdout == "SECRET=1"
            assert follower.stdout is not None
            seen, over = follower.stdout.readline(), json.loads(follower.stdout.readline())
        finally:
            follower.kill()
    told, asked = json.loads(seen), json.loads((tmp_path / "asked").read_text())
    assert {**asked, "remaining": None, "requests": 1} == {**told, "remaining": None, "requests": 1}
    assert (over["outcome"], over["by"]["command"]) == ("allowed", "responder")
    assert over["by"]["pid"] == responder(view)["pid"]
    assert (tmp_path / "where").read_text() == "/\n"
    given = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert given["SANDBOXFS_SANDBOX"] == "test"
    assert given["PATH"] == os.environ["PATH"]
    assert responder(view)["command"] == [bot, "--room", "a b"]
    # Once is once.
    (tmp_path / "asked").unlink()
    assert cat(view, ".env").stdout == "SECRET=1"
    assert (tmp_path / "asked").exists()


def test_what_a_command_says_beside_the_decision_holds(mount: Mount, tmp_path: Path) -> None:
    answer = {"decision": "allow", "for": "directory", "during": "1h", "program": True}
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, f"echo {shlex.quote(json.dumps(answer))}"))
    assert cat(view, ".env").stdout == "SECRET=1"
    done = run_sandboxfs("grants", "-s", "test", "--json", state=view.state)
    (grant,) = json.loads(done.stdout)["grants"]
    assert (grant["decision"], grant["for"], grant["who"]) == ("allow", "directory", "program")
    assert 0 < grant["remaining"] <= 3600


def test_the_program_reads_the_reason_that_a_command_gave(mount: Mount, tmp_path: Path) -> None:
    answer = """echo '{"decision": "deny", "reason": "use config.example"}'"""
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, answer))
    assert "Permission denied" in cat(view, ".env").stderr
    assert "use config.example" in refusals(view)
    assert responder(view)["trouble"] is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 3", "the ask command ended with status 3"),
        (f"{ALLOW}; exit 1", "the ask command ended with status 1"),
        ("kill -KILL $$", "the ask command was ended by signal 9"),
        (":", "the ask command gave no answer"),
        (f"{ALLOW}; echo more", "the ask command gave an answer that is not one JSON object"),
        ("printf '\\033[2J'", "the ask command gave an answer that is not one JSON object"),
        ("head -c 10000000 /dev/zero", "the ask command wrote more than 16 KiB"),
        ("yes", "the ask command wrote more than 16 KiB"),
        ("head -c 10000000 /dev/zero >&2; exit 7", "the ask command ended with status 7"),
        (
            """echo '{"decision": "allow", "for": "other/*"}'""",
            "the ask command gave an answer that does not fit the question",
        ),
        (
            """echo '{"decision": "allow", "for": "[a"}'""",
            "the ask command gave an answer that does not fit the question",
        ),
        (
            """echo '{"decision": "allow", "tree": 999999999}'""",
            "the ask command gave an answer that does not fit the question",
        ),
        ("exec /nowhere", "the ask command ended with status 127"),
    ],
)
def test_a_command_that_gives_no_answer_says_no(mount: Mount, tmp_path: Path, body: str, why: str) -> None:
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, body))
    assert "Permission denied" in cat(view, ".env").stderr
    assert why in refusals(view)
    trouble = responder(view)["trouble"]
    assert trouble is not None
    assert trouble.isprintable()
    assert len(log(view)) < 10_000
    # Nor does it keep others from being answered.
    script(tmp_path, ALLOW)
    assert cat(view, "config/.env").stdout == "SECRET=2"


def test_a_command_that_is_gone_says_no(mount: Mount, tmp_path: Path) -> None:
    bot = script(tmp_path, ALLOW)
    view = mount(TREE, *ASK, "--ask-command", bot)
    Path(bot).unlink()
    assert "Permission denied" in cat(view, ".env").stderr
    assert "the ask command cannot be started: No such file or directory" in refusals(view)


def test_what_a_command_leaves_behind_is_ended_and_not_waited_for(mount: Mount, tmp_path: Path) -> None:
    child = f"sh -c 'echo $$ >{tmp_path}/child; exec sleep 1000' & sleep 0.2; {ALLOW}"
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, child))
    begun = time.monotonic()
    assert cat(view, ".env").stdout == "SECRET=1"
    assert time.monotonic() - begun < 30
    gone(int(written(tmp_path / "child")))


NEVER = "sh -c 'echo $$ >{place}/child; exec sleep 1000' & echo $$ >{place}/bot.pid; wait"


def test_a_command_is_killed_with_its_children_when_somebody_else_answers(
    mount: Mount, tmp_path: Path
) -> None:
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, NEVER.format(place=tmp_path)))
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        question = person.question()
        running = [int(written(tmp_path / name)) for name in ("bot.pid", "child")]
        assert all(map(is_running, running))
        person.answer(question)
        assert output(program) == "SECRET=1"
        over = person.next("over")
        assert (over["outcome"], over["by"]["pid"]) == ("allowed", os.getpid())
        gone(*running)
    assert responder(view)["pid"] is not None


def test_a_command_is_killed_when_nobody_waits_any_more_and_when_time_is_up(
    mount: Mount, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[ask]\ntimeout = 3\n")
    bot = script(tmp_path, NEVER.format(place=tmp_path))
    view = mount(TREE, *ASK, "--config", str(config), "--ask-command", bot)
    with started("cat", ".env", cwd=view.root):
        running = [int(written(tmp_path / name)) for name in ("bot.pid", "child")]
    gone(*running)
    for name in ("bot.pid", "child"):
        (tmp_path / name).unlink()
    assert "Permission denied" in cat(view, ".env").stderr
    assert "nobody answered in time" in refusals(view)
    gone(*(int(written(tmp_path / name)) for name in ("bot.pid", "child")))


def test_odd_names_reach_a_command_as_they_are(mount: Mount, tmp_path: Path) -> None:
    names = [b".env\nrm -rf", b".env\xe2\x80\xaegnp", b".env\xff\xfe", b".env$(touch x)", b".env'\"\\"]
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, f"cat >>{tmp_path}/asked; {ALLOW}"))
    for name in names:
        (view.lower / os.fsdecode(name)).write_bytes(b"odd")
    view.host_changed()
    for name in names:
        assert Path(os.fsdecode(os.path.join(os.fsencode(view.root), name))).read_bytes() == b"odd"
    found = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    exact = [
        base64.b64decode(one["path_bytes"]) if "path_bytes" in one else one["path"].encode() for one in found
    ]
    assert exact == names


FLOOD = """
import os, sys, threading
def ask(number):
    for again in range(5):
        try:
            os.close(os.open(f"d{number}/.env", os.O_RDONLY))
        except PermissionError:
            pass
threads = [threading.Thread(target=ask, args=[number]) for number in range(50)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_a_flood_of_questions_starts_few_commands(mount: Mount, tmp_path: Path) -> None:
    tree: Tree = {**TREE, **{f"d{number}/.env": "x" for number in range(50)}}
    view = mount(tree, *ASK, "--ask-command", script(tmp_path, f"echo >>{tmp_path}/count; sleep 0.2; exit 1"))
    begun = time.monotonic()
    with started(*python(FLOOD), cwd=view.root) as program:
        assert output(program) == ""
    seconds = time.monotonic() - begun
    print(log(view)[-3000:])
    print(view.log[-3000:])
    print(seconds)
    count = len((tmp_path / "count").read_text())
    assert 0 < count <= 21 + 10 * seconds
    assert count < 200
    # Nobody falls behind, however many there are.
    assert "follows the questions no more" not in view.log
    script(tmp_path, ALLOW)
    assert cat(view, ".env").stdout == "SECRET=1"


# The life of a responder


def test_a_responder_ends_with_its_session_and_keeps_nothing_busy(mount: Mount, tmp_path: Path) -> None:
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, NEVER.format(place=tmp_path)))
    pid = responder(view)["pid"]
    assert pid is not None
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert {os.readlink(f"/proc/{pid}/fd/{standard}") for standard in range(3)} == {"/dev/null"}
    assert os.getsid(pid) != os.getsid(0)
    with started("cat", ".env", cwd=view.root) as program:
        running = [int(written(tmp_path / name)) for name in ("bot.pid", "child")]
        program.kill()
    view.stop()
    gone(pid, *running)


def test_nothing_outlasts_a_daemon_that_is_killed(mount: Mount, tmp_path: Path) -> None:
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, NEVER.format(place=tmp_path)))
    pid = responder(view)["pid"]
    assert pid is not None
    with started("cat", ".env", cwd=view.root):
        running = [int(written(tmp_path / name)) for name in ("bot.pid", "child")]
        status = run_sandboxfs("status", "-s", "test", "--json", state=view.state).stdout
        os.kill(json.loads(status)["pid"], signal.SIGKILL)
        gone(pid, *running)
    view.start()
    assert responder(view)["pid"] not in (None, pid)


def test_without_its_responder_a_session_asks_others_and_says_so(mount: Mount, tmp_path: Path) -> None:
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, NEVER.format(place=tmp_path)))
    pid = responder(view)["pid"]
    assert pid is not None
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        question = person.question()
        bot = int(written(tmp_path / "bot.pid"))
        os.kill(pid, signal.SIGKILL)
        gone(pid, bot)
        person.answer(question)
        assert output(program) == "SECRET=1"
    assert responder(view)["pid"] is None
    shown = run_sandboxfs("status", "-s", "test", state=view.state).stdout
    assert "the responder has ended: see " in shown
    assert f"process {pid} follows the questions no more" in view.log
    assert "Permission denied" in cat(view, ".env").stderr
    os.kill(int(written(tmp_path / "child")), signal.SIGKILL)


def test_a_responder_that_is_told_to_end_takes_everything_with_it(mount: Mount, tmp_path: Path) -> None:
    view = mount(TREE, *ASK, "--ask-command", script(tmp_path, NEVER.format(place=tmp_path)))
    pid = responder(view)["pid"]
    assert pid is not None
    with started("cat", ".env", cwd=view.root) as program:
        running = [int(written(tmp_path / name)) for name in ("bot.pid", "child")]
        os.kill(pid, signal.SIGTERM)
        gone(pid, *running)
        # Nobody else is there.
        assert "Permission denied" in output(program)


FOR_EVER = """
import os, threading
def ask(number):
    while True:
        try:
            os.close(os.open(f"d{number}/.env", os.O_RDONLY))
        except PermissionError:
            pass
for number in range(50):
    threading.Thread(target=ask, args=[number]).start()
"""


def test_a_responder_that_was_let_go_follows_again(mount: Mount, tmp_path: Path) -> None:
    tree: Tree = {**TREE, **{f"d{number}/.env": "x" for number in range(50)}}
    view = mount(tree, *ASK, "--ask-command", script(tmp_path, ALLOW))
    pid = responder(view)["pid"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with following(view) as person, started(*python(FOR_EVER), cwd=view.root):
            # Somebody else answers at once, and the stopped one has all that to be told.
            while f"process {pid} follows the questions no more" not in view.log:
                event = person.next()
                if event["event"] == "question":
                    person.answer(event["question"], "deny")
    finally:
        os.kill(pid, signal.SIGCONT)
    soon(lambda: log(view).count("following the questions of process") == 2, 60)
    assert cat(view, ".env").stdout == "SECRET=1"


def test_who_is_asked_is_of_one_session(mount: Mount, tmp_path: Path) -> None:
    bot = script(tmp_path, ALLOW)
    view = mount(TREE, *ASK, "--ask-command", bot)
    assert cat(view, ".env").stdout == "SECRET=1"
    view.stop()
    view.options = ()
    view.start()
    # The rules stay, who is asked does not.
    assert "Permission denied" in cat(view, ".env").stderr
    shown = run_sandboxfs("status", "-s", "test", "--json", state=view.state).stdout
    assert "responder" not in json.loads(shown)
    view.stop()
    view.options = ("--ask-command", bot)
    view.start()
    assert cat(view, ".env").stdout == "SECRET=1"


def test_the_configuration_says_who_is_asked_and_an_option_stands_for_it(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[ask]\ncommand = ["{script(tmp_path, "exit 1")}"]\n')
    monkeypatch.setenv("SANDBOXFS_CONFIG", str(config))
    view = mount(TREE, *ASK)
    assert "Permission denied" in cat(view, ".env").stderr
    shown = run_sandboxfs("config", "show", "-s", "test", "--json", state=view.state).stdout
    assert json.loads(shown)["ask"] == {"command": [str(tmp_path / "bot")]}
    assert "[ask]" in run_sandboxfs("config", "show", "-s", "test", state=view.state).stdout
    view.stop()
    other = tmp_path / "other"
    other.mkdir()
    view.options = ("--ask-command", script(other, ALLOW))
    view.start()
    assert cat(view, ".env").stdout == "SECRET=1"


def test_files_of_a_project_do_not_answer_for_the_command(mount: Mount, tmp_path: Path) -> None:
    view = mount({".env": "SECRET=1"})
    view.stop()
    (view.lower / "bot.py").write_text(f"print({json.dumps(json.dumps({'decision': 'allow'}))})\n")
    view.host_changed()
    config = tmp_path / "own.toml"
    config.write_text(f'[ask]\ncommand = ["{sys.executable}", "-m", "bot"]\n')
    given: list[str | Path] = ["--name", "own", "--config", config, *ASK, view.lower, view.root]
    assert run_sandboxfs("mount", *given, state=view.state, cwd=view.lower).returncode == 0
    try:
        assert cat(view, ".env").returncode == 1
    finally:
        assert run_sandboxfs("unmount", "-s", "own", state=view.state).returncode == 0


def test_a_mount_without_the_command_to_ask_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    done = run_sandboxfs(
        "mount", "--ask-command", "no-such-bot", str(tmp_path / "workspace"), state=tmp_path / "state"
    )
    assert done.returncode == 2
    assert "cannot find the command to ask, 'no-such-bot'" in done.stderr
    assert not (tmp_path / "state" / "sandboxes").exists()


def test_a_project_that_says_who_is_asked_is_refused(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / ".sandboxfs.toml").write_text('[ask]\ncommand = "true"\n')
    done = run_sandboxfs("mount", str(workspace), state=tmp_path / "state")
    assert done.returncode == 2
    assert ".sandboxfs.toml:1: 'ask': unknown key; expected 'rule'" in done.stderr


def test_a_mount_in_the_foreground_is_told_of_when_questions_are_followed(tmp_path: Path) -> None:
    workspace, place = tmp_path / "workspace", tmp_path / "view"
    workspace.mkdir()
    place.mkdir()
    (workspace / ".env").write_text("SECRET=1")
    words = ["mount", "-f", *ASK, "--name", "test", "--ask-command", script(tmp_path, ALLOW)]
    process = subprocess.Popen(
        [sys.executable, "-m", "sandboxfs", *words, str(workspace), str(place)],
        env=os.environ | {"SANDBOXFS_STATE_DIR": str(tmp_path / "state")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{place}\n"
        done = subprocess.run(
            ["cat", place / ".env"], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.stdout == "SECRET=1"
    finally:
        process.send_signal(signal.SIGINT)
        # Also proves that the responder does not hold it.
        assert process.communicate(timeout=PATIENCE)[0] == ""
    assert process.returncode == 0


# Runs


def run(state: Path, workspace: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_sandboxfs("run", "--workspace", str(workspace), *words, state=state)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    (made / ".env").write_text("SECRET=1")
    return made


def test_the_first_question_of_a_run_is_answered(tmp_path: Path, workspace: Path, confinement: str) -> None:
    bot = script(tmp_path, f"cat /proc/$PPID/stat >{tmp_path}/parent; {ALLOW}")
    done = run(
        tmp_path / "state", workspace, "--confine", confinement, *ASK, "--ask-command", bot, "cat", ".env"
    )
    assert (done.returncode, done.stdout) == (0, "SECRET=1"), done.stderr
    gone(int((tmp_path / "parent").read_text().split()[0]))


def test_a_place_beside_the_workspace_has_its_own_questions(tmp_path: Path, workspace: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / ".env").write_text("SECRET=2")
    bot = script(tmp_path, f"echo $SANDBOXFS_SANDBOX >>{tmp_path}/names; {ALLOW}")
    done = run(
        tmp_path / "state",
        workspace,
        "--ask",
        "**/.env*",
        "--allow",
        str(beside),
        "--ask-command",
        bot,
        "cat",
        ".env",
        str(beside / ".env"),
    )
    assert done.stdout == "SECRET=1SECRET=2", done.stderr
    assert sorted((tmp_path / "names").read_text().split()) == ["workspace", "workspace.beside"]


def test_who_joins_a_session_cannot_say_who_is_asked(mount: Mount, tmp_path: Path) -> None:
    bot = script(tmp_path, ALLOW)
    view = mount(TREE, *ASK, "--ask-command", bot)
    same = run_sandboxfs("run", "-s", "test", "--ask-command", bot, "cat", ".env", state=view.state)
    assert (same.returncode, same.stdout) == (0, "SECRET=1"), same.stderr
    none = run_sandboxfs("run", "-s", "test", "cat", ".env", state=view.state)
    assert none.stdout == "SECRET=1"
    other = run_sandboxfs("run", "-s", "test", "--ask-command", "true", "cat", ".env", state=view.state)
    assert other.returncode == 125
    assert "its policy is that of its mount" in other.stderr


def test_a_sandbox_from_python_asks_whom_the_configuration_names(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bot = script(tmp_path, f"pwd >{tmp_path}/where; {ALLOW}")
    config = tmp_path / "config.toml"
    config.write_text(f'[ask]\ncommand = ["{bot}"]\n[[rule]]\npath = ".env"\nmode = "ask"\n')
    monkeypatch.setenv("SANDBOXFS_CONFIG", str(config))
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(tmp_path / "state"))
    with Sandbox(workspace) as sandbox:
        assert sandbox.run(["cat", ".env"], capture_output=True).stdout == "SECRET=1"
    assert (tmp_path / "where").read_text() == "/\n"


# A webhook


@contextmanager
def server(answer: Callable[[socket.socket, bytes], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that hears one request on a connection, and leaves the rest to *answer*."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    request = b""
                    while not request.endswith(b"}\n"):
                        chunk = connection.recv(65536)
                        if not chunk:
                            return
                        request += chunk
                    heard.append(request)
                    # Whoever asked may have been killed.
                    try:
                        answer(connection, request)
                    except OSError:
                        continue

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/ask", heard
        finally:
            with socket.create_connection(listener.getsockname()) as last:
                last.shutdown(socket.SHUT_WR)
                thread.join(PATIENCE)


def said(status: str, body: Mapping[str, object] | None = None, *headers: str) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(text)}", "", ""]
    return "\r\n".join(lines).encode() + text


def test_a_webhook_answers_with_the_token_of_the_configuration(mount: Mount, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    config = tmp_path / "config.toml"

    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(said("200 OK", {"decision": "allow", "for": "path"}))

    with server(answer) as (url, heard):
        config.write_text(f'[ask]\nurl = "{url}"\ntoken_file = "{token}"\n')
        view = mount(TREE, *ASK, "--config", str(config))
        assert cat(view, ".env").stdout == "SECRET=1"
    (request,) = heard
    assert b"\r\nAuthorization: Bearer s3cret\r\n" in request
    question = json.loads(request.partition(b"\r\n\r\n")[2])
    assert (question["event"], question["path"]) == ("question", ".env")
    assert "s3cret" not in (view.home / "sandbox.toml").read_text()


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (said("503 Unavailable", {"decision": "allow"}), "the webhook answered with status 503"),
        (said("302 Found", None, "Location: file:///etc/passwd"), "the webhook answered with status 302"),
        (said("204 No Content"), "the webhook gave no answer"),
        (said("200 OK", {"decision": "allow", "x": "y" * 20_000}), "the webhook answered with more than 16"),
        (said("200 OK", {"decision": "perhaps"}), "the webhook gave an answer whose decision is neither"),
        (b"", "the webhook "),
    ],
)
def test_a_webhook_that_gives_no_answer_says_no(mount: Mount, response: bytes, why: str) -> None:
    with server(lambda connection, request: connection.sendall(response)) as (url, heard):
        view = mount(TREE, *ASK, "--ask-url", url)
        assert "Permission denied" in cat(view, ".env").stderr
        assert why in refusals(view)
    assert len(heard) == 1


def test_a_webhook_that_trickles_or_is_late_is_not_waited_for(mount: Mount, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[ask]\ntimeout = 2\n")
    broken = threading.Event()

    def trickle(connection: socket.socket, request: bytes) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while True:
                connection.sendall(b"x")
                time.sleep(0.02)
        finally:
            broken.set()

    with server(trickle) as (url, _):
        view = mount(TREE, *ASK, "--config", str(config), "--ask-url", url)
        begun = time.monotonic()
        assert "Permission denied" in cat(view, ".env").stderr
        assert time.monotonic() - begun < 30
        assert "nobody answered in time" in refusals(view)
        # The connection ends with the question.
        assert broken.wait(30)


def test_of_a_command_and_a_webhook_the_first_answer_counts(mount: Mount, tmp_path: Path) -> None:
    broken = threading.Event()

    def never(connection: socket.socket, request: bytes) -> None:
        while connection.recv(1):
            pass
        broken.set()

    with server(never) as (url, heard):
        bot = script(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; {ALLOW}")
        view = mount(TREE, *ASK, "--ask-url", url, "--ask-command", bot)
        with started("cat", ".env", cwd=view.root) as program:
            soon(lambda: len(heard) == 1, 30)
            (tmp_path / "go").touch()
            assert output(program) == "SECRET=1"
        assert broken.wait(30)


# What the page says

STAND_IN = """#!{python}
import json, sys
open({place!r} + "/shown", "w").write(json.dumps(sys.argv[1:]))
print({chosen!r})
sys.exit({status})
"""


@pytest.mark.parametrize(
    ("chosen", "status", "outcome"), [("path", 0, "SECRET=1"), ("never", 0, ""), ("", 0, ""), ("once", 1, "")]
)
def test_the_script_for_notifications_answers_what_is_clicked(
    mount: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, status: int, outcome: str
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "asking.md").read_text()
    recipe = page.partition("### Desktop notifications")[2].partition("```python\n")[2].partition("```")[0]
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ask-desktop").write_text(recipe)
    (programs / "notify-send").write_text(
        STAND_IN.format(python=sys.executable, place=str(tmp_path), chosen=chosen, status=status)
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    tree: Tree = {**TREE, ".env<b>\u202e\n": "SECRET=1"}
    view = mount(tree, *ASK, "--ask-command", "ask-desktop")
    assert cat(view, ".env<b>\u202e\n").stdout == outcome
    shown = json.loads((tmp_path / "shown").read_text())
    assert shown[-2:] == ["test: read?", "&#x27;cat&#x27; wants &#x27;.env&lt;b&gt;\\u202e\\n&#x27;"]
    grants = json.loads(run_sandboxfs("grants", "-s", "test", "--json", state=view.state).stdout)["grants"]
    stay = {"path": [("allow", "path")], "never": [("deny", "path")]}
    assert [(one["decision"], one["for"]) for one in grants] == stay.get(chosen, [])
