"""docs/limits.md has the figures of the code, and names options that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pyomid.cli import tso
from pyomid.config import DURATION_S_MAX, CommonSettings, option_name
from pyomid.database import validation
from pyomid.database.idempotency import RESULT_BYTES_MAX, RUN_ID_BYTES_MAX
from pyomid.folder import environment, records, session, shared_file, tables
from pyomid.omid.hbase import store
from pyomid.omid.oracle.leases import TERM_S_MAX
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.wire.messages import TABLE_IDS_MAX
from pyomid.protocol.wall_clock import JUMP_NS_MAX
from pyomid.rows.column_types import DECIMAL_DIGITS_MAX
from pyomid.types import StoreLimits

pytestmark = pytest.mark.fast

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
ROWS = {
    line[0]: line[1:]
    for line in ([cell.strip() for cell in row.strip("|").split("|")] for row in PAGE.splitlines() if row[:1] == "|")
    if len(line) == 4
}
DEFAULTS = CommonSettings()
BY_HAND = tso.BY_HAND
TSO = TsoSettings()
CONNECTIONS = next(option.default for option in tso.OPTIONS if option.name == "connections")
IDS = int(BY_HAND.conflict_map_entries * TSO.write_set_fraction_max)


def spaced(number: float) -> str:
    """A number as the page writes it: a space after each three digits of five or more."""
    whole = int(number)
    assert whole == number
    return f"{whole:_}".replace("_", " ") if whole > 9999 else str(whole)


def both(number: float, unit: str) -> tuple[str, str]:
    return f"{spaced(number)} {unit}".strip(), f"{spaced(number)} {unit}".strip()


FIGURES = {
    "row key": (f"{records.LIMITS.row_bytes_max} bytes", f"{spaced(store.LIMITS.row_bytes_max)} bytes"),
    "qualifier": (f"{spaced(records.LIMITS.qualifier_bytes_max)} ", f"{spaced(store.LIMITS.qualifier_bytes_max)} "),
    "value": tuple(f"{spaced(each.value_bytes_max / 1024)} KiB" for each in (records.LIMITS, store.LIMITS)),
    "table name": both(validation._TABLE_NAME_MAX, "characters"),
    "columns of a table": (spaced(tables.COLUMNS_MAX), ""),
    "digits of a decimal": both(DECIMAL_DIGITS_MAX, ""),
    "rows and bytes of a transaction": (f"beyond {session.PACKED_BYTES_MAX >> 10} KiB", ""),
    "write buffer of a transaction": both(DEFAULTS.flush_bytes / (1 << 20), "MiB"),
    "conflict ids of all open Spark jobs together": ("", spaced(BY_HAND.reported_ids_max)),
    "tables of a commit": ("", spaced(TABLE_IDS_MAX)),
    "age of a transaction without a lease": both(DEFAULTS.max_transaction_age_seconds, "s"),
    "term of a lease": (f"{spaced(DEFAULTS.lease_seconds)} s", f"{spaced(TERM_S_MAX)} s at most"),
    "leases at once": ("", spaced(TSO.leases_max)),
    "retention of history": both(DURATION_S_MAX / 365 / 86_400, "years"),
    "time to live of values": both(validation.TTL_SECONDS_MAX, "s"),
    "run id of `run_once`": both(RUN_ID_BYTES_MAX, "bytes"),
    "stored result of `run_once`": both(RESULT_BYTES_MAX / 1024, "KiB"),
    "storage time of a result of `run_once`": both(DEFAULTS.run_id_days, "days"),
    "reruns after conflicts": both(DEFAULTS.retries, ""),
    "processes with the database open": (f"{shared_file.PLACES}; the first {shared_file.AREAS} ", ""),
    "connections to the TSO": ("", spaced(CONNECTIONS)),
    "concurrent reads": (spaced(environment.READERS_MAX), ""),
    "wait for other writers or for the TSO": (
        f"{spaced(environment.WRITER_WAIT_S)} s",
        f"{spaced(DEFAULTS.commit_retry_seconds)} s",
    ),
    "size of the data": (f"{spaced(DEFAULTS.map_size_gib)} GiB", ""),
    "longest clock jump that timestamps follow": both(JUMP_NS_MAX / 86_400e9, "day"),
}
FIGURES[next(what for what in ROWS if what.startswith("conflict ids of a commit"))] = ("", spaced(IDS))


@pytest.mark.parametrize("what", FIGURES)
def test_a_figure_is_that_of_the_code(what: str) -> None:
    for figure, cell in zip(FIGURES[what], ROWS[what][:2], strict=True):
        assert figure in cell


def test_every_row_with_a_figure_is_checked() -> None:
    unchecked = {what for what, cells in ROWS.items() if re.search(r"\d", "".join(cells[:2]))} - FIGURES.keys()
    assert unchecked == set()
    assert len(ROWS) > len(FIGURES)


def test_every_limit_of_a_store_has_a_row() -> None:
    for field in fields(StoreLimits):
        if field.type == "int":
            assert field.name.removesuffix("_bytes_max").replace("row", "row key") in ROWS


def test_every_option_that_changes_a_limit_exists() -> None:
    named = re.findall(r"`([a-z]+(?:[A-Z][a-z]+)+)`", " ".join(cells[2] for cells in ROWS.values()))
    assert len(named) > 8
    for name in named:
        option_name(name)
