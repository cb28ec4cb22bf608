"""Every array that a kernel is given lies between two pages that nobody may touch: one byte too far ends the process.

`install()` does this to all kernels of the process: each argument is copied flush against the page behind it, or
against the page before it, call by call in turn, and back when the kernel has returned. As a pytest plugin
(`-p guarded`) it does the same to existing tests. What a kernel allocates itself is watched by NUMBA_BOUNDSCHECK=1.
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import mmap
from typing import Any

import numpy as np

from pyomid.kernels.compiled import Kernel

PAGE = mmap.PAGESIZE
REGION_BYTES = 1 << 20
"""Longer arrays (maps, indexes) stay where they are."""
UNGUARDED = ("pyomid.server.native.sockets.",)
"""They work on addresses."""

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
_calls = itertools.count()


def region(size: int = REGION_BYTES) -> Region:
    _regions.append(Region(size))
    return _regions[-1]


def install() -> None:
    faulthandler.enable()
    slots: list[Region] = []
    plain_call = Kernel.__call__

    def guarded_call(self: Kernel[Any, Any], *args: Any) -> Any:
        if self.name.startswith(UNGUARDED):
            return plain_call(self, *args)
        at_end = next(_calls) % 2 == 0
        copies: list[tuple[np.ndarray, np.ndarray]] = []
        places = itertools.count()

        def guarded(argument: Any) -> Any:
            if type(argument) is tuple:
                return tuple(map(guarded, argument))
            number = next(places)
            if not isinstance(argument, np.ndarray) or argument.nbytes > REGION_BYTES or not _may_move(argument):
                return argument
            while len(slots) <= number:
                slots.append(Region())
            copy = slots[number].copy(argument, at_end=at_end)
            if argument.flags.writeable:
                copies.append((argument, copy))
            return copy

        given = [guarded(argument) for argument in args]
        returned = plain_call(self, *given)
        for argument, copy in copies:
            argument[...] = copy
        return returned

    Kernel.__call__ = guarded_call  # type: ignore[method-assign]


def _may_move(array: np.ndarray) -> bool:
    return array.flags.c_contiguous and not any(each.holds(array) for each in _regions)


def pytest_configure() -> None:
    install()
