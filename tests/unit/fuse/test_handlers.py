"""Is every operation that the kernel can ask for accounted for by the policy?

A handler may be added, and pyfuse3 may learn new operations: none may open a way past the guard. So each is
in one of the tables below, and together they are the table in docs/policy.md.
"""

import ast
import errno
import inspect
import re
from functools import partial
from pathlib import Path
from typing import cast

import pyfuse3

from sandboxfs.fuse.connection import SessionOperations
from sandboxfs.fuse.handlers import Handler, RequestHandlers
from sandboxfs.fuse.notify import Notifier
from sandboxfs.fuse.protocol import Opcode
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
# Refused with ENOSYS. `access`: with default_permissions the kernel answers by itself, from attributes that
# it had to look up. `poll`: a file is always ready. `flush`: nothing is buffered.
UNSUPPORTED = {"access", "poll", "flush"}
# pyfuse3's own affairs.
OF_THE_SESSION = {"init", "stacktrace"}
# Verbs of the protocol that the kernel does not ask for by themselves.
OWN_VERBS = {"absence_lasts", "familiar", "listing_lasts", "remember", "close"}


# What the kernel has more than one request for.
SAME_AS = {"batch_forget": "forget", "readdirplus": "readdir", "rename2": "rename"}


def operations_of(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind) if callable(value) and not name.startswith("_")}


def test_every_operation_of_pyfuse3_is_classified() -> None:
    known = CHECKED.keys() | UNCHECKED | UNSUPPORTED | OF_THE_SESSION
    assert operations_of(pyfuse3.Operations) == known


def test_pyfuse3_answers_nothing_but_init() -> None:
    settings = {"supports_dot_lookup", "enable_writeback_cache"}
    assert {name for name in vars(SessionOperations) if not name.startswith("_")} == settings | {"init"}


def test_every_classified_operation_is_handled_and_no_other() -> None:
    handled = {verb_of(opcode) for opcode in handlers() if opcode not in WITHOUT_FILESYSTEM}
    assert handled == CHECKED.keys() | UNCHECKED - UNSUPPORTED


def test_names_are_never_looked_up_as_dots() -> None:
    # Otherwise the kernel could ask for `..` of a directory by its inode, around the path that was decided.
    assert SessionOperations.supports_dot_lookup is False


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


DECIDING = {"check", "check_inode", "check_shown", "permits"}


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


def handlers() -> dict[Opcode, Handler]:
    """The handlers of nobody who has a filesystem to answer from."""
    made = RequestHandlers(cast(Filesystem, None), Notifier(), every_listing=False)
    return {Opcode(number): handler for number, handler in made.by_opcode().items()}


def verb_of(opcode: Opcode) -> str:
    name = opcode.name.lower()
    return SAME_AS.get(name, name)


def asked_by(method: ast.FunctionDef) -> set[str]:
    """The verbs of the filesystem that a handler uses."""
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self._fs", "fs")
    }


# What is answered without the filesystem, and how; None is no answer.
WITHOUT_FILESYSTEM = {
    Opcode.INIT: errno.EIO,
    Opcode.IOCTL: errno.ENOTTY,
    Opcode.INTERRUPT: None,
    Opcode.NOTIFY_REPLY: None,
    Opcode.DESTROY: b"",
}


def test_what_no_rule_is_about_is_answered_without_the_filesystem() -> None:
    found = handlers()
    for opcode, answer in WITHOUT_FILESYSTEM.items():
        if isinstance(answer, int):
            with fails_with(answer):
                found[opcode](1, memoryview(b""), ANYBODY)
        else:
            assert found[opcode](1, memoryview(b""), ANYBODY) == answer


def test_every_other_request_is_handed_over_to_the_filesystem() -> None:
    methods = methods_of(RequestHandlers)
    used = set()
    for opcode, handler in handlers().items():
        if opcode in WITHOUT_FILESYSTEM:
            continue
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
