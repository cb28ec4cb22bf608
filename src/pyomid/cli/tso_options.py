"""The options of `pyomid tso`, taken from the command line, the environment, a file, or the default, in this order."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyomid.config import duration_s
from pyomid.errors import Misuse

ENVIRONMENT_PREFIX: Final = "PYOMID_TSO_"


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
        return _attribute(self.name)


def _attribute(name: str) -> str:
    return name.replace("-", "_")


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


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError("it must be between 0 and 1")
    return share


def _duration(text: str) -> float:
    try:
        return duration_s(text)
    except Misuse as error:
        raise ValueError(error.message) from error


OPTIONS: Final = (
    Option("listen", str, "", "HOST:PORT to serve on (Apache Omid's port is 24758); port 0 chooses a free one"),
    Option("unix", str, "", "path of a Unix socket to serve on"),
    Option("store", str, "memory", "where commits are stored: memory, omid:///folder, omid+hbase://zk1:2181/znode"),
    Option("idle-exit", float, 0.0, "exit after this many seconds without connection or lease; 0: never"),
    Option("log-file", str, "", "file of log lines, one JSON object each; default: standard error"),
    Option("log-level", str, "info", "debug, info, warning or error"),
    Option("metrics", str, "", "HOST:PORT for Prometheus (/metrics), health (/health) and readiness (/ready)"),
    Option("conflict-map-entries", int, 16_000_000, "size of the conflict map; smaller: more false aborts", "oracle"),
    Option("unknown-tables", int, 1000, "most unregistered table ids; commits that name more are refused", "oracle"),
    Option("leases", int, 10_000, "most leases at once", "oracle"),
    Option("max-transaction-age", float, 600.0, "seconds after which a transaction without a lease cannot commit",
           "oracle"),
    Option("retention", _duration, None, "how long history is kept for reads of the past: 7d, 12h, 30m; 0: only while "
           "it is being read; default: the value last set for this database", "oracle"),
    Option("lease-term", float, 300.0, "seconds a lease lasts without renewal", "oracle"),
    Option("commit-retry", float, 600.0, "seconds for which retries of large commits are matched", "oracle"),
    Option("timestamps", _one_of("incremental", "world-time"), "incremental", "incremental, or world-time: not below "
           "the wall clock", "oracle"),
    Option("leader-lease", float, 10.0, "omid+hbase: seconds until a standby replaces a silent leader", "cluster"),
    Option("announce", str, "", "omid+hbase: HOST:PORT announced to clients, if not --listen", "cluster"),
    Option("upkeep", _share, 0.1, "omid:///folder: share of one core, and of the store's writer lock, for background "
           "compaction and sanitizing; 0: none", "upkeep"),
    Option("map-size-gib", float, 64.0, "on demand: maximum size of the folder; otherwise give it in the URL of "
           "--store"),
    Option("transaction-id-days", float, 30.0, "omid:///folder: age at which an idempotency key shrinks to a hash of "
           "its id; 0: never", "upkeep"),
    Option("kernel", _one_of("on", "off"), "on", "on: compiled code decides; off: reference implementation", "oracle"),
    Option("flushes-in-flight", int, 2, "concurrent flushes of the commit table; more for a distant one", "batches"),
    Option("batch-entries", int, 16_384, "most commits in one flush", "batches"),
    Option("window-starts", int, 4_096, "begins that can be answered during one flush", "batches"),
    Option("stall", float, 1.0, "after a pause this long the epoch is read before replies, seconds", "batches"),
    Option("store-retry", float, 30.0, "seconds for which a failing store is retried before the process exits; at "
           "startup, for which a silent store is awaited", "batches"),
    Option("frame-bytes", int, 10 << 20, "longest request", "limits"),
    Option("connections", int, 10_000, "most connections at once", "limits"),
    Option("outstanding", int, 65_536, "unanswered requests after which a connection is no longer read", "limits"),
    Option("unread-bytes", int, 64 << 20, "unread replies after which a connection is closed", "limits"),
    Option("handshake-timeout", float, 10.0, "seconds a connection may take for its handshake", "limits"),
    Option("frame-timeout", float, 30.0, "seconds an incomplete request may wait for its rest", "limits"),
    Option("idle-timeout", float, 0.0, "seconds a connection may be silent; 0: unlimited", "limits"),
    Option("keepalive", float, 60.0, "seconds until a peer on a vanished machine is detected", "limits"),
    Option("held-bytes", int, 1 << 30, "incomplete requests and unread replies of all connections; above it the "
           "connection that holds most is closed", "limits"),
    Option("tls-cert", str, "", "server certificate (PEM): TCP is served by TLS only (clients: option tlsCa; Java's: "
           "setTlsEnabled)", "security"),
    Option("tls-key", str, "", "key of --tls-cert", "security"),
    Option("tls-client-ca", str, "", "clients must present a certificate of this authority (option tlsCert)",
           "security"),
    Option("token-file", str, "", "file whose content clients must send in their handshake (option tokenFile); Java "
           "clients cannot", "security"),
    Option("token-in-clear", _yes_or_no, False, "yes: allow --token-file without --tls-cert on an address that other "
           "machines can reach; the token is sent unencrypted", "security"),
)  # fmt: skip

FOLDER_DEFAULTS: Final = {"conflict-map-entries": 1 << 20}
"""Defaults of a folder's TSO that its clients start: a smaller conflict map (20 MB)."""


def read_options(arguments: argparse.Namespace, environment: os._Environ[str] | dict[str, str]) -> dict[str, Any]:
    """Return every option's value by name. `Misuse` names a wrong option, and where it was given."""
    from_file = _file_options(arguments.config or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG", ""))
    defaults = FOLDER_DEFAULTS if arguments.on_demand else {}
    options: dict[str, Any] = {}
    for option in OPTIONS:
        places = [
            (f"--{option.name}", getattr(arguments, option.attribute)),
            (_variable(option.name), environment.get(_variable(option.name))),
            (f"{option.name} in the file", from_file.get(option.name)),
        ]
        where, given = next((place for place in places if place[1] is not None), ("", None))
        if where:
            options[option.name] = _value(option, given, where)
        else:
            options[option.name] = defaults.get(option.name, option.default)
    return options


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + _attribute(name).upper()


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
        raise Misuse("a config file needs PyYAML: install pyomid with its extra, pyomid[server]") from error

    try:
        content = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise Misuse(f"config file {path}: {error}") from error
    if not isinstance(content, dict):
        raise Misuse(f"config file {path} is not a list of option: value lines")
    known = {option.name for option in OPTIONS}
    for name in content:
        if name not in known:
            raise Misuse(f"config file {path}: unknown option {name!r}; known: {', '.join(sorted(known))}")
    return content
