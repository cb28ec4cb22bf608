"""`python -m pyomid.compile_kernels`: every kernel compiled now and kept on disk, with a line of progress each."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time

import pyomid
from pyomid.compiled import compile_all
from pyomid.errors import Misuse


def main() -> None:
    """Imports every module that defines kernels (their names end in `kernel` or lie in a `kernel(s)` package); those of
    an extra that is not installed are left out."""
    for module in pkgutil.walk_packages(pyomid.__path__, "pyomid.", onerror=_leave_out):
        name = module.name
        if ".kernel" in name or name.endswith(("_kernel", "_kernels", "_batch")):
            importlib.import_module(name)
    began_s = time.monotonic()
    for count, kernel in enumerate(compile_all(), 1):
        print(f"compiled {count:3d} {kernel} ({time.monotonic() - began_s:.1f} s)", flush=True)


def _leave_out(package: str) -> None:
    """Its import failed: it needs an extra that is not installed. One that is broken is not passed over."""
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, ImportError | Misuse):
        raise error
    print(f"left out {package}: {error}", flush=True)


if __name__ == "__main__":
    main()
