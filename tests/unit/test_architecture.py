"""The module map of docs/architecture.md, enforced.

Reads the import statements of every module, so that a wrong dependency fails here and not in a review.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.module_tables import DOCUMENT, with_tables

PACKAGE = Path(__file__).parents[2] / "sandboxfs"

BASE = {"errors", "paths", "codec"}
BELOW_SERVICE = BASE | {"policy", "hostfs", "upper", "review", "commit", "archive"}
BELOW_SERVICE |= {"state", "control", "confine"}
# component -> the components it may import besides itself
ALLOWED: dict[str, set[str]] = {
    "__init__": {"api", "errors", "runs", "service"},
    "__main__": {"cli"},
    "codec": set(),
    "errors": {"codec"},
    "paths": {"errors"},
    "policy": BASE,
    "hostfs": BASE,
    "upper": BASE | {"hostfs"},
    "overlay": BASE | {"policy", "hostfs", "upper"},
    "review": BASE | {"policy", "hostfs", "upper"},
    "commit": BASE | {"policy", "hostfs", "upper", "review"},
    "archive": BASE | {"hostfs", "upper", "review"},
    "state": BASE | {"policy", "hostfs"},
    "fuse": BASE | {"policy", "hostfs", "upper", "overlay"},
    "confine": BASE | {"policy", "hostfs"},
    # What a daemon is asked to do to an upper is done by the same code where none serves.
    "control": BASE | {"hostfs", "upper", "state"},
    "daemon": BASE | {"policy", "hostfs", "upper", "overlay", "review", "state", "control", "fuse"},
    "service": BELOW_SERVICE,
    "responder": BASE | {"service", "control", "state", "confine"},
    "runs": BELOW_SERVICE | {"service"},
    "api": BASE | {"policy", "service", "runs"},
    "cli": BELOW_SERVICE | {"service", "runs"},
}
# What doors may import from below service: values, and functions of values.
VALUES = {
    "policy.assertions.Assertions",
    "policy.builtin.Preset",
    "policy.config.AuditLevel",
    "policy.config.PolicyRequest",
    "policy.config.Symlinks",
    "policy.model",
    "review.change",
    "review.compare.differ_in_attributes",
    "review.flags.Flag",
    "review.hunks",
    "review.patch",
    "review.scope.HeldChange",
    "review.scope.Reason",
    "review.summary.FoldedDirectory",
    "review.summary.without_implied",
}
# library -> the only components that may import it
CONFINED = {"pyfuse3": {"fuse"}, "trio": {"fuse", "daemon"}}
STDLIB_ONLY = {"codec", "errors", "paths"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def component(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Every dotted name that the module imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert all(alias.name != "*" for alias in node.names), f"{path}:{node.lineno}: no star imports"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_module_keeps_to_the_map(path: Path) -> None:
    here = component(path)
    for name in imported(path):
        top, *rest = name.split(".")
        if top == "sandboxfs" and rest[0] != "__version__":
            assert rest[0] in ALLOWED[here] | {here}, f"{here} must not import {name}"
        assert here in CONFINED.get(top, {here}), f"{here} must not import {top}"


DOOR_ROOMS = {"cli", "api"}
SERVICE = {"service", "runs"}
DOORS = [path for path in MODULES if component(path) in DOOR_ROOMS]


@pytest.mark.parametrize("path", DOORS, ids=named)
def test_door_stands_on_the_service_and_on_values(path: Path) -> None:
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "sandboxfs" and rest.split(".")[0] not in BASE | {"__version__"} | DOOR_ROOMS | SERVICE:
            values = any(f"{rest}.".startswith(f"{value}.") for value in VALUES)
            assert values, f"{named(path)} must not import {name}"


# Modules of service and runs that name signals: of a program that was started, never of the calling process.
WITH_SIGNALS = {"running_program"}


@pytest.mark.parametrize("path", [path for path in MODULES if component(path) in SERVICE], ids=named)
def test_service_knows_no_door(path: Path) -> None:
    of_doors = {"argparse", "getpass", "termios"} | ({"signal"} if path.stem not in WITH_SIGNALS else set())
    for name in imported(path):
        assert not name.startswith("sandboxfs.cli"), f"{named(path)} must not import {name}"
        assert name.split(".")[0] not in of_doors, name


@pytest.mark.parametrize("path", [path for path in MODULES if component(path) in STDLIB_ONLY], ids=named)
def test_module_that_all_import_needs_only_the_standard_library(path: Path) -> None:
    for name in imported(path):
        assert name.split(".")[0] in sys.stdlib_module_names | {"sandboxfs"}, f"{path} must not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_module_has_a_docstring_that_answers_its_question(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), "say in the module's docstring what it is for"


def test_tables_of_modules_in_the_document_are_the_first_lines_of_the_modules() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for room in {path.parent.name for path in MODULES} - {"sandboxfs"}:
        assert f"<!-- modules of {room} -->" in text, f"docs/architecture.md has no table of {room}"
    assert with_tables(text) == text, "run scripts/fix"


def test_no_two_modules_have_the_same_name() -> None:
    names = Counter(path.stem for path in MODULES if component(path) not in {"cli", "service"})
    del names["__init__"], names["__main__"]
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_classes_have_the_same_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            # The arguments of each verb are its own.
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name != "Arguments":
                found[node.name].append(named(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_every_component_on_disk_is_on_the_map() -> None:
    assert {component(path) for path in MODULES} <= ALLOWED.keys()


def test_every_package_is_a_package() -> None:
    for folder in {path.parent for path in MODULES}:
        assert (folder / "__init__.py").is_file(), f"{folder.relative_to(PACKAGE.parent)} lacks __init__.py"


# Packages that walk trees which programs made: those may be deeper than the interpreter's stack.
WALKING = {"hostfs", "upper", "overlay", "review", "commit", "archive", "state"}


@pytest.mark.parametrize("path", [path for path in MODULES if component(path) in WALKING], ids=named)
def test_no_function_that_may_walk_a_tree_calls_itself(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    methods = {id(node) for kind in ast.walk(module) if isinstance(kind, ast.ClassDef) for node in kind.body}
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef):
            itself = f"self.{function.name}" if id(function) in methods else function.name
            calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            assert itself not in calls, f"{named(path)}: {function.name} calls itself"
