"""The module map of docs/architecture.md, enforced.

Reads the import statements of every module, so that a wrong dependency fails here and not in a review.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sandboxfs"

# component -> the components it may import besides itself
ALLOWED: dict[str, set[str]] = {
    "__init__": {"api"},
    "__main__": {"cli"},
    "errors": set(),
    "paths": {"errors"},
    "policy": {"errors", "paths"},
    "layers": {"errors", "paths"},
    "overlay": {"errors", "paths", "policy", "layers"},
    "changes": {"errors", "paths", "policy", "layers"},
    "state": {"errors", "paths", "policy", "layers"},
    "fuse": {"errors", "paths", "policy", "layers", "overlay"},
    "confine": {"errors", "paths", "policy"},
    # What a daemon is asked to do to an upper is done by the same code where none serves.
    "control": {"errors", "paths", "layers", "state"},
    "daemon": {"errors", "paths", "policy", "layers", "overlay", "changes", "state", "control", "fuse"},
    "api": {"errors", "state", "control", "confine", "cli"},
    "cli": {"errors", "paths", "policy", "layers", "changes", "state", "control", "confine"},
}
# library -> the only components that may import it
CONFINED = {"pyfuse3": {"fuse"}, "trio": {"fuse", "daemon"}}
STDLIB_ONLY = {"errors", "paths"}

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


@pytest.mark.parametrize("path", [path for path in MODULES if component(path) in STDLIB_ONLY], ids=named)
def test_module_that_all_import_needs_only_the_standard_library(path: Path) -> None:
    for name in imported(path):
        assert name.split(".")[0] in sys.stdlib_module_names | {"sandboxfs"}, f"{path} must not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_module_has_a_docstring_that_answers_its_question(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), "say in the module's docstring what it is for"


def test_every_component_on_disk_is_on_the_map() -> None:
    assert {component(path) for path in MODULES} <= ALLOWED.keys()


def test_every_package_is_a_package() -> None:
    for folder in {path.parent for path in MODULES}:
        assert (folder / "__init__.py").is_file(), f"{folder.relative_to(PACKAGE.parent)} lacks __init__.py"
