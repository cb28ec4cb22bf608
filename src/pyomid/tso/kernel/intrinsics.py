"""What the machine offers and numba does not: a cache line before it is needed, memory in huge pages."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

_MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14 and later; older ones refuse it, and memory comes as it is touched."""


def _prefetch(typing_context: Any, words: Any, index: Any) -> Any:
    """Brings the cache line of `words[index]` nearer; does nothing else, whatever the index."""
    if not isinstance(words, types.Array) or not isinstance(index, types.Integer):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        pointer = builder.bitcast(address, ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(words, index), generate


prefetch_word: Any = intrinsic(_prefetch)


def aligned_words(count: int) -> NDArray[np.uint64]:
    """Zeroed words from the start of a page; the system gives memory as it is touched, in huge pages where it can.

    Without huge pages every access to a map of gigabytes also misses the page tables' cache, and each first touch of
    4 KiB is a fault of its own (measured: 88 µs a cell in a virtual machine until a map of 292 MB was filled).
    """
    memory = mmap.mmap(-1, max(count, 1) * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint64, count=count)


def populate(words: NDArray[np.uint64], *, piece_bytes: int = 32 << 20) -> bool:
    """Takes the memory behind `words` from the system now, changing nothing in it; False where it cannot.

    Safe beside anyone who reads and writes them. Gives up the interpreter lock while it waits, piece by piece.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    begin, end = words.ctypes.data, words.ctypes.data + words.nbytes
    begin -= begin % mmap.PAGESIZE
    for at in range(begin, end, piece_bytes):
        if madvise(at, min(piece_bytes, end - at), _MADV_POPULATE_WRITE):
            return False
    return True
