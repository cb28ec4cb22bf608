"""docs/types.md lists every type of the code, with its Python, Spark and Arrow type and its stored width."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import types as spark_types

from pyomid.rows import nested
from pyomid.rows.column_types import KNOWN_TYPES, PYTHON_TYPES, Layout, arrow_type, column_type

pytestmark = pytest.mark.fast

PAGE = (Path(__file__).parents[2] / "docs" / "types.md").read_text(encoding="utf-8")
ROWS = {
    line[0].strip("`"): line[1:]
    for line in ([cell.strip() for cell in row.strip("|").split("|")] for row in PAGE.splitlines() if row[:3] == "| `")
    if len(line) == 6
}
ARRAY = {"type": "array", "elementType": "long", "containsNull": True}
MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
STRUCT = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
SAMPLES = {"decimal(p,s)": "decimal(10,2)", "array": json.dumps(ARRAY), "map": json.dumps(MAP)}
SAMPLES["struct"] = json.dumps(STRUCT)


def test_the_table_has_every_type() -> None:
    assert sorted(ROWS) == sorted(KNOWN_TYPES)


@pytest.mark.parametrize("name", KNOWN_TYPES)
def test_a_type_is_what_the_table_says(name: str) -> None:
    python, spark, arrow, stored, in_key = ROWS[name]
    kind = column_type(SAMPLES.get(name, name))
    is_nested = kind.layout is Layout.JSON
    written = json.loads(kind.name) if is_nested else kind.name
    assert spark == f"`{type(spark_types._parse_datatype_json_value(written)).__name__}`"
    assert arrow == f"`{re.split('[<(]', str(arrow_type(kind.name)))[0]}`"
    defaults = [each.__name__ for each, of_python in PYTHON_TYPES.items() if of_python == name]  # type: ignore[attr-defined]
    assert ("by default" in python) == bool(defaults)
    assert all(python.startswith(f"`{each}`") for each in defaults)
    if kind.width:
        unit = "byte" if kind.width == 1 else "bytes"
        assert stored.startswith(f"{kind.width} {unit}")
        assert in_key == f"{kind.key_width} {unit}"
    assert (stored == "JSON, UTF-8") == is_nested == (in_key == "not possible")


def test_a_decimal_in_a_row_key_has_the_bytes_that_the_table_says() -> None:
    widths = [column_type(f"decimal({precision},0)").key_width for precision in (1, 38)]
    assert ROWS["decimal(p,s)"][4].startswith(f"{widths[0]} to {widths[1]} bytes")


def test_every_json_form_has_a_row() -> None:
    inside = PAGE.split("## Nested values")[1]
    for family in nested.STORED:
        assert re.search(rf"^\| .*\b{family.removesuffix('_ntz')}\b", inside, re.MULTILINE)
