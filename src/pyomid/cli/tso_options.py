"""The options of `pyomid tso`: each comes from the command line, else the environment, else a file, else its default.

They concern the process. The options of the database (`config.Settings`) are in its URL, --store.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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


OPTIONS: Final = (
    Option("listen", str, "", "HOST:PORT to serve on (Apache Omid's port is 24758); port 0 chooses a free one; needed "
           "for clients on other machines"),
    Option("store", str, "omid-memory:tso", "URL of the database to serve: omid:///folder, omid+hbase://zk1:2181/znode "
           "or, for a trial, omid-memory:NAME; its options are in docs/options.md"),
    Option("metrics", str, "", "HOST:PORT for Prometheus (/metrics), health (/health) and readiness (/ready); set it "
           "if something monitors the process"),
    Option("log-level", _one_of("debug", "info", "warning", "error"), "info", "lowest level that is logged to standard "
           "error: debug (to report a problem), info, warning or error"),
    Option("connections", int, 10_000, "most connections at once; set it for more clients, or for fewer on a small "
           "machine"),
    Option("announce", str, "", "HOST:PORT announced to clients; set it if they cannot reach the address of --listen, "
           "as behind NAT or in Kubernetes", "omid+hbase"),
    Option("leader-lease", float, 10.0, "seconds until a standby replaces a silent leader; shorter for a faster "
           "failover, longer if pauses of a machine cause failovers", "omid+hbase"),
    Option("timestamps", _one_of("incremental", "world-time"), "incremental", "world-time: not below the wall clock; "
           "set it before existing tables are adopted", "omid+hbase"),
    Option("flushes-in-flight", int, 2, "most concurrent flushes of the commit table; set more if a round trip to it "
           "takes milliseconds", "omid+hbase"),
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
    """Return every option's value by name. `Misuse` if a value is invalid; it says where the value was given."""
    from_file = _file_options(arguments.config or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG", ""))
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
            options[option.name] = option.default
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
