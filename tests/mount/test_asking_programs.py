"""Do programs that get signals, or have children, work as ever while they wait for a person?"""

import os
import shutil
import signal
import subprocess
import time

import pytest

from tests.mount.conftest import Mount
from tests.support.asked import following, output, python, soon, started
from tests.support.tree import Tree

pytestmark = [pytest.mark.workload, pytest.mark.any_user]

TREE: Tree = {
    "Makefile": "all: a b c d\na b c d:\n\tcp secrets/$@ $@\n",
    **{f"secrets/{name}": name for name in "abcd"},
}
ASK = "--ask", "secrets"


def test_the_jobs_of_make_wait_and_go_on_together(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started("make", "-s", "-j4", cwd=view.root) as program:
        person.answer(person.question(), program=True, **{"for": "directory"})
        assert output(program) == ""
    assert [(view.root / name).read_text() for name in "abcd"] == list("abcd")


def test_the_jobs_of_make_wait_while_signals_arrive(mount: Mount) -> None:
    view = mount({**TREE, "quick": "quick"}, *ASK)
    # A fifth job ends while the others wait: make gets SIGCHLD, and each of its shells other signals.
    (view.root / "Makefile").write_text("all: a b c d e\na b c d:\n\tcp secrets/$@ $@\ne:\n\tcp quick e\n")
    with following(view) as person, started("make", "-s", "-j5", cwd=view.root) as program:
        question = person.question()
        soon(lambda: person.ask("asks")["questions"][0]["requests"] == 4)
        soon((view.root / "e").exists)
        waiting = subprocess.check_output(["pgrep", "-P", str(program.pid)], text=True).split()
        for pid in [program.pid, *map(int, waiting)]:
            for number in (signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH):
                os.kill(pid, number)
        time.sleep(0.3)
        assert [one["id"] for one in person.ask("asks")["questions"]] == [question["id"]]
        person.answer(question, program=True, **{"for": "directory"})
        assert output(program) == ""
    assert [(view.root / name).read_text() for name in "abcd"] == list("abcd")


def test_a_program_with_handlers_for_everything_is_not_disturbed(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    code = """
import os, signal
seen = set()
for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGURG, signal.SIGUSR1, signal.SIGWINCH):
    signal.signal(number, lambda number, frame: seen.add(number))
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
for delay in (0.1, 0.2, 0.3):
    if os.fork() == 0:
        import time
        time.sleep(delay)
        os._exit(0)
print(open('secrets/a').read(), sorted(signal.Signals(one).name for one in seen))
"""
    with following(view) as person, started(*python(code), cwd=view.root) as program:
        question = person.question()
        for number in (signal.SIGURG, signal.SIGUSR1, signal.SIGWINCH):
            program.send_signal(number)
        time.sleep(0.6)
        assert [one["id"] for one in person.ask("asks")["questions"]] == [question["id"]]
        person.answer(question)
        assert output(program) == "a ['SIGALRM', 'SIGCHLD', 'SIGURG', 'SIGUSR1', 'SIGWINCH']\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_clones_what_it_had_to_wait_for(mount: Mount) -> None:
    view = mount(TREE, "--ask", "source/.git/objects")
    setup = "git init -q source && cp -r secrets source && cd source && git add . && git commit -qm one"
    names = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    # Made on the host: what the sandbox made itself is not asked about.
    subprocess.run(["sh", "-c", setup], cwd=view.lower, env={**os.environ, **names}, check=True)
    view.host_changed()
    script = "git clone -q --progress --no-local source copy 2>&1 && cat copy/secrets/a"
    with following(view) as person, started("sh", "-c", script, cwd=view.root) as program:
        question = person.question()
        # Progress has an alarm a second.
        time.sleep(1.2)
        person.answer(question, **{"for": "./source/.git/objects/**"})
        assert output(program).endswith("a")


def test_a_shell_goes_on_while_its_job_waits(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    script = "set -m; cat secrets/a & echo begun; kill -CHLD $$; kill -URG %1; wait %1; echo $?"
    with following(view) as person, started("bash", "-c", script, cwd=view.root) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        question = person.question()
        time.sleep(0.3)
        assert [one["id"] for one in person.ask("asks")["questions"]] == [question["id"]]
        person.answer(question)
        told = output(program)
        assert (told[:1], told[-2:]) == ("a", "0\n")


def test_a_shell_kills_its_job_that_waits(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    script = "set -m; cat secrets/a & read; kill %1; wait %1; echo $?"
    with following(view) as person, started("bash", "-c", script, cwd=view.root) as program:
        assert program.stdin is not None
        person.question()
        program.stdin.write("\n")
        program.stdin.flush()
        # 128 and the number of SIGTERM.
        assert output(program).splitlines()[-1] == "143"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_adds_what_it_had_to_wait_for(mount: Mount) -> None:
    view = mount({**TREE, "a": "a"}, *ASK)
    # Progress, for which git has an alarm a second.
    script = "git init -q . && git add -v . && sleep 0.1 && git ls-files secrets | wc -l"
    with following(view) as person, started("sh", "-c", script, cwd=view.root) as program:
        question = person.question()
        time.sleep(1.2)
        person.answer(question, **{"for": "directory"})
        assert output(program).splitlines()[-1] == "4"


def test_threads_that_get_signals_all_the_time_wait_as_well(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    # As the runtime of Go does it: signals to single threads, with a handler.
    code = """
import signal, threading, time
signal.signal(signal.SIGURG, lambda *_: None)
found = []
def read(name): found.append(open(f'secrets/{name}').read())
threads = [threading.Thread(target=read, args=(name,)) for name in 'abcd']
for thread in threads: thread.start()
for _ in range(200):
    for thread in threads:
        if thread.is_alive(): signal.pthread_kill(thread.ident, signal.SIGURG)
    time.sleep(0.005)
for thread in threads: thread.join()
print(sorted(found))
"""
    with following(view) as person, started(*python(code), cwd=view.root) as program:
        question = person.question()
        time.sleep(0.7)
        (waiting,) = person.ask("asks")["questions"]
        assert (waiting["id"], waiting["requests"]) == (question["id"], 4)
        person.answer(question, **{"for": "directory"})
        assert output(program) == "['a', 'b', 'c', 'd']\n"


def test_a_program_with_many_threads_is_killed_while_all_wait(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    code = """
import threading
for name in 'abcd': threading.Thread(target=lambda: open(f'secrets/{name}').read()).start()
"""
    with following(view) as person, started(*python(code), cwd=view.root) as program:
        person.question()
        time.sleep(0.3)
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=20) == -signal.SIGTERM
        assert person.next("over")["outcome"] == "withdrawn"
