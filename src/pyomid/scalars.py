"""numpy's scalars among the values that callers give."""

from __future__ import annotations

import sys
from typing import Any


def python_scalar(value: Any) -> Any:
    """Return the plain Python value of a numpy scalar, whichever module imported numpy; return every other value,
    numpy's dates and times included, as it is."""
    numpy = sys.modules.get("numpy")
    is_scalar = numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind not in "mM"
    return value.item() if is_scalar else value
