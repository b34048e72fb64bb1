"""What a review that failed says."""

import pytest

from sandboxfs.commit.stage import CHANGING
from sandboxfs.errors import CommitConflict
from sandboxfs.hostfs.identity import ConcurrentChange
from sandboxfs.service.review_session import told


@pytest.mark.parametrize(("why", "advised"), [(CHANGING, True), ("changed in the workspace", False)])
def test_a_file_that_is_still_changing_need_not_hold_up_the_others(why: str, *, advised: bool) -> None:
    with pytest.raises(CommitConflict) as refused, told("commit", {}):
        raise ConcurrentChange(b"log", why)
    hint = refused.value.hint or ""
    assert "nothing was changed" in hint
    assert ("name the other paths" in hint) is advised
