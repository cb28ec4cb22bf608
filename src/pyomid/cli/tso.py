"""`pyomid tso`: run a TSO, either started by an operator or, for a folder, on demand by its clients."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import ipaddress
import logging
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyomid.cli.tso_options import OPTIONS, read_options
from pyomid.config import EmbeddedAddress, Settings, parse_tso_url, parse_url
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.server.launcher import ERROR_EXIT_CODE, LOST_EXIT_CODE
from pyomid.server.leadership import DOUBT_EXIT_CODE

if TYPE_CHECKING:
    from pyomid.server.startup import ServiceOptions

log = logging.getLogger(__name__)

BY_HAND: Final = Settings(conflict_map_entries=16_000_000)
"""Defaults for a TSO that an operator starts, with memory for more conflict checks."""

EPILOG: Final = """\
examples:
  pyomid tso --listen 127.0.0.1:24758
        a TSO whose commit table exists only in its memory, to try a client
  pyomid tso --store omid:///var/lib/shop --metrics 127.0.0.1:9180
        a permanent, monitored TSO of a folder; clients connect by the socket in the folder
  pyomid tso --listen 0.0.0.0:24758 --store omid+hbase://zk1:2181,zk2:2181/hbase --metrics 127.0.0.1:9180
        one of the TSOs of a cluster: it stands by until it leads; clients find the leader through ZooKeeper
  pyomid tso --config /etc/pyomid/tso.yaml
        all options from a file; a key is an option without its dashes (leader-lease: 5)

Every option may also be given as an environment variable, PYOMID_TSO_LEADER_LEASE=… . The command line overrides the
environment, the environment the file, the file the default. Options of the database are in the URL of --store, as for
clients: omid:///var/lib/shop?conflictMapEntries=100000000&retention=7d; docs/options.md lists them.

The process serves until SIGTERM or SIGINT. Whatever it has acknowledged is durable; a kill loses nothing.
Exit status: 0 stopped, 2 wrong command line, 3 could not start, 70 exited because another TSO may lead,
75 another TSO leads.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "tso",
        help="run a TSO (timestamp and status oracle)",
        description="Runs the timestamp and status oracle: the one process that hands out timestamps and\n"
        "decides commits. Clients start the TSO of a folder themselves; run this command for a cluster,\n"
        "or for a monitored or trial TSO.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", help="YAML file of options")
    parser.add_argument("--on-demand", metavar="URL", help=argparse.SUPPRESS)
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        group = groups.setdefault(option.group, None) or parser.add_argument_group(option.group)
        groups[option.group] = group
        shown = "" if option.default in ("", 0.0, None) else f" (default: {option.default})"
        group.add_argument(f"--{option.name}", dest=option.attribute, help=option.text + shown, metavar="…")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, base: ServiceOptions | None = None) -> int:
    """`base` has what no option sets."""
    try:
        options = read_options(arguments, os.environ)
    except Misuse as error:
        print(f"pyomid tso: {error}", file=sys.stderr)
        return 2
    if arguments.on_demand:
        return serve_on_demand(arguments.on_demand, options, base)
    return serve_standalone(options, base)


# ── standalone ──────────────────────────────────────────────────────────────────────────────────────────────────────


def serve_standalone(options: dict[str, Any], base: ServiceOptions | None = None) -> int:
    from pyomid.server.leadership import FolderLock, holder
    from pyomid.server.logs import log_to
    from pyomid.wiring import tso_folder

    try:
        log_to(None, level=options["log-level"])
        _, settings = parse_tso_url(options["store"], BY_HAND)
        with contextlib.ExitStack() as stack:
            listeners = list(_listeners(options, stack))
            lock: FolderLock | None = None
            folder = tso_folder(options["store"])
            if folder is not None:
                lock = FolderLock(folder)
                if not lock.acquire():
                    pid = holder(folder).get("pid")
                    print(f"pyomid tso: process {pid} is the TSO of {folder}", file=sys.stderr)
                    return LOST_EXIT_CODE
                stack.callback(lock.release)
                listeners.append((lock.listen(), None))
            stores = _stores(options["store"], stack)
            if not listeners:
                raise Misuse("no address to serve on: give --listen HOST:PORT")
            leadership = _leadership(options, listeners)
            service = _service_options(options, settings, base)
            _serve(service, settings, stores, listeners, ready=_say_ready, leadership=leadership, lock=lock)
    except OmidError as error:
        print(f"pyomid tso: {error}", file=sys.stderr)
        return ERROR_EXIT_CODE
    return 0


def _say_ready(listeners: list[tuple[socket.socket, ssl.SSLContext | None]]) -> None:
    """Print the addresses, for programs that read the first line of output; of a Unix socket only its name."""
    for sock, tls in listeners:
        if sock.family == socket.AF_UNIX:
            print(f"serving on the Unix socket {Path(sock.getsockname()).name}", flush=True)
        else:
            host, port = sock.getsockname()[:2]
            print(f"serving on {host}:{port}{' by TLS' if tls else ''}", flush=True)


def _listeners(
    options: dict[str, Any], stack: contextlib.ExitStack
) -> Iterator[tuple[socket.socket, ssl.SSLContext | None]]:
    if options["listen"]:
        sock, tls = _tcp_listener(options["listen"], stack), _tls(options)
        _check_token_is_safe(options, sock.getsockname()[0], tls)
        yield sock, tls


def _tcp_listener(address: str, stack: contextlib.ExitStack) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise Misuse(f"--listen {address!r} is not HOST:PORT")
    try:
        sock = socket.create_server((host or "127.0.0.1", int(port)), backlog=1024)
    except OSError as error:
        raise Unavailable(f"cannot listen on {address}: {error.strerror}", address=address) from error
    sock.setblocking(False)
    stack.callback(sock.close)
    return sock


def _check_token_is_safe(options: dict[str, Any], host: str, tls: ssl.SSLContext | None) -> None:
    """Refuse a token that clients would send over a network unencrypted."""
    if options["token-file"] and tls is None and not options["token-in-clear"] and not _is_loopback(host):
        raise Misuse(
            f"--token-file without --tls-cert on {options['listen']}: clients would send the token unencrypted; give "
            "--tls-cert and --tls-key, listen on 127.0.0.1, or set --token-in-clear yes"
        )


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def _tls(options: dict[str, Any]) -> ssl.SSLContext | None:
    if not options["tls-cert"]:
        if options["tls-key"] or options["tls-client-ca"]:
            raise Misuse("--tls-key and --tls-client-ca need --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options["tls-cert"], options["tls-key"] or None)
        if options["tls-client-ca"]:
            context.load_verify_locations(options["tls-client-ca"])
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise Misuse(f"TLS: {error} (--tls-cert {options['tls-cert']}, --tls-key {options['tls-key']})") from error
    return context


def _stores(store: str, stack: contextlib.ExitStack) -> Any:
    from pyomid.wiring import open_tso_stores

    stores, close = open_tso_stores(store)
    stack.callback(close)
    return stores


def _leadership(options: dict[str, Any], listeners: list[tuple[socket.socket, ssl.SSLContext | None]]) -> Any:
    """Return the leader election of a cluster; None for other stores."""
    from pyomid.wiring import open_leadership

    tcp = [sock for sock, _ in listeners if sock.family != socket.AF_UNIX]
    address = options["announce"]
    if not address and tcp:
        host, port = tcp[0].getsockname()[:2]
        address = f"{socket.getfqdn() if host in ('0.0.0.0', '::') else host}:{port}"
    leadership = open_leadership(options["store"], address, lease_s=options["leader-lease"])
    if leadership is not None and not address:
        raise Misuse("the TSO of a cluster needs --listen HOST:PORT, because clients connect from other machines")
    return leadership


# ── on demand ────────────────────────────────────────────────────────────────────────────────────────────────────


def serve_on_demand(url: str, options: dict[str, Any], base: ServiceOptions | None = None) -> int:
    """Start the TSO of the folder at `url` in a child process that outlives this one; return when it serves, or has
    failed.

    The parent keeps no resource of it. An error goes to standard error as one line of JSON.
    """
    from pyomid.server.launcher import error_line
    from pyomid.server.leadership import FolderLock

    try:
        address, _ = parse_url(url)
        assert isinstance(address, EmbeddedAddress), url
        folder = Path(address.folder)
        lock = FolderLock(folder)
        if not lock.acquire():
            return LOST_EXIT_CODE
        listener = lock.listen()
    except OmidError as error:
        print(error_line(error), file=sys.stderr)
        return ERROR_EXIT_CODE
    read_end, write_end = os.pipe()
    if child := os.fork():
        os.close(write_end)
        lock.disown()
        return _report(folder, read_end, child)
    os.close(read_end)
    os.setsid()
    _become_service(url, options, base, lock, listener, write_end)


def _report(folder: Path, read_end: int, child: int) -> int:
    """Report what the child wrote to the pipe: nothing (it died), "ready", or an error; return the exit status."""
    from pyomid.server.launcher import error_line
    from pyomid.server.logs import LOG_FILE

    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    if said == "ready":
        return 0
    if not said:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        how = f"of signal {-status}" if status < 0 else f"with exit status {status}"
        said = error_line(
            Unavailable(f"process {child}, the TSO of {folder}, ended {how} during startup; see {folder / LOG_FILE}")
        )
    print(said, file=sys.stderr)
    return ERROR_EXIT_CODE


def _become_service(
    url: str, options: dict[str, Any], base: ServiceOptions | None, lock: Any, listener: socket.socket, write_end: int
) -> NoReturn:
    """Run the child. Its standard output and error go to the log file, so that it does not hold the parent's pipes."""
    from pyomid.server.launcher import error_line
    from pyomid.server.logs import LOG_FILE, log_to

    folder: Path = lock.folder
    code, died_of = DOUBT_EXIT_CODE, ""
    # Close it right after the first write: later its number may belong to another file.
    pipe = os.fdopen(write_end, "wb", buffering=0)

    def say(what: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            pipe.write(what.encode())
        pipe.close()

    try:
        log_to(folder / LOG_FILE, level=options["log-level"])
        faulthandler.enable()
        os.chdir("/")  # the client's working folder may be removed or unmounted
        lock.sign_again()
        with contextlib.ExitStack() as stack:
            _, settings = parse_url(url)
            service = _service_options(options, settings, base)
            service = replace(service, idle_exit_s=settings.tso_idle_exit_seconds or math.inf)
            stores = _stores(url, stack)
            _serve(service, settings, stores, [(listener, None)], ready=lambda _: say("ready"), lock=lock)
        code = 0
    except OmidError as error:
        log.exception("the TSO exits: %s", error)
        died_of, code = f"{error} [{error.code}]", ERROR_EXIT_CODE
        say(error_line(error))
    except BaseException as error:
        log.exception("the TSO exits after an unexpected error")
        died_of = f"{type(error).__name__}: {error}"
        say(error_line(Unavailable(f"the TSO of {folder} died: {died_of}; its traceback is in {folder / LOG_FILE}")))
    finally:
        lock.release(died_of)
        logging.shutdown()
        os._exit(code)


# ── serving ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _service_options(options: dict[str, Any], settings: Settings, base: ServiceOptions | None) -> ServiceOptions:
    from pyomid.client.session.blocking import read_token
    from pyomid.server.startup import ServiceOptions
    from pyomid.wiring import tso_settings

    base = base or ServiceOptions()
    return replace(
        base,
        settings=replace(
            tso_settings(settings, base.settings),
            flushes_in_flight_max=options["flushes-in-flight"],
            store_retry_s=options["store-retry"],
            world_time=options["timestamps"] == "world-time",
        ),
        connections_max=options["connections"],
        token=read_token(options["token-file"]) if options["token-file"] else b"",
        metrics=options["metrics"],
    )


def _serve(
    service: ServiceOptions,
    settings: Settings,
    stores: Any,
    listeners: list[tuple[socket.socket, ssl.SSLContext | None]],
    *,
    ready: Callable[[list[tuple[socket.socket, ssl.SSLContext | None]]], None],
    leadership: Any = None,
    lock: Any = None,
) -> None:
    """Take over, serve until a stop signal, then drain."""
    from pyomid.server.startup import serve
    from pyomid.wiring import folder_upkeep

    has_upkeep = lock is not None and settings.upkeep_share
    _run(
        serve(
            stores,
            service,
            listeners,
            ready=lambda: ready(listeners),
            stop_signals=(signal.SIGTERM, signal.SIGINT),
            leadership=leadership,
            folder_lock=lock,
            upkeep=partial(folder_upkeep, lock.folder, settings) if has_upkeep else None,
        )
    )


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run by uvloop if it is installed: a request takes half the time that asyncio needs."""
    try:
        import uvloop
    except ModuleNotFoundError:
        import asyncio

        asyncio.run(main)
    else:
        uvloop.run(main)
