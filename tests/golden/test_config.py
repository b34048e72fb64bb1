"""Configurations as they were written for earlier versions: what they meant, which mistakes were found."""

import os
from pathlib import Path

import pytest

from tests.golden.checking import HERE, agree, load
from tests.golden.placing import put_configs

VERSIONS = sorted(HERE.glob("v*/config"))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.parent.name)
def test_a_configuration_means_what_it_meant(tmp_path: Path, version: Path) -> None:
    root = tmp_path / "golden"
    put_configs(version, root)
    agree(load(next(version.parent.glob("config.json*")))["steps"], root, os.environ)
