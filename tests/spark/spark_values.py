"""Python values of every Spark type that a row key may have."""

from __future__ import annotations

from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "decimal(10,2)": st.decimals(min_value=-(10**7), max_value=10**7, places=2),
    "decimal(38,0)": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    "string": st.text(alphabet="a\x00b\x01\xff", max_size=5),
    "binary": st.binary(max_size=5),
    "date": st.dates(),
    "timestamp": st.datetimes().map(lambda moment: moment.replace(tzinfo=UTC)),
    "timestamp_ntz": st.datetimes(),
    "interval day to second": st.timedeltas(timedelta(days=-1000), timedelta(days=1000)),
}
