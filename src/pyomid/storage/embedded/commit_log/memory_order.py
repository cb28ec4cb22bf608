"""Words that processes share, seen by each in the order in which another one wrote them.

    writer   store_release: who sees the word sees all that was written before it
    reader   load_acquire: nothing that follows is read before it

On x86-64 every load and store is such a one, so Python's own will do there, and what follows compiles to the same
instructions. Elsewhere (ARM, POWER, RISC-V) only compiled code can say it, and `fence` stands between Python's loads
and stores where a few words are enough.
"""

from __future__ import annotations

import platform
from typing import Any, Final

from pyomid.kernels.compiled import Instruction, kernel

IS_STRONG: Final = platform.machine().lower() in ("x86_64", "amd64")
"""Whether this processor does it unasked."""

_WORD_BYTES: Final = 8


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


def _load_acquire() -> Any:
    from numba import types
    from numba.extending import intrinsic

    def load(typing_context: Any, words: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load_atomic(_address(context, builder, signature, arguments), "acquire", _WORD_BYTES)

        return types.int64(words, types.int64), generate

    return intrinsic(load)


def _store_release() -> Any:
    from numba import types
    from numba.extending import intrinsic

    def store(typing_context: Any, words: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = _address(context, builder, signature, arguments)
            builder.store_atomic(arguments[2], address, "release", _WORD_BYTES)
            return context.get_dummy_value()

        return types.void(words, types.int64, types.int64), generate

    return intrinsic(store)


def _full_fence() -> Any:
    from numba import types
    from numba.extending import intrinsic

    def fence(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), generate

    return intrinsic(fence)


load_acquire: Final = Instruction(lambda words, index: words[index], _load_acquire)


def _stored(words: Any, index: int, value: int) -> None:
    words[index] = value


store_release: Final = Instruction(_stored, _store_release)
full_fence: Final = Instruction(lambda: None, _full_fence)


@kernel("void()", nogil=False, _nrt=False)
def compiled_fence() -> None:
    full_fence()


def fence() -> None:
    """All loads and stores before it come before all after it."""
    if not IS_STRONG:
        compiled_fence()
