"""`pyomid compact|sanitize|verify URL`: does upkeep without Spark, as a command or as a service."""

from __future__ import annotations

import _thread
import argparse
import json
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from pyomid.cli.progress import progress_bar
from pyomid.cli.status import URL_HELP, add_tables, open_existing
from pyomid.errors import Misuse


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compact = _command(
        commands,
        "compact",
        "drop versions that no snapshot needs",
        "Writes missing shadow cells, drops orphans and versions that no snapshot above W needs, and records up to "
        "which W each region was compacted. Readers and writers may continue meanwhile. Reports what holds W back, and "
        "until when.",
    )
    add_tables(compact)
    compact.add_argument(
        "--grace-seconds",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="if Java clients share the store: compact by the value that W had this long ago; give at least the "
        "duration of their longest transaction",
    )
    _add_every(compact, "compact each region again after this time")
    sanitize = _command(
        commands,
        "sanitize",
        "delete commit-table entries that no reader needs",
        "Raises the horizon H as far as every table is compacted, and deletes the entries below it. Reports which "
        "table holds H back, and when another run helps.",
    )
    _add_every(sanitize, "sanitize again after this time")
    verify = _command(
        commands,
        "verify",
        "read everything and report violations of invariants",
        "Reads every cell and every commit-table entry (in a folder: every branch record), and writes nothing. The "
        "exit status is 1 if an invariant is violated.",
    )
    add_tables(verify)


def _command(commands: Any, name: str, text: str, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=description)
    parser.add_argument("url", help=URL_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _add_every(parser: argparse.ArgumentParser, again: str) -> None:
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help=f"run as a service over HBase until SIGTERM: {again}. One of several such processes works, the others "
        "stand by. Logs go to standard error",
    )


def run(arguments: argparse.Namespace) -> int:
    if getattr(arguments, "every", None) is not None:
        return _serve(arguments)
    return _run_once(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    """Run as a service until SIGTERM or SIGINT; a second signal interrupts the work at once, which is harmless."""
    import pyomid
    from pyomid.database.upkeep.service import CompactionRounds, Rounds, SanitizingRounds, serve
    from pyomid.omid.tso.logs import log_to_standard_error
    from pyomid.wiring import open_upkeep_turn

    if not 0 < arguments.every < float("inf"):
        raise Misuse(f"--every {arguments.every:g} is not a number of seconds above 0")
    if arguments.json:
        raise Misuse("--json prints one report, but --every logs each report as JSON: omit one of them")
    turn, stop = open_upkeep_turn(arguments.url, arguments.command), threading.Event()
    opened = partial(pyomid.connect, arguments.url)
    rounds: Rounds
    if arguments.command == "compact":
        rounds = CompactionRounds(
            opened, arguments.every, stop, turn.is_held, tables=arguments.tables, grace_s=arguments.grace_seconds
        )
    else:
        rounds = SanitizingRounds(opened, arguments.every, stop, turn.is_held)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ending(stop))
    log_to_standard_error()
    try:
        serve(rounds, turn, stop)
    finally:
        turn.release()
    return 0


def ending(stop: threading.Event) -> Callable[[int, object], None]:
    """Return the signal handler of the service. It sets `stop` in a new thread, because `set` waits for a lock that the
    interrupted code may hold."""

    def end(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        _thread.start_new_thread(stop.set, ())

    return end


def _run_once(arguments: argparse.Namespace) -> int:
    with open_existing(arguments.url) as database:
        report: Any
        match arguments.command:
            case "compact":
                with progress_bar("rows") as bar:
                    report = database.compact(arguments.tables, grace_seconds=arguments.grace_seconds, progress=bar)
            case "sanitize":
                report = database.sanitize()
            case _:
                with progress_bar("rows") as bar:
                    report = database.verify(arguments.tables, progress=bar)
    print(json.dumps(asdict(report), indent=2) if arguments.json else report)
    return 0 if getattr(report, "ok", True) else 1
