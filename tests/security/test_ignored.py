"""Can a program get at what git ignores around a rule about it: by names, by moves, or by ignore files?"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.guarded import GuardedMount
from tests.support.mounted import serving
from tests.support.tree import Tree, build

TREE: Tree = {
    ".gitignore": "*.pem\n/node_modules/\n/only-here/*.txt\n",
    "key.pem": "SECRET\n",
    "docs/key.pem": "SECRET\n",
    "docs/page": "page\n",
    "only-here/a.txt": "SECRET\n",
    "only-here/b.c": "b\n",
    "nested/.gitignore": "*.log\n",
    "nested/x.log": "SECRET\n",
    "nested/deep/y.log": "SECRET\n",
    "node_modules/p/index.js": "SECRET\n",
    "free/a": "a\n",
}


@pytest.fixture(params=["deny", "hide", "ask"])
def view(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardedMount]:
    config = tmp_path / "config.toml"
    config.write_text(f'[[rule]]\nignored = true\nmode = "{request.param}"\n')
    workspace = build(tmp_path / "workspace", TREE)
    subprocess.run(["git", "init", "-q", "--template="], cwd=workspace, check=True)
    with ExitStack() as stack:
        yield stack.enter_context(
            serving(GuardedMount(tmp_path, workspace, options=("--config", str(config))))
        )


def secrets(view: GuardedMount) -> str:
    """What a program can read of all that it finds, or knows the name of."""
    script = """
    cat $(find . -name .sandboxfs -prune -o -type f -print) /dev/null
    cat key.pem docs*/key.pem only-here*/a.txt nested*/x.log nested*/deep/y.log node_modules*/p/index.js
    """
    done = subprocess.run(
        ["sh", "-c", script], cwd=view.root, capture_output=True, text=True, errors="replace", check=False
    )
    return done.stdout


ATTEMPTS = [
    "mv key.pem open; ln key.pem open2; cp key.pem open3; cp --reflink=always key.pem open4; cat < key.pem",
    "mv only-here only-there; mv only-here/a.txt free/a.txt; ln only-here/a.txt free/a.txt",
    "mv nested only; mv nested/deep free/deep; mv nested/deep/y.log free/y",
    "mv node_modules modules; mv node_modules/p free/p",
    "mv docs docs2; mv docs2/key.pem docs2/key; ln docs2/key.pem k",
    "mkdir in; mv docs in/docs; mv only-here in/only-here; mv in out",
    "mv free docs/free; mv docs/key.pem docs/free/key",
    "rm .gitignore nested/.gitignore; echo '!*.pem' > .gitignore; echo '!*' > docs/.gitignore",
    "mv .gitignore g; echo > .gitignore; git add -A; git add -f key.pem docs/key.pem; rm -rf .git/info",
    "mkdir -p .git/info; echo '!*.pem' > .git/info/exclude; git config core.excludesFile /dev/null",
    "git init -q docs; echo '!key.pem' > docs/.gitignore",
    "ln -s key.pem link; cat link; ln -s node_modules modules; cat modules/p/index.js",
    'mv --exchange docs free; python3 -c \'import os; os.rename("docs", "free/d")\'; cat free/d/key.pem',
]


@pytest.mark.parametrize("attempt", range(len(ATTEMPTS)))
def test_nothing_that_is_ignored_can_be_read(view: GuardedMount, attempt: int) -> None:
    assert "SECRET" not in secrets(view)
    done = subprocess.run(
        ["sh", "-c", ATTEMPTS[attempt]],
        cwd=view.root,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert "SECRET" not in done.stdout
    assert "SECRET" not in secrets(view)
    view.forget()
    assert "SECRET" not in secrets(view)
    view.stop()
    view.start()
    assert "SECRET" not in secrets(view)


def test_a_directory_may_move_where_git_ignores_the_same(view: GuardedMount) -> None:
    os.rename(view.root / "docs", view.root / "papers")
    assert (view.root / "papers/page").read_text() == "page\n"
    with pytest.raises(OSError):
        (view.root / "papers/key.pem").read_text()
