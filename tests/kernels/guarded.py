"""Every array that a kernel is given lies between two pages that nobody may touch: one byte too far ends the process.

`install()` does this to all kernels of the process: each argument is copied flush against the page behind it, or
against the page before it, call by call in turn, and back when the kernel has returned. As a pytest plugin
(`-p guarded`) it does the same to existing tests. AddressSanitizer watches what a kernel allocates
itself, and what a class of compiled code holds.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import itertools
import mmap
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import pyomid

PAGE = mmap.PAGESIZE
REGION_BYTES = 1 << 20
"""Longer arrays (maps, indexes) stay where they are."""

_PROT_NONE = 0


class Region:
    """Memory between two pages that nobody may touch."""

    def __init__(self, size: int = REGION_BYTES) -> None:
        self.size = -(-size // PAGE) * PAGE
        self._map = mmap.mmap(-1, self.size + 2 * PAGE)
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (self._first, self._first + PAGE + self.size):
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")

    def holds(self, array: np.ndarray) -> bool:
        return self._first <= array.ctypes.data <= self._first + self.size + 2 * PAGE

    def array(self, count: int, dtype: Any = np.uint8, *, at_end: bool = True) -> np.ndarray:
        used = count * np.dtype(dtype).itemsize
        assert used <= self.size
        return np.frombuffer(self._map, dtype, count, PAGE + (self.size - used if at_end else 0))

    def copy(self, array: np.ndarray, *, at_end: bool) -> np.ndarray:
        placed = self.array(array.size, array.dtype, at_end=at_end).reshape(array.shape)
        placed[...] = array
        return placed


_regions: list[Region] = []
_slots: list[Region] = []
_calls = itertools.count()


def region(size: int = REGION_BYTES) -> Region:
    _regions.append(Region(size))
    return _regions[-1]


def install() -> None:
    """Before the modules that import kernels by their names."""
    faulthandler.enable()
    for module in compiled_modules():
        for name, function in vars(module).items():
            if type(function).__name__ == "cython_function_or_method" and not name.startswith("_"):
                setattr(module, name, _guard(function))


def compiled_modules() -> Iterator[ModuleType]:
    source = Path(pyomid.__file__).parent
    for path in sorted(source.rglob("*.pyx")):
        yield importlib.import_module(".".join(("pyomid", *path.relative_to(source).with_suffix("").parts)))


def _guard(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*args: Any) -> Any:
        return _guarded(function, args)

    return guarded


def _guarded(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    at_end = next(_calls) % 2 == 0
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    places = itertools.count()

    def guarded(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(guarded, argument))
        number = next(places)
        if not isinstance(argument, np.ndarray) or argument.nbytes > REGION_BYTES or not _may_move(argument):
            return argument
        while len(_slots) <= number:
            _slots.append(Region())
        copy = _slots[number].copy(argument, at_end=at_end)
        if argument.flags.writeable:
            copies.append((argument, copy))
        return copy

    returned = call(*map(guarded, args))
    for argument, copy in copies:
        argument[...] = copy
    return returned


def _may_move(array: np.ndarray) -> bool:
    return array.flags.c_contiguous and not any(each.holds(array) for each in _regions)


def pytest_configure() -> None:
    install()
