"""Former place of `pyomid.row_codec`, kept for one release: the same modules under their former names."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

MODULES: Final = ("column_types", "nested", "values", "row_key", "fixed_width", "encode", "decode")

for _name in MODULES:
    sys.modules[f"{__name__}.{_name}"] = import_module(f"pyomid.row_codec.{_name}")
