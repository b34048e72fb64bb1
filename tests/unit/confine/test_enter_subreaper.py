"""Does a keeper end everything, whatever a program has done to be kept alive?

Each case is a process of its own: the keeper waits for every child that its process has.
"""

import os
import signal
import subprocess
import sys

import pytest

from tests.support import runs

MARK = f"sleep 27182{os.getpid()}.5"

PRELUDE = """
import ctypes, os, resource, subprocess, sys, threading, time
from sandboxfs.confine import enter, kernel_calls
kernel_calls.adopt_orphans()
mark = sys.argv[1]

def start(words):
    # Returns when the last of it has started.
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    process.stdout.readline()

"""
TREE = """
inner = f"(setsid {mark} &); echo ready; exec {mark}"
start(["sh", "-c", f"{mark} & setsid sh -c '{inner}' & wait"])
"""
END = "enter.end_descendants(enter.highest_process())\n"

# The first thread of a process ends, and the process looks like one that has.
HALF_ENDED = """
import ctypes, subprocess, sys, threading, time
def go_on():
    child = subprocess.Popen(sys.argv[1].split())
    print("ready", flush=True)
    time.sleep(1000)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""

CASES = {
    "a tree with sessions of its own": TREE + END,
    "no descriptors": TREE
    + "highest = enter.highest_process()\n"
    + "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\n"
    + "enter.end_descendants(highest)\n",
    "a process whose first thread has ended": f"start([sys.executable, '-c', {HALF_ENDED!r}, mark])\n" + END,
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left_of(case: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", PRELUDE + CASES[case], MARK], start_new_session=True)
    try:
        assert process.wait(60) == 0
        assert runs.processes_with(MARK) == []
    finally:
        process.kill()
        process.wait()
        for line in runs.processes_with(MARK):
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)
