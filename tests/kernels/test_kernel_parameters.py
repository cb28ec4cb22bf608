"""A kernel's parameters can be read: they are few, and what belongs together is a struct or a tuple."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pyomid

PACKAGE = Path(pyomid.__file__).parent
PARAMETERS_MAX = 8
FUNCTION = re.compile(r"^ *(?:cdef|cpdef|def) (?!class|struct|enum|extern)[^\n(=]*?(\w+)\(([^)]*)\)", re.MULTILINE)


@pytest.mark.fast
def test_no_kernel_has_more_than_eight_parameters() -> None:
    """Functions that Python calls, and those that they call."""
    counts = {
        f"{path.name}: {name}": sum(
            bool(each.strip()) for each in re.sub(r"\[.*?\]", "", parameters).split(",") if each.strip() != "self"
        )
        for path in (*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd"))
        for name, parameters in FUNCTION.findall(path.read_text(encoding="utf-8"))
    }
    assert len(counts) > 100, "all kernels were found"
    assert {name: count for name, count in counts.items() if count > PARAMETERS_MAX} == {}


@pytest.mark.fast
def test_records_have_the_same_fields_in_python_and_in_compiled_code() -> None:
    """In the same order: both see the same memory."""

    from pyomid.omid.oracle import records
    from pyomid.omid.oracle.native import memory

    text = (PACKAGE / "omid" / "oracle" / "native" / "memory.pxd").read_text(encoding="utf-8")
    structs = dict(re.findall(r"^cdef struct (\w+):\n((?:    .*\n)+)", text, re.MULTILINE))
    assert len(structs) == 5
    for name, body in structs.items():
        fields = re.findall(r"int64_t (\w+)", body)
        assert fields == list((getattr(memory, name, None) or getattr(records, name)).__annotations__), name
