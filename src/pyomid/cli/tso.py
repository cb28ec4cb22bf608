"""`pyomid tso`: run a TSO of a cluster, or for a trial.

Each option is taken from the command line, else from the environment, else from a file; otherwise it has its default.
These options concern the process. Options of the database (`config.Settings`) are in the database's URL, --store.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyomid.cli import HelpInLines
from pyomid.config import Settings, parse_tso_url
from pyomid.errors import Misuse, OmidError, Unavailable, extra_missing
from pyomid.omid.tso.leadership import Leadership
from pyomid.omid.tso.logs import log_to_standard_error

if TYPE_CHECKING:
    from pyomid.omid.tso.startup import ServiceOptions


ENVIRONMENT_PREFIX: Final = "PYOMID_TSO_"
ERROR_EXIT_CODE: Final = 3


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the command."""

    name: str
    kind: Callable[[str], Any]
    default: Any
    text: str
    group: str = "service"

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")


def _one_of(*words: str) -> Callable[[str], str]:
    def word(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return word


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no", "true", "false"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text.lower() in ("yes", "true")


OPTIONS: Final = (
    Option("listen", str, "", "HOST:PORT to serve on (Apache Omid's port is 24758); port 0 chooses a free one; needed "
           "for clients on other machines"),
    Option("store", str, "omid-memory:tso", "URL of the database to serve: omid+hbase://zk1:2181/znode or, for a trial,"
           " omid-memory:NAME; its options are in docs/options.md"),
    Option("metrics", str, "", "HOST:PORT for Prometheus (/metrics), health (/health) and readiness (/ready); set it "
           "if something monitors the process"),
    Option("log-level", _one_of("debug", "info", "warning", "error"), "info", "lowest level that is logged to standard "
           "error: debug (to report a problem), info, warning or error"),
    Option("connections", int, 10_000, "maximum number of connections; raise it for more clients, or lower it on a "
           "small machine"),
    Option("announce", str, "", "HOST:PORT announced to clients; set it if they cannot reach the address of --listen, "
           "as behind NAT or in Kubernetes", "omid+hbase"),
    Option("leader-lease", float, 10.0, "seconds until a standby replaces a silent leader; shorter for a faster "
           "failover, longer if pauses of a machine cause failovers", "omid+hbase"),
    Option("flushes-in-flight", int, 2, "maximum number of concurrent flushes of the commit table; raise it if a "
           "round trip to the table takes milliseconds", "omid+hbase"),
    Option("store-retry", float, 30.0, "seconds for which a failing store is retried before the process exits, also at "
           "startup; then its supervisor restarts it", "omid+hbase"),
    Option("tls-cert", str, "", "server certificate (PEM): TCP is served by TLS only (clients: option tlsCa; Java's: "
           "setTlsEnabled)", "security"),
    Option("tls-key", str, "", "key of --tls-cert, if that file does not contain it", "security"),
    Option("tls-client-ca", str, "", "clients must present a certificate of this authority (option tlsCert)",
           "security"),
    Option("token-file", str, "", "file whose content clients must send in their handshake (option tokenFile); Java "
           "clients cannot", "security"),
    Option("token-in-clear", _yes_or_no, False, "yes: allow --token-file without --tls-cert on an address that other "
           "machines can reach; set it if the network itself encrypts", "security"),
)  # fmt: skip


def read_options(arguments: argparse.Namespace, environment: os._Environ[str] | dict[str, str]) -> dict[str, Any]:
    """Return every option's value by name. If a value is invalid, raise `Misuse`, which says where the value was
    given."""
    from_file = _file_options(arguments.config or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG", ""))
    options: dict[str, Any] = {}
    for option in OPTIONS:
        variable = ENVIRONMENT_PREFIX + option.attribute.upper()
        places = [
            (f"--{option.name}", getattr(arguments, option.attribute)),
            (variable, environment.get(variable)),
            (f"{option.name} in the file", from_file.get(option.name)),
        ]
        where, given = next((place for place in places if place[1] is not None), ("", None))
        if where:
            options[option.name] = _value(option, given, where)
        else:
            options[option.name] = option.default
    return options


def _value(option: Option, given: object, where: str) -> Any:
    try:
        return option.kind(str(given))
    except ValueError as error:
        raise Misuse(f"{where}: invalid value {given!r} ({error})") from error


def _file_options(path: str) -> dict[str, object]:
    if not path:
        return {}
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise extra_missing("a config file needs the package PyYAML", "server") from error

    try:
        content = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise Misuse(f"config file {path}: {error}") from error
    if not isinstance(content, dict):
        raise Misuse(f"config file {path} must consist of lines of the form `option: value`")
    known = {option.name for option in OPTIONS}
    for name in content:
        if name not in known:
            raise Misuse(f"config file {path}: unknown option {name!r}; known: {', '.join(sorted(known))}")
    return content


log = logging.getLogger(__name__)

Listeners = list[tuple[socket.socket, ssl.SSLContext | None]]

BY_HAND: Final = Settings(conflict_map_entries=16_000_000)
"""Defaults for a TSO that an operator starts, with memory for more conflict checks."""

EPILOG: Final = """\
examples:
  pyomid tso --listen 127.0.0.1:24758
        a TSO whose commit table exists only in its memory, to try a client
  pyomid tso --listen 0.0.0.0:24758 --metrics 127.0.0.1:9180 \\
      --store omid+hbase://zk1:2181,zk2:2181/hbase
        one of the TSOs of a cluster: it stands by until it leads; clients find
        the leader through ZooKeeper
  pyomid tso --config /etc/pyomid/tso.yaml
        all options from a file; a key is an option without its dashes
        (leader-lease: 5)

Every option may also be given as an environment variable, for example
PYOMID_TSO_LEADER_LEASE=5. The command line overrides the environment, the
environment the file, the file the default. Options of the database are in the
URL of --store, as for clients; docs/options.md lists them:
omid+hbase://zk1/hbase?conflictMapEntries=100000000&retention=7d

The process serves until SIGTERM or SIGINT. Whatever it has acknowledged is
durable; a kill loses nothing. Exit status: 0 stopped, 2 wrong command line,
3 could not start, 70 exited because another TSO may lead.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "tso",
        help="run a TSO (timestamp and status oracle)",
        description="Runs the timestamp and status oracle: the one process that hands out\n"
        "timestamps and decides commits over HBase. A folder needs none.",
        epilog=EPILOG,
        formatter_class=HelpInLines,
    )
    parser.add_argument("--config", help="YAML file of options")
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        shown = "" if option.default in ("", 0.0, None) else f" (default: {option.default})"
        groups[option.group].add_argument(
            f"--{option.name}", dest=option.attribute, help=option.text + shown, metavar="…"
        )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, base: ServiceOptions | None = None) -> int:
    """Run the command. `base` has the service options that no command-line option sets."""
    try:
        options = read_options(arguments, os.environ)
    except Misuse as error:
        print(f"pyomid tso: {error}", file=sys.stderr)
        return 2
    return serve_standalone(options, base)


# ── standalone ──────────────────────────────────────────────────────────────────────────────────────────────────────


def serve_standalone(options: dict[str, Any], base: ServiceOptions | None = None) -> int:
    try:
        log_to_standard_error(options["log-level"])
        _, settings = parse_tso_url(options["store"], BY_HAND)
        with contextlib.ExitStack() as stack:
            listeners = _tcp_listeners(options, stack)
            stores = _stores(options["store"], stack)
            if not listeners:
                raise Misuse("no address to serve on: give --listen HOST:PORT")
            leadership = _leadership(options, listeners)
            service = _service_options(options, settings, base)
            _serve(service, settings, stores, listeners, ready=_print_addresses, leadership=leadership)
    except OmidError as error:
        print(f"pyomid tso: {error}", file=sys.stderr)
        return ERROR_EXIT_CODE
    return 0


def _print_addresses(listeners: Listeners) -> None:
    """Print the listening addresses, for programs that wait for the first line of output."""
    for sock, tls in listeners:
        host, port = sock.getsockname()[:2]
        print(f"serving on {host}:{port}{' by TLS' if tls else ''}", flush=True)


def _tcp_listeners(options: dict[str, Any], stack: contextlib.ExitStack) -> Listeners:
    """Return a list with the socket of --listen and its TLS context; an empty list without that option."""
    if not options["listen"]:
        return []
    sock, tls = _tcp_socket(options["listen"], stack), _tls(options)
    _check_token_is_safe(options, sock.getsockname()[0], tls)
    return [(sock, tls)]


def _tcp_socket(address: str, stack: contextlib.ExitStack) -> socket.socket:
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
            f"--token-file needs --tls-cert on {options['listen']}, because clients would otherwise send the token "
            "unencrypted; give --tls-cert and --tls-key, listen on 127.0.0.1, or set --token-in-clear yes"
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


def _leadership(options: dict[str, Any], listeners: Listeners) -> Leadership | None:
    """Return the leader election of a cluster; None for other stores."""
    from pyomid.wiring import open_leadership

    address = options["announce"]
    if not address:
        host, port = listeners[0][0].getsockname()[:2]
        address = f"{socket.getfqdn() if host in ('0.0.0.0', '::') else host}:{port}"
    return open_leadership(options["store"], address, lease_s=options["leader-lease"])


# ── serving ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _service_options(options: dict[str, Any], settings: Settings, base: ServiceOptions | None) -> ServiceOptions:
    from pyomid.omid.client.blocking import read_token
    from pyomid.omid.tso.startup import ServiceOptions
    from pyomid.wiring import tso_settings

    base = base or ServiceOptions()
    return replace(
        base,
        settings=replace(
            tso_settings(settings, base.settings),
            flushes_in_flight_max=options["flushes-in-flight"],
            store_retry_s=options["store-retry"],
        ),
        connections_max=options["connections"],
        token=read_token(options["token-file"]) if options["token-file"] else b"",
        metrics=options["metrics"],
    )


def _serve(
    service: ServiceOptions,
    settings: Settings,
    stores: Any,
    listeners: Listeners,
    *,
    ready: Callable[[Listeners], None],
    leadership: Leadership | None = None,
) -> None:
    """Take over, serve until a stop signal, then drain."""
    from pyomid.omid.tso.startup import serve

    _run(
        serve(
            stores,
            service,
            listeners,
            ready=lambda: ready(listeners),
            stop_signals=(signal.SIGTERM, signal.SIGINT),
            leadership=leadership,
        )
    )


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` on uvloop, which halves the time of a request, or on asyncio if uvloop is not installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        import asyncio

        asyncio.run(main)
    else:
        uvloop.run(main)
