"""Does pip work in the view: a virtual environment, a wheel built on the spot, an installation?"""

import os
import sys

from tests.support.mounted import run
from tests.support.tree import Tree
from tests.workloads.conftest import Mount

# Builds a wheel with nothing but the standard library, so that no build tool has to be fetched.
BACKEND = """
import base64, hashlib, pathlib, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    info = "tiny-1.0.dist-info"
    files = {path.as_posix(): path.read_bytes() for path in sorted(pathlib.Path("tiny").rglob("*.py"))}
    files[f"{info}/METADATA"] = b"Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n"
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\\ntiny = tiny:main\\n"
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\\n").encode()
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(directory) / name, "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name
"""

PROJECT: Tree = {
    "project/pyproject.toml": "[build-system]\nrequires = []\n"
    "build-backend = 'backend'\nbackend-path = ['.']\n",
    "project/backend.py": BACKEND,
    "project/tiny/__init__.py": "def main():\n    print('tiny runs')\n",
    **{f"project/tiny/part{number}.py": f"value = {number}\n" for number in range(40)},
}


def test_a_wheel_is_built_installed_run_and_removed_in_an_environment_in_the_view(mount: Mount) -> None:
    sandbox = mount(PROJECT)
    where = sandbox.root
    run(sys.executable, "-m", "venv", "env", cwd=where)

    def pip(*arguments: str) -> str:
        offline = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""}
        return run(where / "env/bin/python", "-m", "pip", *arguments, cwd=where, env=offline)

    pip("wheel", "-q", "--no-deps", "-w", "wheels", "./project")
    wheel = where / "wheels/tiny-1.0-py3-none-any.whl"
    assert wheel.exists()
    pip("install", "-q", str(wheel))
    assert run(where / "env/bin/tiny", cwd=where) == "tiny runs\n"
    assert pip("check") == "No broken requirements found.\n"
    sandbox.remount()
    assert run(where / "env/bin/tiny", cwd=where) == "tiny runs\n"
    pip("uninstall", "-q", "-y", "tiny")
    assert not (where / "env/bin/tiny").exists()
    assert os.listdir(sandbox.lower) == ["project"]
