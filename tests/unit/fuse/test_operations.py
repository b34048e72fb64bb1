"""Is every operation that the kernel can ask for accounted for by the policy?

pyfuse3 may learn new operations, and a handler may be added here or to those that answer without pyfuse3:
none may open a way past the guard. So each is in one of the tables below, and together they are the table in
docs/policy.md.
"""

import ast
import errno
import inspect
import re
from functools import partial
from pathlib import Path
from typing import cast

import pyfuse3

from sandboxfs.fuse.express import Express, Handler
from sandboxfs.fuse.later import at_once
from sandboxfs.fuse.operations import Operations
from sandboxfs.fuse.session import NOTHING
from sandboxfs.fuse.telling import Telling
from sandboxfs.fuse.wire import Opcode
from sandboxfs.overlay.filesystem import ANYBODY, Filesystem
from sandboxfs.overlay.guard import Guard
from tests.support.claims import fails_with

# What an operation attempts; the guard checks it, on the path in question.
CHECKED = {
    "lookup": "read",
    "getattr": "read",
    "readlink": "read",
    "getxattr": "read",
    "listxattr": "read",
    "opendir": "read",
    "readdir": "read",
    "open": "read, write or execute",
    "read": "read",
    "write": "write",
    "create": "write",
    "mkdir": "write",
    "mknod": "write",
    "symlink": "write",
    "link": "write",
    "setattr": "write",
    "setxattr": "write",
    "removexattr": "write",
    "unlink": "delete",
    "rmdir": "delete",
    "rename": "delete and write",
}
# No access to anything that a rule could be about.
UNCHECKED = {"statfs", "flush", "release", "releasedir", "fsync", "fsyncdir", "forget"}
# Not handled. `access`: with default_permissions the kernel answers by itself, from attributes that it had to
# look up. `poll`: a file is always ready. `init` and `stacktrace` are pyfuse3's own affairs.
UNHANDLED = {"access", "poll", "init", "stacktrace"}
# Verbs of the protocol that the kernel does not ask for by themselves.
OWN_VERBS = {"absence_lasts", "familiar", "listing_lasts", "remember", "close"}


# What the kernel has more than one request for.
SAME_AS = {"batch_forget": "forget", "readdirplus": "readdir", "rename2": "rename"}


def operations_of(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind) if callable(value) and not name.startswith("_")}


def test_every_operation_of_pyfuse3_is_classified() -> None:
    known = CHECKED.keys() | UNCHECKED | UNHANDLED
    assert operations_of(pyfuse3.Operations) == known


def test_every_classified_operation_is_handled_and_no_other() -> None:
    handled = {name for name in vars(Operations) if not name.startswith("_")}
    settings = {"supports_dot_lookup", "enable_writeback_cache", "enable_acl"}
    assert handled - settings == CHECKED.keys() | UNCHECKED


def test_names_are_never_looked_up_as_dots() -> None:
    # Otherwise the kernel could ask for `..` of a directory by its inode, around the path that was decided.
    assert Operations.supports_dot_lookup is False


def test_the_guard_implements_every_verb_of_the_protocol_itself() -> None:
    verbs = {name for name in vars(Filesystem) if not name.startswith("_")}
    assert verbs == CHECKED.keys() | (UNCHECKED - {"flush"}) | OWN_VERBS
    assert verbs <= vars(Guard).keys()


def calls_in(function: ast.FunctionDef) -> set[str]:
    """The names of the methods that a method calls, whoever's they are."""
    return {
        node.func.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


def methods_of(kind: type) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(Path(inspect.getfile(kind)).read_text())
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


DECIDING = {"check", "check_inode"}


def test_every_checked_verb_of_the_guard_decides_and_no_other_does() -> None:
    methods = methods_of(Guard)
    helpers = {name for name in methods if name.startswith("_")}

    def decides(verb: str) -> bool:
        calls = calls_in(methods[verb])
        return bool(calls & DECIDING) or any(decides(helper) for helper in calls & helpers)

    # A lookup refuses by itself, because what it answers depends on whether the name is there.
    undecided = {verb for verb in CHECKED if not decides(verb)}
    assert undecided == {"lookup"}
    assert "refusal" in calls_in(methods["lookup"])
    assert not {verb for verb in UNCHECKED - {"flush"} if decides(verb)}


def test_every_handler_hands_over_to_the_filesystem_behind_it() -> None:
    for name, method in methods_of(Operations).items():
        if name not in ("__init__", "flush"):
            assert name in calls_in(method), f"{name} does not ask the filesystem"


def handlers() -> dict[Opcode, Handler]:
    """What is answered without pyfuse3, by nobody who has a filesystem to answer from."""
    nothing = cast(Filesystem, None)
    express = Express(nothing, -1, at_once, lambda _: None, Telling(), NOTHING)
    return {Opcode(number): handler for number, handler in express._handlers.items()}


def verb_of(opcode: Opcode) -> str:
    name = opcode.name.lower()
    return SAME_AS.get(name, name)


def asked_by(method: ast.FunctionDef) -> set[str]:
    """The verbs of the filesystem that a method of `Express` uses."""
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self._fs", "fs")
    }


def test_every_request_that_is_answered_without_pyfuse3_is_classified() -> None:
    answered = handlers()
    # Whom it interrupts gets the answer all the same: nothing is asked for, and nothing said.
    interrupt = answered.pop(Opcode.INTERRUPT)
    assert interrupt(1, memoryview(b""), ANYBODY) is None
    # There is no device to control, whatever is asked of it.
    with fails_with(errno.ENOTTY):
        answered.pop(Opcode.IOCTL)(1, memoryview(b""), ANYBODY)
    assert {verb_of(opcode) for opcode in answered} <= CHECKED.keys() | UNCHECKED


def test_every_request_that_is_answered_without_pyfuse3_is_handed_over_to_the_filesystem() -> None:
    answered = handlers()
    del answered[Opcode.INTERRUPT], answered[Opcode.IOCTL]
    methods = methods_of(Express)
    used = set()
    for opcode, handler in answered.items():
        name = (handler.func if isinstance(handler, partial) else handler).__name__
        used.add(name)
        verb, asked = verb_of(opcode), asked_by(methods[name])
        assert verb in asked, f"{name} does not ask the filesystem for {verb}"
        assert asked - {verb} <= OWN_VERBS | UNCHECKED, f"{name} asks for something else"
    assert {name for name, method in methods.items() if asked_by(method)} == used


def test_the_table_of_operations_in_the_documents_is_this_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
    section = re.search(r"^## Operations$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, "docs/policy.md has no section 'Operations'"
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \| [^|]* \|$", section[1], re.MULTILINE)
    documented = {name: access.strip() for names, access in rows for name in re.findall(r"`(\w+)`", names)}
    assert documented == CHECKED | dict.fromkeys(UNCHECKED, "none")
