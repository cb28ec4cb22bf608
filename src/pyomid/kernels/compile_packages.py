"""`python -m pyomid.kernels.compile_packages`: compiles every kernel now, keeps it on disk, and prints each."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import pyomid
from pyomid.errors import Misuse
from pyomid.kernels.cache import cache_folder
from pyomid.kernels.compiled import compile_all, kernels_of
from pyomid.kernels.loading import NO_FOLDER
from pyomid.platforms import IS_LINUX


def main(wanted: Sequence[str] = ()) -> None:
    """The kernels of each package in a process of its own, as many at once as there are processors for us. `wanted`:
    of these packages only."""
    began_s = time.monotonic()
    packages = {name: modules for name, modules in _packages().items() if not wanted or name in wanted}
    with ProcessPoolExecutor(min(len(packages), _processors()), mp_context=get_context("spawn")) as pool:
        ended = as_completed([pool.submit(_compile, *each, began_s) for each in packages.items()])
        count = sum(each.result() for each in ended)
    print(f"{count} kernels are compiled ({time.monotonic() - began_s:.1f} s)", flush=True)


def _packages() -> dict[str, list[str]]:
    """The modules that define kernels (their names begin with `native`, lie in a `native` package, or end in
    `_kernels`), those of most modules first; those of an extra that is not installed are left out."""
    packages: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(pyomid.__path__, "pyomid.", onerror=_leave_out):
        name = module.name
        if name.startswith("pyomid.server.native") and not IS_LINUX:
            continue  # epoll
        if ".native" in name or name.endswith("_kernels"):
            packages.setdefault(name.rpartition(".")[0], []).append(name)
    return dict(sorted(packages.items(), key=lambda each: len(each[1]), reverse=True))


def _compile(package: str, modules: list[str], began_s: float) -> int:
    """How many kernels the package has; those of others that they call are compiled with them."""
    for module in modules:
        importlib.import_module(module)
    if any(not each.is_kept and cache_folder(each.source) is None for each in kernels_of(package)):
        raise Misuse(NO_FOLDER)
    count = 0
    for kernel in compile_all(package):
        count += 1
        print(f"compiled {kernel} ({time.monotonic() - began_s:.1f} s)", flush=True)
    return count


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _leave_out(package: str) -> None:
    """Its import failed: it needs an extra that is not installed. One that is broken is not passed over."""
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, ImportError | Misuse):
        raise error
    print(f"left out {package}: {error}", flush=True)


if __name__ == "__main__":
    if "--beside" in sys.argv:
        os.nice(10)
    main([each for each in sys.argv[1:] if not each.startswith("-")])
