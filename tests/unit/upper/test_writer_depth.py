"""Directories nested deep leave an upper and come back in time that grows as their number does."""

import os
from collections.abc import Callable
from pathlib import Path

from sandboxfs.upper.edits import EditOutcome, Operation, Prune, RestoreEntry
from tests.support.edited import RECORD, Bench
from tests.support.growth import grows_linearly


def test_deep_directories_leave_and_come_back_in_linear_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {})
    bench.view.stop()
    with bench.upper_editor() as editor:
        editor.use(RECORD)

        def prepared(levels: int) -> Callable[[], object]:
            top = b"%d" % levels
            depths = range(levels, 0, -1)
            paths = [top + b"/e" * depth for depth in depths]
            for layer in (bench.lower, bench.upper):
                (layer / os.fsdecode(paths[0])).mkdir(parents=True, exist_ok=True)
            leave = [
                Prune(path, b"%d-%d" % (levels, depth)) for path, depth in zip(paths, depths, strict=True)
            ]
            back = [RestoreEntry(prune.path, prune.keep) for prune in reversed(leave)]

            operations: list[Operation] = [*leave, *back]

            def work() -> None:
                for operation in operations:
                    assert editor.edit(operation) == EditOutcome(done=True)

            return work

        assert grows_linearly(prepared, 120, 121)
    bench.start()
    bench.close()
