"""Each picture of docs/pictures is what its script draws: the packages from the import contracts, the concepts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SCRIPTS = sorted(FOLDER.glob("*.py"))


def drawn_by(script: Path) -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pictures: dict[Path, str] = module.pictures()
    return pictures


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_the_pictures_of_a_script_are_up_to_date(script: Path) -> None:
    for path, content in drawn_by(script).items():
        assert path.read_text() == content, f"run docs/pictures/{script.name}"


def test_every_picture_has_a_script() -> None:
    assert {path for script in SCRIPTS for path in drawn_by(script)} == set(FOLDER.glob("*.svg"))
