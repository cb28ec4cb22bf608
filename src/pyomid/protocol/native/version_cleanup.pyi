from typing import Any

import numpy as np
from numpy.typing import NDArray

def dropped_cells(
    arrays: tuple[NDArray[Any], ...],
    family: NDArray[np.int32],
    family_column: NDArray[np.bool_],
    orphans: NDArray[np.int64],
    expired_to: int,
    watermark: int,
) -> NDArray[np.bool_]: ...
