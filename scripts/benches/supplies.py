"""What do the tools install and unpack? Archives made here, so that no network is needed.

They lie beside the trees and are read by the tools from there, never through a view: what is measured is the
writing.
"""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from scripts.benches.trees import Sizes


def make_supplies(place: Path, project: Path, sizes: Sizes, environment: Mapping[str, str]) -> None:
    """`tree.tar`, `repository.git`, `wheels/` and `packages/`."""
    place.mkdir()
    with tarfile.open(place / "tree.tar", "w") as archive:
        archive.add(project, "tree", filter=_without_git)
    clone = ["git", "clone", "--quiet", "--bare", str(project), str(place / "repository.git")]
    subprocess.run(clone, env=dict(environment), check=True)
    (place / "wheels").mkdir()
    (place / "packages").mkdir()
    for number in range(sizes.packages):
        make_wheel(place / "wheels", f"wheel{number}", parts=30)
        make_package(place / "packages", f"package{number}", parts=50)


def make_wheel(place: Path, name: str, *, parts: int) -> None:
    """A wheel of pure Python, as PEP 427 has it."""
    info = f"{name}-1.0.dist-info"
    files = {f"{name}/__init__.py": f'"""{name}."""\n'.encode()}
    for number in range(parts):
        text = f'"""Part {number}."""\n\n\ndef f(a):\n    return a + {number}\n' + f"# line {number}\n" * 40
        files[f"{name}/part{number}.py"] = text.encode()
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(place / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(zipfile.ZipInfo(path), data)


def make_package(place: Path, name: str, *, parts: int) -> None:
    """A tarball as `npm pack` makes it."""
    described = {"name": name, "version": "1.0.0", "main": "index.js"}
    files = {"package.json": json.dumps(described), "index.js": f"module.exports = '{name}';\n"}
    for number in range(parts):
        files[f"lib/d{number % 5}/part{number}.js"] = f"module.exports = {number};\n" * 20
    with tarfile.open(place / f"{name}-1.0.0.tgz", "w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))


def described_application(packages: Path) -> str:
    """A `package.json` that asks for every package there is."""
    needs = {path.name.removesuffix("-1.0.0.tgz"): f"file:{path}" for path in sorted(packages.iterdir())}
    return json.dumps({"name": "application", "version": "1.0.0", "private": True, "dependencies": needs})


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _without_git(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "/.git/" in f"{member.name}/" else member
