"""Single files of a state directory, put where commands look for them, and what is asked of them then."""

import gzip
import io
import shutil
import tarfile
from pathlib import Path
from typing import Final

from tests.golden.live import WORKSPACE
from tests.support.tree import build

# Where records that have not been relocated say that everything is.
NOWHERE: Final = "/nowhere"

LOGS: Final = [
    ["log", "-s", "golden", "--verify", "--json"],
    ["log", "-s", "golden", "--denied", "--json"],
    ["log", "-s", "golden", "--op", "mkdir", "--json"],
]


def put_records(records: Path, root: Path) -> None:
    """Make sandboxes that have nothing but their records."""
    (root / "workspace").mkdir(parents=True)
    for record in sorted(records.glob("*.toml")):
        folder = root / "state/sandboxes" / record.stem
        (folder / "roots/0/upper").mkdir(parents=True, mode=0o700)
        shutil.copy(record, folder / "sandbox.toml")


def about_records(records: Path) -> list[list[str]]:
    """What commands can tell of records alone."""
    names = sorted(record.stem for record in records.glob("*.toml"))
    asked = [["status", "-s", name, "--json"] for name in names]
    told = [
        ["why", path, "write", "-s", "options", "--json"]
        for path in ("docs/page", "dir/x", "50%", "a%b", "new")
    ]
    return [["list", "--json"], *asked, *told]


def put_audit(archive: Path, root: Path) -> None:
    """Make a sandbox that has nothing but its record and its audit log."""
    folder = root / "state/sandboxes/golden"
    for part in ("upper", "work", "index"):
        (folder / "roots/0" / part).mkdir(parents=True, mode=0o700)
    (root / "workspace").mkdir()
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive.read_bytes()))) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            (folder / member.name).write_bytes(content.read())


def put_configs(configs: Path, root: Path) -> None:
    """Put configurations beside a workspace; `@root@` in them is the place of both."""
    build(root / "workspace", WORKSPACE)
    (root / "home").mkdir()
    for config in sorted(configs.iterdir()):
        (root / config.name).write_text(config.read_text().replace("@root@", str(root)))
    shutil.copy(root / "project.toml", root / "workspace/.sandboxfs.toml")


def about_configs(configs: Path) -> list[list[str]]:
    """What commands say of configurations."""
    asked: list[list[str]] = []
    for config in sorted(configs.iterdir()):
        file = f"@root@/{config.name}"
        asked.append(["config", "check", file, "--json"])
        if config.name != "project.toml":
            asked.append(["config", "show", "--workspace", "@root@/workspace", "--config", file, "--json"])
    return [*asked, ["config", "check", "@root@/workspace/.sandboxfs.toml", "--json"]]
