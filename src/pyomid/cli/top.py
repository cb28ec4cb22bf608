"""`pyomid top URL`: a live page of a database's activity."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyomid.cli.status import URL_HELP, conflicts_by_table, open_existing
from pyomid.config import EmbeddedAddress, parse_url

if TYPE_CHECKING:
    from pyomid.types import Status, TableInfo

_RATES: Final = {
    "begins": "transactions begun",
    "commits": "committed",
    "flushes": "flushes of the commit table",
    "refused": "requests refused",
}
_CLEAR: Final = "\x1b[H\x1b[2J"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "top",
        help="a live page: throughput, aborts, W and what holds it back, disk space",
        description="Shows the TSO's activity every second: throughput, aborts by reason, W and what holds it back, "
        "leases, the disk space of a folder. Ctrl-C ends it. Without a terminal, pages follow one another.",
    )
    parser.add_argument("url", help=URL_HELP)
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="time between pages (default: 1)")
    parser.add_argument("--pages", type=int, default=0, metavar="COUNT", help="exit after this many pages; 0: never")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
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
            lines += [f"space {_folder_bytes(folder) / 1e6:>19,.1f} MB   {folder}"] if folder is not None else []
            print((_CLEAR if sys.stdout.isatty() else "") + "\n".join(lines), flush=True)
            before, before_s, shown = now, now_s, shown + 1
    return 0


def page(before: Status, now: Status, seconds: float, tables: Sequence[TableInfo] = ()) -> Iterator[str]:
    """Yield the lines of a page, from the TSO's status at two times. A new TSO's counters start at zero."""
    from pyomid.client.upkeep.jobs import holders

    is_same = before.epoch == now.epoch
    rates = {name: (count - before.counters.get(name, 0) * is_same) / seconds for name, count in now.counters.items()}
    for name, text in _RATES.items():
        yield f"{text:<28} {rates.get(name, 0.0):>12,.1f} a second"
    yield from _aborts(rates, now.counters)
    former = conflicts_by_table(before, tables) if is_same else {}
    for name, count in conflicts_by_table(now, tables).items():
        yield f"{f'conflicts: {name}':<28} {(count - former.get(name, 0)) / seconds:>12,.1f} a second, {count:,} in all"
    yield f"{'commits in flight':<28} {now.in_flight:>12,}"
    yield f"{'leases':<28} {len(now.leases):>12,}"
    yield f"{'W behind the newest start':<28} {now.last_ts - now.watermark:>12,} timestamps"
    held = "; ".join(" ".join(each) for each in holders(now))
    yield f"{'W is held by':<28} {held or 'nobody':>12}"


def _aborts(rates: Mapping[str, float], counters: Mapping[str, int]) -> Iterator[str]:
    for name in sorted(counters):
        if name.startswith("aborts_"):
            why = name.removeprefix("aborts_").replace("_", " ")
            yield f"{f'aborted: {why}':<28} {rates[name]:>12,.1f} a second, {counters[name]:,} in all"


def _folder_bytes(folder: Path) -> int:
    """Return a folder's disk space, without files that vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total
