"""`pyomid status URL`: the state of a database, as text or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pyomid.protocol.hashing import table_id
from pyomid.types import TABLE_CONFLICTS, Status, TableInfo

if TYPE_CHECKING:
    from pyomid.client.database import Database, DatabaseStatus

CLUSTER_URL_HELP: Final = "omid+hbase://zk1:2181,zk2:2181/znode"
URL_HELP: Final = f"omid:///folder or {CLUSTER_URL_HELP}"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "status",
        help="show tables, watermarks, leases and commit table of a database",
        description="Connects to a database and shows its state. Starts the TSO of a folder if none runs.",
    )
    parser.add_argument("url", help=URL_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with open_existing(arguments.url) as database:
        status = database.status()
    print(json.dumps(as_json(status), indent=2) if arguments.json else "\n".join(as_lines(status)))
    return 0


def add_tables(parser: argparse.ArgumentParser, text: str = "only this table; repeatable") -> None:
    parser.add_argument("--table", action="append", dest="tables", metavar="NAME", help=text)


def open_existing(url: str) -> Database:
    """Return the database at `url`; raise the client's error if there is none."""
    import pyomid
    from pyomid.wiring import is_made

    return pyomid.connect(url) if is_made(url) else pyomid.connect(url, create=False)


def as_json(status: DatabaseStatus) -> dict[str, Any]:
    """Return the status as JSON values, under the names in the text output."""
    return {
        "tso": asdict(status.tso),
        "commit_table_entries": status.commit_table_entries,
        "tables": [
            {
                "name": table.name,
                "families": [family.decode() for family in table.families],
                "conflict_level": table.conflict_level.value,
                "generation": table.generation,
                "columns": _schema_text(table),
            }
            for table in status.tables
        ],
        "unregistered": {str(number): name for number, name in status.unregistered.items()},
        "tables_unconfirmed": status.tables_unconfirmed,
    }


def as_lines(status: DatabaseStatus) -> Iterator[str]:
    """Yield lines of text: each figure with its meaning."""
    tso = status.tso
    yield f"epoch            {tso.epoch:>20}   timestamps at or below it come from earlier TSOs"
    yield f"last timestamp   {tso.last_ts:>20}"
    yield f"LWM              {tso.low_watermark:>20}   no transaction at or below it can commit"
    yield f"W                {tso.watermark:>20}   compaction may delete versions that only older snapshots need"
    if tso.held_back_by:
        yield f"held back by     {tso.held_back_by}"
    if tso.retention_s:
        yield f"retention        {tso.retention_s:>20g}   seconds for which history is kept; W stays below it"
    yield f"H                {tso.horizon:>20}   the commit table is sanitized below it"
    yield f"in flight        {tso.in_flight:>20}   commits being made durable"
    yield f"commit table     {status.commit_table_entries:>20}   entries not yet completed or sanitized"
    yield f"leases           {len(tso.leases):>20}   {_some(tso.leases)}"
    yield f"pending          {len(tso.pending):>20}   {_some(tso.pending)}"
    for name, count in sorted(tso.counters.items()):
        if not name.startswith(TABLE_CONFLICTS):
            yield f"{name:<16} {count:>20}"
    for name, count in conflicts_by_table(tso, status.tables).items():
        yield f"conflicts        {count:>20}   of transactions that wrote or claimed {name}"
    yield f"tables           {len(status.tables):>20}"
    yield from table_lines(status.tables)
    if status.unregistered or status.tables_unconfirmed:
        yield f"unregistered     {len(status.unregistered):>20}   sanitizing is refused until they are registered"
    for number, name in status.unregistered.items():
        yield f"  id {number}   {name or 'no table has this id; it may have been dropped'}"
    if status.tables_unconfirmed:
        yield "  a Java TSO led: `pyomid tables URL discover`, register what it lists, `pyomid tables URL confirm`"


def conflicts_by_table(tso: Status, tables: Iterable[TableInfo]) -> dict[str, int]:
    """Return conflicts by table name, most first; a dropped table appears by its id."""
    names = {table_id(table.name.encode()): table.name for table in tables}
    found = sorted(tso.conflicts_by_table.items(), key=lambda each: -each[1])
    return {names.get(number, f"id {number}"): count for number, count in found}


def table_lines(tables: Sequence[TableInfo]) -> Iterator[str]:
    for table in tables:
        families = ", ".join(family.decode("utf-8", "backslashreplace") for family in table.families)
        level = " changing to ".join(each.value for each in table.id_levels)
        yield f"  {table.name}   families {families}   conflict level {level}{_ttl(table)}{_columns(table)}"


def _ttl(table: TableInfo) -> str:
    return f"   values expire after {table.ttl_seconds:g} s" if table.ttl_seconds else ""


def _columns(table: TableInfo) -> str:
    text = _schema_text(table)
    return f"   columns {', '.join(text)}" if text else ""


def _schema_text(table: TableInfo) -> list[str]:
    if table.schema is None:
        return []
    return [f"{column.name} {column.spark_type}" for column in table.schema.columns]


_SHOWN_MAX = 5


def _some(starts: Sequence[int]) -> str:
    shown = " ".join(str(start) for start in starts[:_SHOWN_MAX])
    return f"{shown} …" if len(starts) > _SHOWN_MAX else shown
