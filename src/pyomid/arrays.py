"""numpy as `np`, or where it is not installed what this package needs of it (`plain_arrays`).

Modules of the light installation take `np` and `NDArray` from here; those that only run compiled, or over HBase or
Spark, import numpy. `PYOMID_PLAIN_ARRAYS=1` takes the stand-in where numpy is there too: for tests.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    try:
        if os.environ.get("PYOMID_PLAIN_ARRAYS"):
            raise ImportError
        import numpy as np
        from numpy.typing import NDArray
    except ImportError:
        from pyomid import plain_arrays as np
        from pyomid.plain_arrays import NDArray

__all__ = ["NDArray", "is_numpy", "np", "words_of"]


def is_numpy() -> bool:
    return np.__name__ == "numpy"


def words_of(mapped: mmap.mmap) -> NDArray[np.int64]:
    """The 64-bit words of a mapped file. With numpy as writable ones, for which kernels are compiled, even where the
    mapping can only be read."""
    if not is_numpy():
        return np.frombuffer(mapped, dtype=np.int64)
    words = ctypes.c_int64 * (len(mapped) // 8)
    data: Any = np.frombuffer(mapped, dtype=np.uint8)
    return np.ctypeslib.as_array(words.from_address(data.ctypes.data))
