"""A kernel's parameters can be read: they are few, and what belongs together is a record or a group of named fields."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import pyomid
from pyomid.kernels import compiled
from pyomid.kernels.compile_packages import _packages

PARAMETERS_MAX = 8


@pytest.mark.fast
def test_no_kernel_has_more_than_eight_parameters() -> None:
    """Entries, and the kernels that they call; of every module that `compile_packages` compiles."""
    for modules in _packages().values():
        for module in modules:
            importlib.import_module(module)
    kernels = [each for each in compiled._kernels if each.name.startswith("pyomid.")]
    assert len(kernels) > 100, "all kernels were found"
    counts = {each.name: len(inspect.signature(each.plain).parameters) for each in kernels}
    assert {name: count for name, count in counts.items() if count > PARAMETERS_MAX} == {}


@pytest.mark.fast
def test_numba_compiles_nothing_but_registered_kernels() -> None:
    """The test above would not see it."""
    package = Path(pyomid.__file__).parent
    using = [path.name for path in package.rglob("*.py") if "njit" in path.read_text()]
    assert using == ["compiled.py"]
