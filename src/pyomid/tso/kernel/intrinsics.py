"""What the processor offers and numba does not: asking for a cache line before it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


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


def aligned_words(count: int, alignment_bytes: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Zeroed words whose first lies at a multiple of `alignment_bytes`; the system gives pages as they are touched."""
    spare = alignment_bytes // 8
    owner = np.zeros(count + spare, dtype=np.uint64)
    first = (-owner.ctypes.data % alignment_bytes) // 8
    return owner[first : first + count]
