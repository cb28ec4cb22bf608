"""`python -m pyomid.compile_kernels`: every kernel compiled now and kept on disk, with a line of progress each."""

from __future__ import annotations

import importlib
import pkgutil
import time

import pyomid
from pyomid.compiled import compile_all


def main() -> None:
    """Imports every module that defines kernels (their names end in `kernel` or lie in a `kernel(s)` package)."""
    for module in pkgutil.walk_packages(pyomid.__path__, "pyomid."):
        name = module.name
        if ".kernel" in name or name.endswith(("_kernel", "_kernels", "_batch")):
            importlib.import_module(name)
    began_s = time.monotonic()
    for count, kernel in enumerate(compile_all(), 1):
        print(f"compiled {count:3d} {kernel} ({time.monotonic() - began_s:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
