"""A program that asks as fast as it can: the person still sees one line, others are served, nothing grows."""

import re
import time
from pathlib import Path

import pytest

from sandboxfs.daemon.questions import MOST_OF_ONE_PROGRAM
from tests.mount.conftest import Mount
from tests.mount.test_answering import prompted
from tests.support.asked import following, output, python, soon, started
from tests.support.mount_driver import MountDriver
from tests.support.tree import Tree

pytestmark = pytest.mark.any_user

DIRECTORIES = 300
TREE: Tree = {"plain": "plain", "mine/.env": "SECRET", **{f"d{n}/.env": "SECRET" for n in range(DIRECTORIES)}}
ASK = "--ask", ".env"
# Each thread asks about a directory of its own, again and again; it prints how often it was refused.
HOSTILE = f"""
import os, sys, threading, time
refused = 0
def ask(number):
    global refused
    while True:
        try: os.close(os.open(f'd{{number}}/.env', os.O_RDONLY))
        except OSError: refused += 1
threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range({DIRECTORIES})]
for thread in threads: thread.start()
begun = time.monotonic()
while refused < 5000: time.sleep(0.01)
print(refused / (time.monotonic() - begun), flush=True)
sys.stdin.readline()
os._exit(0)
"""
# Asks, and gives up at once, which withdraws the question.
GIVING_UP = f"""
import os, subprocess, sys
for number in range(10**6):
    path, nothing = f'd{{number % {DIRECTORIES}}}/.env', subprocess.DEVNULL
    asking = subprocess.Popen(['cat', path], stdout=nothing, stderr=nothing)
    asking.kill()
    asking.wait()
"""


def memory(view: MountDriver) -> int:
    """The memory of the daemon, in bytes."""
    status = Path(f"/proc/{view.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def test_a_program_that_asks_all_the_time_has_its_share_and_no_more(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as person, started(*python(HOSTILE), cwd=view.root) as hostile:
        assert hostile.stdout is not None
        first = person.question()
        before = memory(view)
        # Questions a second, refused ones included.
        assert float(hostile.stdout.readline()) > 1000
        listed = person.ask("asks")["questions"]
        assert len(listed) == MOST_OF_ONE_PROGRAM
        assert listed[0]["id"] == first["id"], "what was asked first stays"
        assert memory(view) - before < 32 << 20
        # Others are served, and asked about.
        begun = time.monotonic()
        assert (view.root / "plain").read_text() == "plain"
        assert time.monotonic() - begun < 5
        with started("cat", "mine/.env", cwd=view.root) as honest:
            soon(lambda: any(one["path"] == "mine/.env" for one in person.ask("asks")["questions"]))
            (mine,) = [one for one in person.ask("asks")["questions"] if one["path"] == "mine/.env"]
            person.answer(mine)
            assert output(honest) == "SECRET"
        assert len((view.root / ".sandboxfs/denials").read_text()) < 1 << 20


def test_a_person_sees_one_question_of_a_program_that_asks_all_the_time(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with prompted(view) as person, started(*python(HOSTILE), cwd=view.root) as hostile:
        assert hostile.stdout is not None
        shown = person.expect("allow? [o,d,s,n,N,?] ")
        assert float(hostile.stdout.readline()) > 1000
        (number,) = re.findall(r"\[(\d+)\] read ", shown)
        # Still the same, and nothing beside it.
        person.type(b"n\n")
        then = person.expect("allow? [o,d,s,n,N,?] ")
        assert re.findall(r"\[(\d+)\] read ", then) != [number]
        assert len(re.findall(r"\[\d+\] read ", then)) == 1


def test_questions_that_are_given_up_at_once_do_not_scroll_the_terminal(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with prompted(view) as person, started(*python(GIVING_UP), cwd=view.root):
        begun = time.monotonic()
        shown = ""
        while time.monotonic() - begun < 4:
            shown += person.expect("allow? [o,d,s,n,N,?] ")
        assert len(re.findall(r"\[\d+\] read ", shown)) <= 2 + (time.monotonic() - begun) * 2
