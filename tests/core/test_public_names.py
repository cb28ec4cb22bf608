"""`dir`, completion and `help` show the public names of a package, loaded or not, and nothing else."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from types import ModuleType

import pytest

import pyomid
import pyomid.aio
import pyomid.spark

pytestmark = pytest.mark.fast

PACKAGES = [pyomid, pyomid.aio, pyomid.spark]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_dir_lists_public_names_and_submodules(package: ModuleType) -> None:
    listed = {name for name in dir(package) if not name.startswith("__")}
    submodules = {name for name in listed if f"{package.__name__}.{name}" in sys.modules}
    assert listed - submodules == {name for name in package.__all__ if not name.startswith("__")}
    assert "__doc__" in dir(package)
    for name in dir(package):
        getattr(package, name)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_help_describes_the_classes_that_are_loaded_late(package: ModuleType) -> None:
    text = pydoc.plain(pydoc.render_doc(package))
    classes = [name for name in package.__all__ if isinstance(getattr(package, name), type)]
    assert "Database" in {name.removeprefix("Async").removeprefix("Spark") for name in classes}
    for name in classes:
        assert f"    class {name}(" in text


def test_dir_loads_nothing() -> None:
    program = "import sys, pyomid, pyomid.aio; dir(pyomid), dir(pyomid.aio); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_a_mistyped_name_is_refused_with_the_nearest() -> None:
    program = "import pyomid; pyomid.Databse"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == "AttributeError: module 'pyomid' has no attribute 'Databse'. Did you mean: 'Database'?"
