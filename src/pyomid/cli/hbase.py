"""`pyomid hbase start|stop|status --dir D`: a standalone HBase for trials. Not for production."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyomid.cli.hbase_server import HBaseServer
from pyomid.errors import Misuse


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "hbase", help="a standalone HBase and ZooKeeper for development and tests (needs JDK 17 and Maven)"
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="start|stop|status")
    for verb, run, text in (
        ("start", _start, "start it on the loopback, on free ports (the first start downloads the jars)"),
        ("stop", _stop, "stop it; its data stay in the folder"),
        ("status", _status, "print whether it runs, and its URL"),
    ):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("--dir", type=Path, required=True, help="folder for all its files")
        if verb == "start":
            command.add_argument("--heap-mb", type=int, default=1024, help="the JVM's heap (default: %(default)s)")
        command.set_defaults(run=run)


def url_of(server: HBaseServer) -> str:
    return f"omid+hbase://{server.quorum}/hbase"


def _start(arguments: argparse.Namespace) -> int:
    server = HBaseServer(arguments.dir, heap_mb=arguments.heap_mb)
    print(f"starting HBase in {server.folder} (about fifteen seconds) …", flush=True)
    server.start()
    print(f"ready: {url_of(server)}\nnext:  pyomid init '{url_of(server)}'\nlog:   {server.log}")
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    server = HBaseServer(arguments.dir)
    if not server.is_running():
        print(f"no HBase runs in {server.folder}")
        return 0
    server.stop()
    print(f"stopped; the data stay in {server.folder}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    server = HBaseServer(arguments.dir)
    try:
        url = url_of(server)
    except Misuse as error:
        print(error)
        return 1
    running = server.is_running()
    print(f"{'running' if running else 'stopped'}: {url} in {server.folder}")
    return 0 if running else 1
