"""What are a starter's orders, and does it bring all it needs?"""

import ast
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from sandboxfs.confine import init
from sandboxfs.confine.init import InitOrders

texts = some.binary().map(lambda value: value.replace(b"\0", b""))
names = texts.map(lambda value: value.replace(b"=", b"")).filter(bool)


@given(
    some.lists(texts, min_size=1), some.dictionaries(names, texts), texts, some.booleans(), some.booleans()
)
def test_orders_are_read_as_they_were_written(
    command: list[bytes], environment: dict[bytes, bytes], directory: bytes, terminal: bool, foreground: bool
) -> None:
    given_orders = InitOrders(
        command, environment, directory, terminal=terminal, foreground=foreground, ignored=[1, 2]
    )
    read = InitOrders.parse(given_orders.dump())
    assert vars(read) == vars(given_orders)


def test_it_imports_nothing_that_is_not_there_without_packages() -> None:
    tree = ast.parse(Path(init.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert all(name.split(".")[0] in sys.stdlib_module_names for name in imported)
