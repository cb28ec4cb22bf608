"""`pyomid status URL`: the state of a database, as text or JSON; `pyomid top URL`: a live page of its activity."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyomid.config import EmbeddedAddress, parse_url
from pyomid.protocol.hashing import table_id
from pyomid.protocol.timestamps import NS_PER_S, clock_trouble, dated, is_time, iso
from pyomid.types import TABLE_CONFLICTS, UNCHECKED, Status, TableInfo

if TYPE_CHECKING:
    from pyomid.database.database import Database, DatabaseStatus
    from pyomid.types import Status, TableInfo


CLUSTER_URL_HELP: Final = "omid+hbase://zk1:2181,zk2:2181/znode"
URL_HELP: Final = f"omid:///folder or {CLUSTER_URL_HELP}"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "status",
        help="show tables, watermarks, leases and commit table of a database",
        description="Connects to a database and shows its state.",
    )
    parser.add_argument("url", help=URL_HELP)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--raw", action="store_true", help="print every figure and counter, one a line")
    shown.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    parser = commands.add_parser(
        "top",
        help="a live page: throughput, aborts, W and what holds it back, disk space",
        description="Shows every second what a TSO does (throughput, aborts by reason), W and what holds it back, "
        "leases, the processes and the disk space of a folder. Ctrl-C ends it. Without a terminal, pages follow one "
        "another.",
    )
    parser.add_argument("url", help=URL_HELP)
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="time between pages (default: 1)")
    parser.add_argument("--pages", type=int, default=0, metavar="COUNT", help="exit after this many pages; 0: never")
    parser.set_defaults(run=_run_top)


def run(arguments: argparse.Namespace) -> int:
    with open_existing(arguments.url) as database:
        status = database.status()
    if arguments.json:
        print(json.dumps(as_json(status), indent=2))
    else:
        print("\n".join(as_lines(status) if arguments.raw else as_sentences(status)))
    return 0


def add_tables(parser: argparse.ArgumentParser, text: str = "only this table; repeatable") -> None:
    parser.add_argument("--table", action="append", dest="tables", metavar="NAME", help=text)


def open_existing(url: str) -> Database:
    """Return the database at `url`, and raise the client's error if there is none."""
    import pyomid
    from pyomid.wiring import is_made

    return pyomid.connect(url) if is_made(url) else pyomid.connect(url, create=False)


_TIMESTAMPS: Final = ("epoch", "last_ts", "low_watermark", "watermark", "horizon")


def as_json(status: DatabaseStatus) -> dict[str, Any]:
    """Return the status as JSON values, under the names in the text output."""
    return {
        "tso": asdict(status.tso),
        "times": {name: iso(getattr(status.tso, name)) for name in _TIMESTAMPS},
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


def as_sentences(status: DatabaseStatus) -> Iterator[str]:
    """Yield lines with the facts that an operator needs first, one sentence per line, then the tables."""
    from pyomid.database.upkeep.jobs import count_text, duration_text, holders, moment_text

    tso = status.tso
    if trouble := clock_trouble(tso.counters, tso.last_ts):
        yield f"The clock is wrong: {trouble}."
    if tso.processes:
        have = "process has" if len(tso.processes) == 1 else "processes have"
        yield f"{len(tso.processes)} {have} the folder open: {_numbers(tso.processes)}."
    else:
        yield f"The TSO leads since {moment_text(tso.epoch)}, with {count_text(tso.in_flight, 'commit')} in flight."
    yield f"The newest timestamp is {moment_text(tso.last_ts)}."
    kept = f"; history is kept for {duration_text(tso.retention_s)}" if tso.retention_s else ""
    yield f"Snapshots above W can be read, and W is {moment_text(tso.watermark)}{kept}."
    for what, whose in holders(tso):
        yield f"W stays below {what} {whose}."
    if tso.leases:
        yield f"{count_text(len(tso.leases), 'lease')} on the starts {_some(tso.leases)}."
    else:
        yield "There are no leases."
    if tso.processes:
        yield f"Upkeep has still to check {count_text(tso.counters[UNCHECKED], 'record')}."
    else:
        yield (
            f"The commit table has {count_text(status.commit_table_entries, 'entry', 'entries')}, "
            f"and is sanitized below H, {moment_text(tso.horizon)}."
        )
    if tso.pending:
        yield f"{count_text(len(tso.pending), 'large commit')} not finished yet: {_some(tso.pending)}."
    for name, count in conflicts_by_table(tso, status.tables).items():
        yield f"Transactions conflicted {count_text(count, 'time')} in table {name}."
    yield f"{count_text(len(status.tables), 'table')}:" if status.tables else "There is no table yet."
    yield from table_lines(status.tables)
    yield from _unregistered_lines(status)


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN_MAX]))
    return f"{shown} …" if len(numbers) > _SHOWN_MAX else shown


def _unregistered_lines(status: DatabaseStatus) -> Iterator[str]:
    for number, name in status.unregistered.items():
        missing = "no table has this id; it may have been dropped"
        yield f"Sanitizing is refused until this table is registered: id {number}, {name or missing}."
    if status.tables_unconfirmed:
        yield (
            "Sanitizing is refused because a Java TSO led: `pyomid tables URL discover`, register what it lists, "
            "`pyomid tables URL confirm`."
        )


def as_lines(status: DatabaseStatus) -> Iterator[str]:
    """Yield every figure with its meaning, and every counter."""
    tso = status.tso
    if tso.processes:
        yield f"clock            {_with_time(tso.last_ts)}   the newest timestamp"
    else:
        yield f"epoch            {_with_time(tso.epoch)}   timestamps at or below it come from earlier TSOs"
        yield f"last timestamp   {_with_time(tso.last_ts)}"
    if trouble := clock_trouble(tso.counters, tso.last_ts):
        yield f"clock            {trouble}"
    if not tso.processes:
        yield f"LWM              {_with_time(tso.low_watermark)}   no transaction at or below it can commit"
    yield f"W                {_with_time(tso.watermark)}   compaction may delete what only older snapshots need"
    if tso.held_back_by:
        yield f"held back by     {tso.held_back_by}"
    if tso.retention_s:
        yield f"retention        {tso.retention_s:>20g}   seconds for which history is kept; W stays below it"
    if tso.processes:
        yield f"H                {_with_time(tso.horizon)}   branches below it are forgotten"
        yield f"processes        {len(tso.processes):>20}   {_numbers(tso.processes)}   have the folder open"
        yield f"unchecked        {tso.counters[UNCHECKED]:>20}   records that upkeep has not checked yet"
    else:
        yield f"H                {_with_time(tso.horizon)}   the commit table is sanitized below it"
        yield f"in flight        {tso.in_flight:>20}   commits being made durable"
        yield f"commit table     {status.commit_table_entries:>20}   entries not yet completed or sanitized"
        yield f"pending          {len(tso.pending):>20}   {_some(tso.pending)}"
    yield f"leases           {len(tso.leases):>20}   {_some(tso.leases)}"
    for name, count in sorted(tso.counters.items()):
        if not name.startswith(TABLE_CONFLICTS) and name != UNCHECKED:
            yield f"{name:<20} {count:>16}"
    for name, count in conflicts_by_table(tso, status.tables).items():
        yield f"conflicts        {count:>20}   of transactions that wrote or claimed {name}"
    yield f"tables           {len(status.tables):>20}"
    yield from table_lines(status.tables)
    yield from _unregistered_lines(status)


def _with_time(timestamp: int) -> str:
    shown = iso(timestamp)
    return f"{timestamp:>20}   {shown}" if shown else f"{timestamp:>20}"


def conflicts_by_table(tso: Status, tables: Iterable[TableInfo]) -> dict[str, int]:
    """Return the number of conflicts by table name, largest first. A dropped table appears under its id."""
    names = {table_id(table.name.encode()): table.name for table in tables}
    found = sorted(tso.conflicts_by_table.items(), key=lambda each: -each[1])
    return {names.get(number, f"id {number}"): count for number, count in found}


def table_lines(tables: Sequence[TableInfo]) -> Iterator[str]:
    for table in tables:
        kept = f"families {families_text(table)}   conflict level {level_text(table)}"
        yield f"  {table.name}   {kept}{_ttl(table)}{_columns(table)}"


def families_text(table: TableInfo) -> str:
    return ", ".join(family.decode("utf-8", "backslashreplace") for family in table.families)


def level_text(table: TableInfo) -> str:
    return " changing to ".join(each.value for each in table.id_levels)


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
    shown = ", ".join(dated(start) for start in starts[:_SHOWN_MAX])
    return f"{shown} …" if len(starts) > _SHOWN_MAX else shown


_RATES: Final = {
    "begins": "transactions begun",
    "commits": "committed",
    "flushes": "flushes of the commit table",
    "refused": "requests refused",
}
_CLEAR: Final = "\x1b[H\x1b[2J"


def _run_top(arguments: argparse.Namespace) -> int:
    from pyomid.database.upkeep.jobs import number_text

    address, _ = parse_url(arguments.url)
    folder = Path(address.folder) if isinstance(address, EmbeddedAddress) else None
    shown = 0
    with open_existing(arguments.url) as database:
        tso = database._core.deployment.tso
        before, before_s = tso.status(), time.monotonic()
        while not arguments.pages or shown < arguments.pages:
            time.sleep(arguments.every)
            now, now_s = tso.status(), time.monotonic()
            tables = database._core.deployment.catalog.tables()
            lines = [f"{arguments.url}   {time.strftime('%H:%M:%S')}", *page(before, now, now_s - before_s, tables)]
            lines += (
                [f"{'space':<28} {number_text(_folder_bytes(folder) / 1e6):>12} MB in {folder}"]
                if folder is not None
                else []
            )
            print((_CLEAR if sys.stdout.isatty() else "") + "\n".join(lines), flush=True)
            before, before_s, shown = now, now_s, shown + 1
    return 0


def page(before: Status, now: Status, seconds: float, tables: Sequence[TableInfo] = ()) -> Iterator[str]:
    """Yield the lines of a page, computed from the TSO's status at two times. A new TSO's counters start at zero."""
    from pyomid.database.upkeep.jobs import holders, number_text

    is_same = before.epoch == now.epoch
    rates = {name: (count - before.counters.get(name, 0) * is_same) / seconds for name, count in now.counters.items()}
    if now.processes:
        yield f"{'timestamps drawn up to':<28} {iso(now.last_ts)}"
        yield f"{'processes':<28} {number_text(len(now.processes)):>12}"
        yield f"{'records upkeep has not seen':<28} {number_text(now.counters[UNCHECKED]):>12}"
    for name, text in ({} if now.processes else _RATES).items():
        yield f"{text:<28} {number_text(rates.get(name, 0.0)):>12} a second"
    yield from _aborts(rates, now.counters)
    former = conflicts_by_table(before, tables) if is_same else {}
    for name, count in conflicts_by_table(now, tables).items():
        yield _rate(f"conflicts: {name}", (count - former.get(name, 0)) / seconds, count)
    if not now.processes:
        yield f"{'commits in flight':<28} {number_text(now.in_flight):>12}"
    yield f"{'leases':<28} {number_text(len(now.leases)):>12}"
    behind = now.last_ts - now.watermark
    is_timed = is_time(now.watermark)
    shown = f"{number_text(behind / NS_PER_S if is_timed else behind):>12} {'s' if is_timed else 'timestamps'}"
    yield f"{'W behind the newest start':<28} {shown}"
    held = "; ".join(" ".join(each) for each in holders(now))
    yield f"{'W is held by':<28} {held or 'nobody':>12}"


def _aborts(rates: Mapping[str, float], counters: Mapping[str, int]) -> Iterator[str]:
    for name in sorted(counters):
        if name.startswith("aborts_"):
            why = name.removeprefix("aborts_").replace("_", " ")
            yield _rate(f"aborted: {why}", rates[name], counters[name])


def _rate(what: str, rate: float, count: int) -> str:
    from pyomid.database.upkeep.jobs import number_text

    return f"{what:<28} {number_text(rate):>12} a second, {number_text(count)} in all"


def _folder_bytes(folder: Path) -> int:
    """Return the disk space that a folder uses, without files that vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total
