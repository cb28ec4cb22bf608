"""Where machine code is kept. A kernel is loaded from the first of these folders that has it, which this user need not
be able to write: an image may be read-only. It is kept in the first that can be written:

    PYOMID_CACHE            where it is set
    NUMBA_CACHE_DIR         where it is set
    __pycache__             beside the source
    ~/.cache/numba          the user's own, or where XDG_CACHE_HOME says

Nowhere: a process compiles what it cannot do without, and a warning says so once.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

CACHE_VARIABLE: Final = "PYOMID_CACHE"


def cache_folders(source: Path) -> Iterator[Path]:
    """Where the kernels in this file may lie, told without loading numba."""
    folder = os.path.dirname(os.path.abspath(source))
    name = f"{os.path.basename(folder)}_{hashlib.sha1(folder.encode()).hexdigest()}"
    for chosen in (CACHE_VARIABLE, "NUMBA_CACHE_DIR"):
        if os.environ.get(chosen):
            yield Path(os.environ[chosen]) / name
    yield Path(folder) / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "numba" / name


def cache_folder(source: Path) -> Path | None:
    """Where kernels that are compiled now are kept. None: nowhere."""
    return next(filter(_can_be_written, cache_folders(source)), None)


def kept_in(source: Path, name: str) -> Path | None:
    """The folder that has this kernel. None: it is not kept."""
    return next((folder for folder in cache_folders(source) if os.path.isfile(folder / f"{name}.nbi")), None)


def _can_be_written(folder: Path) -> bool:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def python_tag() -> str:
    """What numba puts into its files' names: another Python's code is none for this one."""
    return f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"


def keep_in(function: Callable[..., Any], folder: Path) -> None:
    """numba will look for this function's machine code in `folder`, and keep it there."""
    _teach_numba()
    function.pyomid_folder = os.fspath(folder)  # type: ignore[attr-defined]


@cache
def _teach_numba() -> None:
    """numba itself uses a folder only if it can write it, and takes what it finds by the time of the source file, which
    an image may change. The names of our files have all that the machine code is made of."""
    from numba.core import caching

    class KernelLocator(caching._CacheLocator):
        def __init__(self, function: Any) -> None:
            self._folder, self._line = function.pyomid_folder, function.__code__.co_firstlineno

        def get_cache_path(self) -> str:
            return str(self._folder)

        def get_source_stamp(self) -> str:
            return "pyomid"

        def get_disambiguator(self) -> str:
            return str(self._line)

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> KernelLocator | None:
            return cls(py_func) if hasattr(py_func, "pyomid_folder") else None

    caching.CacheImpl._locator_classes.insert(0, KernelLocator)  # type: ignore[arg-type]
