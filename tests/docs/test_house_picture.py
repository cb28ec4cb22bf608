"""The picture of the packages is the one that the import contracts draw."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "house.py"


def test_the_picture_of_the_house_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    assert house.PICTURE.read_text() == house.picture(), "run docs/pictures/house.py"
