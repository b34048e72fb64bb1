"""What a commit has in the workspace for a moment is not in the view, and in nobody's way."""

import errno

from sandboxfs.hostfs.durable import is_temporary, temporary_name
from tests.conftest import MakeSandbox
from tests.support.claims import fails_with

STAGED = temporary_name(b"0123abcd", 7).decode()
LOOKALIKES = (
    ".sandboxfs-",
    ".sandboxfs-notes",
    ".sandboxfs-0123abcd-x",
    ".sandboxfs-0123ABCD-7",
    STAGED + "a",
)


def test_it_is_neither_found_nor_listed(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"dir/kept": "", f"dir/{STAGED}": "secret", f"{STAGED}/inner": "secret"})
    assert sandbox.names() == [b"dir"]
    assert sandbox.names("dir") == [b"kept"]
    for name in (STAGED, f"{STAGED}/inner", f"dir/{STAGED}"):
        with fails_with(errno.ENOENT):
            sandbox.stat(name)
        with fails_with(errno.ENOENT):
            sandbox.read(name)


def test_a_directory_with_nothing_else_in_it_is_empty(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({f"dir/{STAGED}": "text"})
    sandbox.rmdir("dir")
    assert sandbox.names() == []


def test_a_program_may_use_such_a_name_itself(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({f"dir/{STAGED}": "of a commit", "file": "text"})
    sandbox.create(f"dir/{STAGED}", b"of the program")
    assert sandbox.read(f"dir/{STAGED}") == b"of the program"
    assert sandbox.names("dir") == [STAGED.encode()]
    sandbox.unlink(f"dir/{STAGED}")
    assert sandbox.names("dir") == []


def test_names_that_only_look_like_it_are_shown(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(dict.fromkeys(LOOKALIKES, "text"))
    assert set(sandbox.names()) == {name.encode() for name in LOOKALIKES}
    assert not any(is_temporary(name.encode()) for name in LOOKALIKES)
