"""The options of `pyomid tso`: from the command line, the environment, a file, or the default, in this order."""

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
    """One option of the command, from whichever place it was given."""

    name: str
    kind: Callable[[str], Any]
    default: Any
    text: str
    group: str = "service"
    former: str = ""
    """Its name in the last release, which is taken too."""

    @property
    def names(self) -> list[str]:
        return [self.name, self.former] if self.former else [self.name]

    @property
    def attribute(self) -> str:
        return _attribute(self.name)


def _attribute(name: str) -> str:
    return name.replace("-", "_")


def _one_of(*words: str) -> Callable[[str], str]:
    def word(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return word


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no", "true", "false"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text.lower() in ("yes", "true")


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError("it is between 0 and 1")
    return share


def _duration(text: str) -> float:
    try:
        return duration_s(text)
    except Misuse as error:
        raise ValueError(error.message) from error


OPTIONS: Final = (
    Option("listen", str, "", "HOST:PORT to serve on (Apache Omid's port is 24758); port 0 chooses a free one"),
    Option("unix", str, "", "path of a Unix socket to serve on"),
    Option("store", str, "memory", "where commits go: memory, omid:///folder, omid+hbase://zk1:2181/znode"),
    Option("idle-exit", float, 0.0, "end after this many seconds without connection or lease; 0: never"),
    Option("log-file", str, "", "file of log lines, one JSON object each; default: standard error"),
    Option("log-level", str, "info", "debug, info, warning or error"),
    Option("metrics", str, "", "HOST:PORT for Prometheus (/metrics), health (/health) and readiness (/ready)"),
    Option("conflict-map-entries", int, 16_000_000, "cells remembered; fewer: more false aborts", "oracle"),
    Option("memory-entries", int, 4_000_000, "--store memory: commits remembered; older ones, and transactions older "
           "than they, are forgotten", "oracle"),
    Option("unknown-tables", int, 1000, "table ids that nobody registered; commits that name more are refused",
           "oracle"),
    Option("leases", int, 10_000, "most leases at once", "oracle"),
    Option("max-transaction-age", float, 600.0, "a transaction without a lease cannot commit after, seconds", "oracle"),
    Option("retention", _duration, None, "for how long history is kept, to be read as of then: 7d, 12h, 30m; 0: "
           "no longer than somebody reads it; default: as this database was told last", "oracle"),
    Option("lease-term", float, 300.0, "seconds a lease lasts without renewal", "oracle"),
    Option("commit-retry", float, 600.0, "seconds for which retries of large commits are matched", "oracle"),
    Option("timestamps", _one_of("incremental", "world-time"), "incremental", "incremental, or world-time: not below "
           "the wall clock", "oracle"),
    Option("leader-lease", float, 10.0, "omid+hbase: seconds until a standby replaces a silent leader", "cluster"),
    Option("announce", str, "", "omid+hbase: HOST:PORT that clients are told, if not --listen", "cluster"),
    Option("upkeep", _share, 0.1, "omid:///folder: the share of one core, and of the time of the store's writer lock, "
           "that compaction and sanitizing in the background may take; 0: none", "upkeep"),
    Option("transaction-id-days", float, 30.0, "omid:///folder: an idempotency key is so old when it shrinks to a hash "
           "of its id; 0: never", "upkeep"),
    Option("kernel", _one_of("on", "off", "auto"), "on", "on: compiled decisions, where numba is installed; off: "
           "plain; auto: plain until the kernels are there, which another process compiles if need be", "oracle"),
    Option("flushes-in-flight", int, 2, "flushes of the commit table at once; more where it is far away", "batches",
           former="flights"),
    Option("batch-entries", int, 16_384, "most commits in one flush", "batches"),
    Option("window-starts", int, 4_096, "begins that one flush can last for", "batches"),
    Option("stall", float, 1.0, "after such a gap the epoch is read before replying, seconds", "batches"),
    Option("store-retry", float, 30.0, "a failing store is asked again, seconds until it ends the process; a TSO "
           "that starts waits as long for one that does not answer", "batches"),
    Option("frame-bytes", int, 10 << 20, "longest request", "limits"),
    Option("connections", int, 10_000, "most connections at once", "limits"),
    Option("outstanding", int, 65_536, "unanswered requests of one connection after which it is not read", "limits"),
    Option("unread-bytes", int, 64 << 20, "answers a connection does not read before it is cut off", "limits"),
    Option("handshake-timeout", float, 10.0, "seconds a connection may take for its handshake", "limits"),
    Option("frame-timeout", float, 30.0, "seconds half a request may wait for its rest", "limits"),
    Option("idle-timeout", float, 0.0, "seconds a connection may be silent; 0: for ever", "limits"),
    Option("keepalive", float, 60.0, "seconds until a peer whose machine is gone without a word is noticed", "limits"),
    Option("held-bytes", int, 1 << 30, "unfinished requests and unread answers of all connections; beyond it who "
           "holds most is cut off", "limits"),
    Option("tls-cert", str, "", "server certificate (PEM): TCP is served by TLS only (clients: option tlsCa; Java's: "
           "setTlsEnabled)", "security"),
    Option("tls-key", str, "", "its key", "security"),
    Option("tls-client-ca", str, "", "clients must show a certificate of this authority (option tlsCert)",
           "security"),
    Option("token-file", str, "", "file whose content clients must show in their handshake (option tokenFile); no Java "
           "client has one", "security"),
    Option("token-in-clear", _yes_or_no, False, "yes: with --token-file serve on an address that is not this machine's "
           "own without --tls-cert; whoever listens on the way reads the token", "security"),
)  # fmt: skip

FOLDER_DEFAULTS: Final = {"conflict-map-entries": 1 << 20, "kernel": "auto"}
"""Where the TSO of a folder differs from one started by hand: a conflict map for one machine (20 MB)."""


def read_options(arguments: argparse.Namespace, environment: os._Environ[str] | dict[str, str]) -> dict[str, Any]:
    """Every option's value by name. `Misuse` names an option that is wrong, and where it was given."""
    from_file = _file_options(arguments.config or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG", ""))
    defaults = FOLDER_DEFAULTS if arguments.on_demand else {}
    options: dict[str, Any] = {}
    for option in OPTIONS:
        places = [
            (f"--{option.name}", getattr(arguments, option.attribute)),
            *((variable, environment.get(variable)) for variable in map(_variable, option.names)),
            *((f"{name} in the file", from_file.get(name)) for name in option.names),
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
        raise Misuse(f"{where}: {given!r} is no value for it ({error})") from error


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
    known = {name for option in OPTIONS for name in option.names}
    for name in content:
        if name not in known:
            raise Misuse(f"config file {path}: there is no option {name!r}; known: {', '.join(sorted(known))}")
    return content
