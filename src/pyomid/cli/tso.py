"""`pyomid tso`: run a TSO, either started by an operator or, for a folder, on demand by its clients."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote

from pyomid.cli.tso_options import OPTIONS, read_options
from pyomid.errors import Misuse, OmidError, Unavailable
from pyomid.server.launcher import ERROR_EXIT_CODE, LOST_EXIT_CODE
from pyomid.server.leadership import DOUBT_EXIT_CODE

log = logging.getLogger(__name__)

EPILOG: Final = """\
examples:
  pyomid tso --listen 127.0.0.1:24758 --store memory
        a TSO whose commit table exists only in its memory, to try a client
  pyomid tso --store omid:///var/lib/shop --metrics 127.0.0.1:9180
        a permanent, monitored TSO of a folder; clients connect by the socket in the folder
  pyomid tso --listen 0.0.0.0:24758 --store omid+hbase://zk1:2181,zk2:2181/hbase --metrics 127.0.0.1:9180
        one of the TSOs of a cluster: it stands by until it leads; clients find the leader through ZooKeeper
  pyomid tso --config /etc/pyomid/tso.yaml
        all options from a file; a key is an option without its dashes (conflict-map-entries: 100000000)

Every option may also be given as an environment variable, PYOMID_TSO_CONFLICT_MAP_ENTRIES=… . The command line
overrides the environment, the environment the file, the file the default.

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
    parser.add_argument("--on-demand", metavar="FOLDER", help=argparse.SUPPRESS)
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        group = groups.setdefault(option.group, None) or parser.add_argument_group(option.group)
        groups[option.group] = group
        shown = "" if option.default in ("", 0.0, None) else f" (default: {option.default})"
        group.add_argument(f"--{option.name}", dest=option.attribute, help=option.text + shown, metavar="…")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        options = read_options(arguments, os.environ)
    except Misuse as error:
        print(f"pyomid tso: {error}", file=sys.stderr)
        return 2
    if arguments.on_demand:
        return serve_on_demand(Path(arguments.on_demand), options)
    return serve_standalone(options)


# ── standalone ──────────────────────────────────────────────────────────────────────────────────────────────────────


def serve_standalone(options: dict[str, Any]) -> int:
    from pyomid.server.leadership import FolderLock, holder
    from pyomid.server.logs import log_to
    from pyomid.wiring import tso_folder

    try:
        log_to(Path(options["log-file"]) if options["log-file"] else None, level=options["log-level"])
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
                raise Misuse("no address to serve on: give --listen HOST:PORT or --unix PATH")
            leadership = _leadership(options, listeners)
            _serve(options, stores, listeners, ready=_say_ready, leadership=leadership, lock=lock)
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
    if options["unix"]:
        yield _unix_listener(Path(options["unix"]), stack), None


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


def _unix_listener(path: Path, stack: contextlib.ExitStack) -> socket.socket:
    from pyomid.server.leadership import SOCKET_FILE, listening_at

    if path.name == SOCKET_FILE:
        raise Misuse(f"--unix {path}: this name is reserved for a folder's own socket")
    try:
        return stack.enter_context(listening_at(path))
    except OSError as error:
        raise Misuse(f"--unix {path}: {error.strerror}", path=str(path)) from error


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


def serve_on_demand(folder: Path, options: dict[str, Any]) -> int:
    """Start the TSO of `folder` in a child process that outlives this one; return when it serves, or has failed.

    The parent keeps no resource of it. An error goes to standard error as one line of JSON.
    """
    from pyomid.server.launcher import error_line
    from pyomid.server.leadership import FolderLock

    try:
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
    _become_service(folder, options, lock, listener, write_end)


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
    folder: Path, options: dict[str, Any], lock: Any, listener: socket.socket, write_end: int
) -> NoReturn:
    """Run the child. Its standard output and error go to the log file, so that it does not hold the parent's pipes."""
    from pyomid.server.launcher import error_line
    from pyomid.server.logs import LOG_FILE, log_to

    code, died_of = DOUBT_EXIT_CODE, ""
    # Close it right after the first write: later its number may belong to another file.
    pipe = os.fdopen(write_end, "wb", buffering=0)

    def say(what: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            pipe.write(what.encode())
        pipe.close()

    try:
        log_to(folder / LOG_FILE, level=options["log-level"], standard_too=True)
        faulthandler.enable()
        os.chdir("/")  # the client's working folder may be removed or unmounted
        lock.sign_again()
        with contextlib.ExitStack() as stack:
            stores = _stores(f"omid://{quote(str(folder))}?mapSizeGib={options['map-size-gib']}", stack)
            _serve(options, stores, [(listener, None)], ready=lambda _: say("ready"), lock=lock)
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


def _serve(
    options: dict[str, Any],
    stores: Any,
    listeners: list[tuple[socket.socket, ssl.SSLContext | None]],
    *,
    ready: Callable[[list[tuple[socket.socket, ssl.SSLContext | None]]], None],
    leadership: Any = None,
    lock: Any = None,
) -> None:
    """Take over, serve until a stop signal, then drain."""
    from pyomid.client.session.connecting import read_token
    from pyomid.server.startup import ServiceOptions, serve
    from pyomid.wiring import folder_upkeep

    token = read_token(options["token-file"]) if options["token-file"] else b""
    service_options = ServiceOptions.from_options(options, token)
    _run(
        serve(
            stores,
            service_options,
            listeners,
            ready=lambda: ready(listeners),
            stop_signals=(signal.SIGTERM, signal.SIGINT),
            leadership=leadership,
            folder_lock=lock,
            upkeep=partial(
                folder_upkeep,
                lock.folder,
                options["upkeep"],
                options["commit-retry"],
                86_400 * options["transaction-id-days"],
            )
            if lock is not None and options["upkeep"]
            else None,
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
