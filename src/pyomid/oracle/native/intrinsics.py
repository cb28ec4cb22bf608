"""What the machine offers and numba does not: a cache line before it is needed or all at once, memory in huge pages.

Vectors are LLVM's: one instruction where the processor has lanes that wide, several where not.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

_PARTS: Final = (0, 8, 16, 20)
"""Where the four vectors of 8 words begin that cover 28; the last two share four."""

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


_LANES_16: Final = ir.VectorType(ir.IntType(16), 32)
_LANES_64: Final = ir.VectorType(ir.IntType(64), 8)


def _line_of(context: Any, builder: Any, words_type: Any, words: Any, index: Any, kind: Any) -> Any:
    """The 64 bytes from `words[index]` on as one vector; numba's bounds are not asked."""
    array = context.make_array(words_type)(context, builder, words)
    address = builder.bitcast(builder.gep(array.data, [index]), kind.as_pointer())
    return builder.load(address, align=8)


def _match_lanes(typing_context: Any, words: Any, index: Any, lane: Any) -> Any:
    """Bit i of the result: the i-th 16 bits of the 64 bytes from `words[index]` on are `lane`'s low 16."""
    if not isinstance(words, types.Array):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = _line_of(context, builder, signature.args[0], arguments[0], arguments[1], _LANES_16)
        wanted = builder.trunc(arguments[2], ir.IntType(16))
        first = builder.insert_element(ir.Constant(_LANES_16, ir.Undefined), wanted, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 32), [0] * 32)
        pattern = builder.shuffle_vector(first, ir.Constant(_LANES_16, ir.Undefined), zeros)
        mask = builder.bitcast(builder.icmp_unsigned("==", line, pattern), ir.IntType(32))
        return builder.zext(mask, ir.IntType(64))

    return types.uint64(words, types.int64, types.uint64), generate


def _first_least(typing_context: Any, words: Any, index: Any) -> Any:
    """The place, 0 to 27, of the first of the least of the 28 words from `words[index]` on."""
    if not isinstance(words, types.Array):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        parts = [
            _line_of(
                context, builder, signature.args[0], arguments[0], builder.add(arguments[1], word(begin)), _LANES_64
            )
            for begin in _PARTS
        ]
        least = parts[0]
        for part in parts[1:]:
            least = builder.select(builder.icmp_unsigned("<", part, least), part, least)
        kind = ir.FunctionType(word, [_LANES_64])
        reduce = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.umin.v8i64")  # type: ignore[no-untyped-call]
        lowest = builder.call(reduce, [least])
        first = builder.insert_element(ir.Constant(_LANES_64, ir.Undefined), lowest, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
        pattern = builder.shuffle_vector(first, ir.Constant(_LANES_64, ir.Undefined), zeros)
        found = word(0)
        for begin, part in zip(_PARTS, parts, strict=True):
            mask = builder.zext(builder.bitcast(builder.icmp_unsigned("==", part, pattern), ir.IntType(8)), word)
            found = builder.or_(found, builder.shl(mask, word(begin)))
        return builder.cttz(found, ir.IntType(1)(1))

    return types.int64(words, types.int64), generate


def _trailing_zeros(typing_context: Any, value: Any) -> Any:
    """How many low bits of a word that is not 0 are 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


def _load_word(typing_context: Any, data: Any, index: Any) -> Any:
    """The 8 bytes from `data[index]` on, the first as the lowest; they must be there."""
    if not isinstance(data, types.Array):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        loaded = builder.load(address, align=1)
        return loaded if sys.byteorder == "little" else builder.bswap(loaded)

    return types.uint64(data, types.int64), generate


match_lanes: Any = intrinsic(_match_lanes)
first_least: Any = intrinsic(_first_least)
trailing_zeros: Any = intrinsic(_trailing_zeros)
load_word: Any = intrinsic(_load_word)


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

    Other threads may read and write them meanwhile. Releases the interpreter lock while it waits, page by page.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    begin, end = words.ctypes.data, words.ctypes.data + words.nbytes
    begin -= begin % mmap.PAGESIZE
    for at in range(begin, end, piece_bytes):
        if madvise(at, min(piece_bytes, end - at), _MADV_POPULATE_WRITE):
            return False
    return True
