import numpy as np
from numpy.typing import NDArray

def first_common(one: NDArray[np.int64], other: NDArray[np.int64]) -> int | None: ...
