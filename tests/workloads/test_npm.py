"""Does npm install packages in the view, offline, from tarballs packed on the spot?"""

import json
import os
from pathlib import Path

import pytest

from tests.support import conditions
from tests.support.mounted import run
from tests.support.tree import Node, Tree
from tests.workloads.conftest import Mount


def package(name: str, needs: dict[str, str], code: str, **more: object) -> dict[str | bytes, Node]:
    described = {"name": name, "version": "1.0.0", "main": "index.js", "dependencies": needs, **more}
    return {f"{name}/package.json": json.dumps(described), f"{name}/index.js": code}


TARBALLS = {name: f"file:../{name}-1.0.0.tgz" for name in ("leaf", "middle", "tool")}

WORKSPACE: Tree = {
    **package("leaf", {}, "module.exports = 'leaf';\n"),
    **{f"leaf/lib/part{number}.js": f"module.exports = {number};\n" for number in range(100)},
    **package("middle", {"leaf": "1.0.0"}, "module.exports = 'middle of ' + require('leaf');\n"),
    **package("tool", {}, "#!/usr/bin/env node\nconsole.log('tool runs');\n", bin={"tool": "index.js"}),
    **package("app", TARBALLS, "console.log(require('middle'));\n", private=True),
}


@pytest.fixture(autouse=True)
def _npm() -> None:
    conditions.require_tool("npm")
    conditions.require_tool("node")


def npm(where: Path, *arguments: str) -> str:
    quiet = ("--offline", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    return run("npm", *arguments, *quiet, cwd=where, env={"npm_config_cache": os.environ["HOME"] + "/npm"})


def test_tarballs_with_dependencies_are_packed_and_installed_and_installed_again(mount: Mount) -> None:
    sandbox = mount(WORKSPACE)
    where = sandbox.root
    for name in ("leaf", "middle", "tool"):
        assert npm(where, "pack", f"./{name}").strip() == f"{name}-1.0.0.tgz"
    app = where / "app"
    npm(app, "install")
    assert run("node", "index.js", cwd=app) == "middle of leaf\n"
    assert run(app / "node_modules/.bin/tool", cwd=app) == "tool runs\n"
    assert len(os.listdir(app / "node_modules/leaf/lib")) == 100
    sandbox.remount()
    assert "leaf@1.0.0" in npm(app, "ls")
    # From the lock file alone, which takes the installed tree away first.
    npm(app, "ci")
    assert run("node", "index.js", cwd=app) == "middle of leaf\n"
    npm(app, "uninstall", "tool")
    assert not (app / "node_modules/tool").exists()
    assert sorted(os.listdir(sandbox.lower / "app")) == ["index.js", "package.json"]
