"""Links on the way to a path are those of the view."""

import os

import pytest

from sandboxfs.upper.walk import SymlinkResolver
from tests.support.reviewed import Reviewed
from tests.support.tree import Symlink, Tree
from tests.unit.conftest import Review

TREE: Tree = {
    "real/f": "1\n",
    "real/deep/g": "2\n",
    "link": Symlink("real"),
    "chain": Symlink("link/deep"),
    "real/up": Symlink("../link"),
    "out": Symlink("/usr"),
    "beyond": Symlink("../.."),
    "circle": Symlink("circle"),
    "dangling": Symlink("nowhere"),
}


def followed(sandbox: Reviewed, path: str, masked: frozenset[bytes] = frozenset()) -> str:
    with sandbox.layers() as layers:
        tops = [b"/mnt/view", os.fsencode(sandbox.host)]
        return os.fsdecode(
            SymlinkResolver(layers.upper, layers.workspace, masked, tops).followed(os.fsencode(path))
        )


def is_directory(sandbox: Reviewed, path: str) -> bool:
    with sandbox.layers() as layers:
        return SymlinkResolver(layers.upper, layers.workspace, frozenset(), []).is_directory(
            os.fsencode(path)
        )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", ""),
        ("real/f", "real/f"),
        ("link", "link"),
        ("link/f", "real/f"),
        ("link/not/there", "real/not/there"),
        ("chain/g", "real/deep/g"),
        ("link/up", "real/up"),
        ("link/up/f", "real/f"),
        ("dangling/a", "nowhere/a"),
        # What cannot be followed to its end stands for itself.
        ("out/bin", "out/bin"),
        ("beyond/a", "beyond/a"),
        ("circle/a", "circle/a"),
        ("real/f/a", "real/f/a"),
    ],
)
def test_links_on_the_way_are_followed_and_the_last_name_is_not(
    review: Review, path: str, expected: str
) -> None:
    assert followed(review(TREE), path) == expected


def test_a_directory_that_took_the_place_of_a_link_is_one(review: Review) -> None:
    sandbox = review(TREE)
    sandbox.unlink("link")
    sandbox.mkdir("link")
    sandbox.write("link/f", b"junk\n")
    assert followed(sandbox, "link/f") == "link/f"
    assert followed(sandbox, "link/deep/g") == "link/deep/g"
    assert not is_directory(sandbox, "link/deep")


def test_a_link_that_was_removed_leads_nowhere(review: Review) -> None:
    sandbox = review(TREE)
    sandbox.unlink("link")
    assert followed(sandbox, "link/f") == "link/f"


def test_a_link_that_the_sandbox_made_is_followed(review: Review) -> None:
    sandbox = review(TREE)
    sandbox.symlink("real/deep", "made")
    sandbox.unlink("link")
    sandbox.symlink("made", "link")
    assert followed(sandbox, "link/g") == "real/deep/g"


def test_a_link_in_a_directory_that_moved_is_followed_from_its_new_place(review: Review) -> None:
    sandbox = review({"d/link": Symlink("../a"), "a/f": "1", "e/": ""})
    sandbox.rename("d", "e/d")
    assert followed(sandbox, "e/d/link/f") == "e/a/f"
    assert followed(sandbox, "d/link/f") == "d/link/f"


def test_a_new_directory_shows_no_link_of_one_that_moved_away(review: Review) -> None:
    sandbox = review({"d/link": Symlink("../a"), "a/f": "1"})
    sandbox.rename("d", "e")
    sandbox.mkdir("d")
    assert followed(sandbox, "d/link/f") == "d/link/f"
    assert is_directory(sandbox, "d")


@pytest.mark.parametrize("top", ["/mnt/view", "HOST"])
def test_an_absolute_link_into_the_view_is_followed(review: Review, top: str) -> None:
    sandbox = review(TREE)
    sandbox.symlink(top.replace("HOST", str(sandbox.host)) + "/real", "absolute")
    assert followed(sandbox, "absolute/f") == "real/f"


@pytest.mark.parametrize("top", ["", "/mnt/view/", "HOST/"])
def test_dots_in_a_link_lead_to_the_parent_of_what_is_before_them(review: Review, top: str) -> None:
    sandbox = review({"a/f": "A", "b/x": "B", "x": "ROOT", "a/tob": Symlink("../b")})
    top = top.replace("HOST", str(sandbox.host))
    sandbox.symlink(f"{top}a/tob/..", "link")
    sandbox.symlink(f"{top}nowhere/../a", "broken")
    sandbox.symlink(f"{top}a/f/../../b", "through-a-file")
    assert followed(sandbox, "link/x") == "x"
    assert followed(sandbox, "broken/f") == "broken/f"
    assert followed(sandbox, "through-a-file/x") == "through-a-file/x"


def test_an_absolute_link_that_climbs_out_of_the_view_stands_for_itself(review: Review) -> None:
    sandbox = review(TREE)
    sandbox.symlink("/mnt/view/real/../../view", "out-and-in")
    assert followed(sandbox, "out-and-in/real") == "out-and-in/real"


def test_a_masked_path_is_not_looked_at(review: Review) -> None:
    assert followed(review(TREE), "link/f", masked=frozenset({b"link"})) == "link/f"


def test_a_directory_is_told_as_the_view_has_it(review: Review) -> None:
    sandbox = review({"d/in/f": "1", "f": "2"})
    assert is_directory(sandbox, "")
    assert is_directory(sandbox, "d/in")
    assert not is_directory(sandbox, "f")
    assert not is_directory(sandbox, "nowhere")
    sandbox.unlink("d/in/f")
    sandbox.rmdir("d/in")
    sandbox.write("d/in", b"a file\n")
    assert not is_directory(sandbox, "d/in")
