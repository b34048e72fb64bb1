"""Does real work get done in a run: version control, builds, package managers, tests, servers?"""

import os
import sysconfig
from pathlib import Path

import pytest

from tests.support import conditions, runs
from tests.support.tree import Tree, assert_same_tree, build, capture
from tests.workloads.test_pip import PROJECT as PYTHON_PROJECT

C_PROJECT: Tree = {
    "Makefile": "OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\t$(CC) -o $@ $^\n",
    "main.c": "int part0(void), part7(void);\nint main(void) { return part0() + part7() - 7; }\n",
    **{f"part{number}.c": f"int part{number}(void) {{ return {number}; }}\n" for number in range(8)},
}
NODE_PROJECT: Tree = {
    "package.json": '{"name": "app", "version": "1.0.0", "dependencies": {"tiny": "file:tiny-1.0.0.tgz"}}\n',
    "tiny/package.json": '{"name": "tiny", "version": "1.0.0", "main": "index.js"}\n',
    "tiny/index.js": "module.exports = 'tiny works';\n",
}
TESTED: Tree = {
    "adder.py": "def add(a, b):\n    return a + b\n",
    "test_adder.py": "from adder import add\n\n\ndef test_add(tmp_path):\n    assert add(1, 2) == 3\n",
}
# Serves one request to itself, on loopback.
PYTHON_SERVER = """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/file").read().decode())
"""
NODE_SERVER = """
const http = require("http");
const server = http.createServer((request, response) => response.end("from node"));
server.listen(0, "127.0.0.1", () =>
  http.get({ port: server.address().port }, (answer) =>
    answer.on("data", (text) => { console.log(String(text)); server.close(); })));
"""


@pytest.fixture(params=runs.CONFINEMENTS)
def confinement(request: pytest.FixtureRequest) -> str:
    runs.require(str(request.param))
    return str(request.param)


def test_git_clones_changes_and_commits(tmp_path: Path, confinement: str) -> None:
    git = conditions.require_tool("git")
    workspace = build(tmp_path / "workspace", {})
    who = "-c user.name=me -c user.email=me@example.org -c init.defaultBranch=main"
    inside = f"""
set -e
git {who} init -q origin && cd origin
seq 1000 > numbers && mkdir -p a/b && echo x > a/b/c && git add . && git {who} commit -qm one
cd .. && git clone -q origin copy && cd copy
sed -i s/500/five-hundred/ numbers && git mv a z && git {who} commit -qam two
git push -q origin HEAD:other && git -C ../origin log --oneline other | wc -l
git status --short && git fsck
"""
    done = runs.run("--quiet", "--confine", confinement, "--", "sh", "-c", inside, cwd=workspace)
    assert done.stdout == "2\n"
    assert git
    assert os.listdir(workspace) == []


def test_make_builds_with_four_jobs(tmp_path: Path, confinement: str) -> None:
    conditions.require_tool("make")
    conditions.require_tool("gcc")
    workspace = build(tmp_path / "workspace", C_PROJECT)
    before = capture(workspace)
    inside = "make -s -j4 && ./program && make -s -q"
    runs.run(
        "--confine",
        confinement,
        "--assert-writes-only",
        "*.o",
        "--assert-writes-only",
        "program",
        "--",
        "sh",
        "-c",
        inside,
        cwd=workspace,
    )
    assert_same_tree(capture(workspace), before, what="the workspace")


def test_npm_installs_from_a_local_archive(tmp_path: Path, confinement: str) -> None:
    conditions.require_tool("npm")
    workspace = build(tmp_path / "workspace", NODE_PROJECT)
    inside = (
        "npm pack --silent ./tiny >/dev/null && npm install --silent --offline --no-audit --no-fund && "
        "node -e 'console.log(require(\"tiny\"))'"
    )
    done = runs.run("--confine", confinement, "--", "sh", "-c", inside, cwd=workspace)
    assert done.stdout == "tiny works\n"
    assert sorted(os.listdir(workspace)) == ["package.json", "tiny"]


def test_pip_installs_from_a_local_archive_in_an_environment(tmp_path: Path) -> None:
    runs.require("bubblewrap")
    workspace = build(tmp_path / "workspace", PYTHON_PROJECT)
    inside = f"""
set -e
{runs.PYTHON} -m venv env
env/bin/python -m pip wheel -q --no-deps -w wheels ./project
env/bin/python -m pip install -q wheels/tiny-1.0-py3-none-any.whl
env/bin/tiny
"""
    offline = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = runs.run("--env", "PYTHONPATH=", "--", "sh", "-c", inside, cwd=workspace, env=offline)
    assert done.stdout == "tiny runs\n"
    # What was installed still works in the next run: the view is where it was.
    assert runs.run("--env", "PYTHONPATH=", "--", "env/bin/tiny", cwd=workspace).stdout == "tiny runs\n"
    assert os.listdir(workspace) == ["project"]


def test_pytest_tests_a_project_with_packages_from_outside(tmp_path: Path) -> None:
    runs.require("bubblewrap")
    workspace = build(tmp_path / "workspace", TESTED)
    packages = os.path.realpath(sysconfig.get_path("purelib"))
    words = ("--allow", f"{packages}:ro", "--env", f"PYTHONPATH={packages}")
    done = runs.run(*words, "--", runs.PYTHON, "-m", "pytest", "-q", "-p", "no:randomly", cwd=workspace)
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    ("confinement", "network"),
    [("bubblewrap", ()), ("bubblewrap", ("--network",)), ("landlock", ("--network",))],
)
def test_servers_work_on_loopback(tmp_path: Path, confinement: str, network: tuple[str, ...]) -> None:
    runs.require(confinement)
    workspace = build(
        tmp_path / "workspace", {"file": "from python", "serve.py": PYTHON_SERVER, "serve.js": NODE_SERVER}
    )
    words = ("--confine", confinement, *network, "--")
    assert "from python" in runs.run(*words, runs.PYTHON, "serve.py", cwd=workspace).stdout
    conditions.require_tool("node")
    assert runs.run(*words, "node", "serve.js", cwd=workspace).stdout == "from node\n"
