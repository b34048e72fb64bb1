"""Sessions: what is asked of a sandbox while it is served, by commands and over its control socket.

The answers depend on what was asked before, so each session is one script from the beginning to the end.
"""

import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.golden.relocation import Json
from tests.golden.replaying import normal
from tests.support.tree import Tree

_BOX: Final = ["-s", "golden"]

WORKSPACE: Final[Tree] = {
    "edited": "".join(f"line {number}\n" for number in range(20)),
    "gone": "gone\n",
    "dir/x": "x\n",
    "dir/y": "y\n",
    "secret": "secret\n",
    "hidden": "hidden\n",
    "docs/page": "page\n",
    ".sandboxfs.toml": '[[rule]]\npath = "docs"\nmode = "ro"\n',
}

_RULES: Final = ["--rule", "secret=ro", "--rule", "hidden=hide", "--allow", "dir:rw"]
MOUNT: Final = ["mount", "--name", "golden", "--json", *_RULES, "@root@/workspace", "@root@/view"]

COMMANDS: Final[dict[str, list[list[str]]]] = {
    "served": [
        MOUNT,
        ["rules", *_BOX, "--json"],
        ["why", "docs/page", "write", *_BOX, "--json"],
        ["why", "hidden", *_BOX, "--json"],
        ["why", "dir/x", "write", *_BOX, "--json"],
        ["@do", "change"],
        ["@do", "disobey"],
        ["allow", "secret", "rw", *_BOX, "--json"],
        ["ro", *_BOX, "--json"],
        ["rw", *_BOX, "--json"],
        ["disable", *_BOX, "--json"],
        ["enable", *_BOX, "--json"],
        ["diff", *_BOX, "--json"],
        ["commit", *_BOX, "--yes", "--json", "@root@/workspace/edited"],
        ["discard", *_BOX, "--yes", "--json", "@root@/workspace/new"],
        ["undo", *_BOX, "--yes", "--json", "1"],
        ["unmount", *_BOX, "--json"],
        ["log", *_BOX, "--denied", "--json"],
        ["log", *_BOX, "--op", "rename", "--json"],
        ["log", *_BOX, "--verify", "--json"],
        ["mount", "--name", "golden", "--json", "@root@/workspace", "@root@/view"],
        ["rm", "golden", "--json"],
        ["unmount", *_BOX, "--json"],
        ["rm", "golden", "--force", "--json"],
        ["prune", "--json"],
        ["list", "--json"],
    ],
    "run": [
        [
            *("run", "--confine", "none", "--workspace", "@root@/workspace", "--json", "@root@/run.json"),
            *("--rule", "secret=ro", "--assert-no-writes", "dir/**", "--quiet", "--", "sh", "-c"),
            "echo more >> edited; rm gone; echo x > dir/x; echo > secret; exit 3",
        ],
        ["diff", "-s", "workspace", "--json"],
    ],
}

# Each line is sent as it is; `@observation@` stands for what the daemon called the last one that began.
REQUESTS: Final = (
    '{"v": 1, "id": 1, "verb": "status", "args": {}}',
    '{"v": 1, "id": 2, "verb": "rules"}',
    '{"v": 1, "verb": "rules", "args": {}}',
    '{"v": 1, "id": 3, "verb": "why", "args": {"path": "secret", "access": "write"}}',
    '{"v": 1, "id": 4, "verb": "why", "args": {"path": "odd\\udcff/"}}',
    '{"v": 1, "id": 5, "verb": "why", "args": {"path": "../up"}}',
    '{"v": 1, "id": 6, "verb": "why", "args": {}}',
    '{"v": 1, "id": 7, "verb": "allow", "args": {"path": "dir/x", "mode": "ro"}}',
    '{"v": 1, "id": 8, "verb": "allow", "args": {"path": "dir/x"}}',
    '{"v": 1, "id": 9, "verb": "allow", "args": {"path": "dir/x", "mode": "none"}}',
    '{"v": 1, "id": 10, "verb": "ro", "args": {}}',
    '{"v": 1, "id": 11, "verb": "rw", "args": {}}',
    '{"v": 1, "id": 12, "verb": "disable", "args": {}}',
    '{"v": 1, "id": 13, "verb": "enable", "args": {}}',
    '{"v": 1, "id": 14, "verb": "observe", "args": {"no_writes": ["dir/**"], "writes_only": []}}',
    '{"v": 1, "id": 15, "verb": "observed", "args": {"observation": "@observation@"}}',
    '{"v": 1, "id": 16, "verb": "observed", "args": {"observation": "@observation@", "end": true}}',
    '{"v": 1, "id": 17, "verb": "observed", "args": {"observation": "another"}}',
    '{"v": 1, "id": 18, "verb": "settle", "args": {"record": 1, "operations": []}}',
    '{"v": 1, "id": 19, "verb": "settle", "args": {"record": 1, "operations": ['
    '{"op": "whiteout", "path": "gone", "number": null}, '
    '{"op": "drop", "path": "gone", "expect": "whiteout", "keep": "1", "number": null}, '
    '{"op": "drop", "path": "absent", "expect": "whiteout", "keep": "2", "number": null}]}}',
    '{"v": 1, "id": 20, "verb": "settle", "args": {"record": 1, "operations": ['
    '{"op": "open", "path": "../up"}]}}',
    '{"v": 1, "id": 21, "verb": "sing", "args": {}}',
    '{"v": 2, "id": 22, "verb": "status", "args": {}}',
    '{"v": 1, "id": 23, "verb": 5}',
    "[1, 2, 3]",
    "no JSON",
)


def ask(root: Path, requests: Iterable[str]) -> list[Json]:
    """Send each request to the daemon of the sandbox at *root*; every one with its answer."""
    address = root / "state/sandboxes/golden/control"
    told: list[Json] = []
    observation = ""
    for request in requests:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(address.resolve()))
            connection.sendall(request.replace("@observation@", observation).encode() + b"\n")
            with connection.makefile() as file:
                answer: Json = json.loads(file.readline())
        result = answer.get("result")
        if isinstance(result, dict) and isinstance(result.get("observation"), str):
            observation = result["observation"]
            result["observation"] = "@observation@"
        told.append({"request": request, "answer": normal(answer, root)})
    return told
