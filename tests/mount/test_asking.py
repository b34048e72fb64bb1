"""Does a program wait for a person where a rule asks, and is what the person allows what is opened?"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sandboxfs.errors import UsageError
from tests.mount.conftest import Mount
from tests.support.asked import following, output, python, soon, started
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import File, Tree

pytestmark = pytest.mark.any_user

TREE: Tree = {
    ".env": "SECRET=1",
    ".env.local": "SECRET=2",
    "config/.env": "SECRET=3",
    "plain": "plain",
    "tool": File("#!/bin/sh\necho tool\n", mode=0o755),
}
ASK = "--ask", ".env*"
# A signal to end is obeyed within this time, in seconds; the machine of a test may be busy.
PROMPTLY = 2.0


def cat(mount: MountDriver, *paths: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["cat", *paths], cwd=mount.root, capture_output=True, text=True, timeout=60, check=False
    )


def test_with_nobody_to_ask_reading_is_refused_at_once_and_names_are_shown(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    begun = time.monotonic()
    done = cat(view, ".env")
    assert time.monotonic() - begun < PROMPTLY
    assert done.stderr == "cat: .env: Permission denied\n"
    assert (view.root / ".env").stat().st_size == 8
    assert ".env" in os.listdir(view.root)
    denials = (view.root / ".sandboxfs/denials").read_text()
    (request,) = os.listdir(view.root / ".sandboxfs/requests")
    assert f".sandboxfs/requests/{request}" in denials
    told = json.loads((view.root / ".sandboxfs/requests" / request).read_text())
    assert (told["state"], told["path"], told["retry"]) == ("withdrawn", ".env", True)
    assert "read denied for '.env': asked by rule '.env* = ask'" in denials
    assert "nobody is connected who could be asked" in denials


def test_reading_waits_for_a_person_who_allows_it_once(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person:
        with started("cat", ".env", cwd=view.root) as program:
            question = person.question()
            assert question["path"] == ".env"
            assert question["access"] == "read"
            assert question["rule"]["pattern"] == ".env*"
            assert question["program"]["argv0"] == "cat"
            assert question["program"]["pid"] == program.pid
            assert question["program"]["parents"][0]["pid"] == os.getpid()
            # Meanwhile others are served, the same directory included.
            (view.root / "new").write_text("new")
            assert cat(view, "plain").stdout == "plain"
            assert [one["id"] for one in person.ask("asks")["questions"]] == [question["id"]]
            assert person.answer(question)["decision"] == "allow"
            assert output(program) == "SECRET=1"
        over = person.next("over")
        assert (over["id"], over["outcome"], over["by"]["pid"]) == (question["id"], "allowed", os.getpid())
        with started("cat", ".env", cwd=view.root) as program:
            question = person.question()
            reports = view.root / ".sandboxfs/requests"
            assert json.loads((reports / str(question["id"])).read_text())["state"] == "waiting"
            person.answer(question, "deny", reason="use config.example")
            assert "Permission denied" in output(program)
            refused = reports / str(question["id"])
    assert "use config.example" in (view.root / ".sandboxfs/denials").read_text()
    told = json.loads(refused.read_text())
    assert (told["state"], told["reason"], told["retry"]) == ("denied", "use config.example", False)
    done = run_sandboxfs("log", "-s", "test", "--json", state=view.state)
    events = [json.loads(line).get("event") for line in done.stdout.splitlines()]
    assert [event for event in events if event in ("asked", "answered")] == ["asked", "answered"] * 2


def test_a_grant_is_for_the_path_or_for_the_directory(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person:
        with started("cat", ".env", cwd=view.root) as program:
            grant = person.answer(person.question(), **{"for": "path"})["grant"]
            assert output(program) == "SECRET=1"
        person.next("over")
        assert cat(view, ".env").stdout == "SECRET=1"
        with started("cat", ".env.local", cwd=view.root) as program:
            person.answer(person.question(), **{"for": "directory"})
            assert output(program) == "SECRET=2"
        assert cat(view, ".env", ".env.local", "config/.env").stdout == "SECRET=1SECRET=2SECRET=3"
        listed = person.ask("grants")["grants"]
        assert [(one["for"], one["path"]) for one in listed] == [("path", ".env"), ("directory", "")]
        assert listed[0]["id"] == grant["id"]
        assert listed[1]["hits"] >= 3


def test_a_late_answer_is_told_who_answered(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        question = person.question()
        person.answer(question)
        with pytest.raises(UsageError) as refused:
            person.answer(question, "deny")
        over = refused.value.details["over"]
        assert isinstance(over, dict)
        assert over["by"]["pid"] == os.getpid()
        assert output(program) == "SECRET=1"


def test_when_the_last_follower_goes_what_waits_is_refused(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        person.question()
        person.close()
        assert "Permission denied" in output(program)


def test_nobody_answers_in_time(mount: Mount, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[ask]\ntimeout = 1\n")
    view = mount(TREE, *ASK, "--config", str(config))
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        question = person.question()
        assert question["remaining"] <= 1
        assert "Permission denied" in output(program)
        assert person.next("over")["outcome"] == "timeout"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_program_that_waits(mount: Mount, number: signal.Signals) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        person.question()
        begun = time.monotonic()
        program.send_signal(number)
        assert program.wait(timeout=30) == -number
        assert time.monotonic() - begun < PROMPTLY
        assert person.next("over")["outcome"] == "withdrawn"
        assert person.ask("asks")["questions"] == []


def test_ctrl_c_interrupts_a_program_that_handles_it(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    code = "try: open('.env')\nexcept KeyboardInterrupt: print('interrupted')"
    with following(view) as person, started(*python(code), cwd=view.root) as program:
        person.question()
        program.send_signal(signal.SIGINT)
        assert output(program) == "interrupted\n"
        assert person.next("over")["outcome"] == "withdrawn"


def test_a_signal_that_is_handled_does_not_disturb_a_program_that_waits(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    code = """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.signal(signal.SIGURG, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
print(open('.env').read())
"""
    with following(view) as person, started(*python(code), cwd=view.root) as program:
        question = person.question()
        program.send_signal(signal.SIGURG)
        program.send_signal(signal.SIGCHLD)
        time.sleep(0.5)
        assert [one["id"] for one in person.ask("asks")["questions"]] == [question["id"]]
        person.answer(question)
        assert output(program) == "SECRET=1\n"


def test_what_was_renamed_while_it_waits_is_asked_about_under_its_new_name(mount: Mount) -> None:
    view = mount(TREE, "--ask", "**/.env*")
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        question = person.question()
        os.rename(view.root / ".env", view.root / ".env.moved")
        os.rename(view.root / "plain", view.root / ".env")
        person.answer(question)
        person.next("over")
        again = person.question()
        assert again["path"] == ".env.moved"
        person.answer(again, "deny")
        assert "Permission denied" in output(program)


def test_no_other_content_comes_under_the_name_that_a_person_is_asked_about(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        question = person.question()
        with pytest.raises(PermissionError):
            os.rename(view.root / ".env.local", view.root / ".env")
        person.answer(question, **{"for": "path"})
        assert output(program) == "SECRET=1"
        with pytest.raises(PermissionError):
            os.rename(view.root / ".env.local", view.root / ".env")
        (view.root / ".env").unlink()
        with pytest.raises(PermissionError):
            os.link(view.root / ".env.local", view.root / ".env")


def test_a_changed_policy_decides_what_waits(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        question = person.question()
        # Another rule that is not about it: the question goes on.
        person.ask("allow", path="plain", mode="ro")
        time.sleep(0.5)
        assert [one["id"] for one in person.ask("asks")["questions"]] == [question["id"]]
        person.ask("allow", path=".env", mode="ro")
        assert output(program) == "SECRET=1"
        assert person.next("over")["outcome"] == "withdrawn"


def test_unmounting_answers_what_waits(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("cat", view.root / ".env", cwd=view.root.parent) as program:
        person.question()
        os.kill(view.pid, signal.SIGTERM)
        assert "cat: " in output(program)
    soon(lambda: not view.is_mounted)


def test_after_the_daemon_was_killed_nothing_waits(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        person.question()
        os.kill(view.pid, signal.SIGKILL)
        assert "cat: .env: " in output(program)


EXCHANGE = "import ctypes; ctypes.CDLL(None).renameat2(-100, b'.env', -100, b'x', 2)"


@pytest.mark.parametrize(
    "command",
    [
        "mv .env x && cat x",
        "ln .env x && cat x",
        "cp --reflink=auto .env x && cat x",
        "mkdir d && mv .env d/x && cat d/x",
        f'cp plain x && python3 -c "{EXCHANGE}"; cat x | grep SECRET',
        "cat config/../.env",
        "ln -s .env x && cat x",
        "dd if=.env of=x bs=4 && cat x",
        "tail -c 3 .env",
        "ln .env .env.other && rm .env && mv .env.other x && cat x",
        "mv config c2 && mv c2/.env x && cat x",
        "python3 -c \"print(open('.env', 'r+').read())\"",
        "python3 -c \"import os; print(os.read(os.open('.env', os.O_RDWR | os.O_CREAT), 9))\"",
    ],
)
def test_no_way_leads_around_a_question(mount: Mount, command: str) -> None:
    view = mount(TREE, "--ask", "**/.env*")
    done = subprocess.run(
        ["sh", "-c", command], cwd=view.root, capture_output=True, text=True, timeout=60, check=False
    )
    assert "SECRET" not in done.stdout
    assert done.returncode != 0


def test_what_the_sandbox_made_itself_is_read_without_asking(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    (view.root / ".env.mine").write_text("mine")
    assert (view.root / ".env.mine").read_text() == "mine"
    os.rename(view.root / ".env.mine", view.root / "mine")
    assert (view.root / "mine").read_text() == "mine"
    # A copy of the workspace's content stays one.
    with (view.root / ".env").open("a") as appended:
        appended.write("more")
    with pytest.raises(PermissionError):
        (view.root / ".env").read_text()


def test_a_revoked_grant_reaches_open_files_and_maps(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    code = """
import mmap, os, sys
fd = os.open('.env', os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
print(os.pread(fd, 6, 0), mapped[:6], flush=True)
sys.stdin.readline()
try:
    print(os.pread(fd, 6, 0), flush=True)
except PermissionError:
    print('refused', flush=True)
print(mapped[:6], flush=True)
"""
    with following(view) as person:
        program = subprocess.Popen(
            python(code), cwd=view.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdin is not None
        assert program.stdout is not None
        grant = person.answer(person.question())["grant"]
        assert program.stdout.readline() == "b'SECRET' b'SECRET'\n"
        assert [(one["id"], one["open"]) for one in person.ask("grants")["grants"]] == [(grant["id"], 1)]
        assert [one["id"] for one in person.ask("revoke", id=grant["id"])["revoked"]] == [grant["id"]]
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.read() == "refused\n"
        assert program.wait(timeout=30) == -signal.SIGBUS
        program.stdin.close()
        program.stdout.close()


def test_a_grant_runs_out(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person:
        with started("cat", ".env", cwd=view.root) as program:
            person.answer(person.question(), **{"for": "path", "during": "1s"})
            assert output(program) == "SECRET=1"
        person.next("over")
        soon(lambda: person.ask("grants")["grants"] == [])
        with started("cat", ".env", cwd=view.root) as program:
            person.answer(person.question(), "deny", **{"for": "path"})
            assert "Permission denied" in output(program)
        assert "Permission denied" in cat(view, ".env").stderr


def test_new_programs_ask_once_for_each_content(mount: Mount, tmp_path: Path) -> None:
    view = mount(TREE, "--preset", "careful")
    assert subprocess.check_output([view.root / "tool"], text=True) == "tool\n"
    new = view.root / "new"
    new.write_text("#!/bin/sh\necho new\n")
    new.chmod(0o755)
    with pytest.raises(PermissionError):
        subprocess.check_output([new])
    with following(view) as person:
        with started("sh", "-c", new, cwd=tmp_path) as program:
            question = person.question()
            assert question["access"] == "execute"
            assert len(question["content"]) == 64
            person.answer(question, **{"for": "content"})
            assert output(program) == "new\n"
        person.next("over")
        os.rename(new, view.root / "renamed")
        assert subprocess.check_output([view.root / "renamed"], text=True) == "new\n"
        with (view.root / "renamed").open("a") as appended:
            appended.write("echo more\n")
        with started("sh", "-c", view.root / "renamed", cwd=tmp_path) as program:
            person.answer(person.question(), "deny")
            output(program)


def test_what_is_careful_holds_deletes_and_overwrites_of_the_workspace(mount: Mount) -> None:
    view = mount(TREE, "--preset", "careful")
    (view.root / "plain").unlink()
    (view.root / ".env").write_text("other")
    (view.root / "new").write_text("new")
    done = run_sandboxfs("diff", "-s", "test", "--name-status", state=view.state)
    assert [line for line in done.stdout.splitlines() if "held" in line and "\t" in line] == [
        "M\t.env\t[held, runs]",
        "D\tplain\t[held]",
    ]
    listed = run_sandboxfs("approve", "-s", "test", state=view.state)
    assert "plain" in listed.stdout + listed.stderr


def test_nobody_inside_the_view_can_answer(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("cat", ".env", cwd=view.root) as program:
        question = person.question()
        code = f"""
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from sandboxfs.control.control_socket import ask, ControlAddress
address = ControlAddress('test', Path(sys.argv[2]), Path(sys.argv[2]), Path(sys.argv[2]))
for verb, args in [('answer', {{'id': {question["id"]}, 'decision': 'allow'}}), ('asks', {{}}),
                   ('grants', {{}}), ('asks', {{'follow': True}}), ('revoke', {{'all': True}}),
                   ('reading', {{'id': {question["id"]}}})]:
    try:
        ask(address, verb, args)
    except Exception as error:
        print(error.details['inside'])
"""
        project = Path(__file__).parents[2]
        told = subprocess.check_output(
            python(code, project, person.address.found()), cwd=view.root, text=True, timeout=60
        )
        assert told == "True\n" * 6
        assert [one["id"] for one in person.ask("asks")["questions"]] == [question["id"]]
        person.answer(question, "deny")
        output(program)


def test_a_thousand_requests_are_one_question(mount: Mount) -> None:
    view = mount({f"d/.env{number}": "SECRET" for number in range(100)}, "--ask", ".env*")
    code = """
import threading
def read(number):
    for _ in range(10):
        try: open(f'd/.env{number}').read()
        except OSError: pass
threads = [threading.Thread(target=read, args=(number,)) for number in range(100)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('done')
"""
    with following(view) as person, started(*python(code), cwd=view.root) as program:
        question = person.question()

        def waiting() -> int:
            (listed,) = person.ask("asks")["questions"]
            assert listed["id"] == question["id"]
            return int(listed["requests"])

        soon(lambda: waiting() == 100)
        person.answer(question, "deny", **{"for": "directory"})
        assert output(program) == "done\n"
