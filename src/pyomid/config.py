"""Settings, checked once at the edge: a URL and its options in, an `Address` and `Settings` out.

    omid:///folder?leaseSeconds=300                     embedded: a folder of LMDB environments
    omid+hbase://zk1:2181,zk2:2181/hbase?…              a cluster, found through ZooKeeper
    omid-memory:name                                    this process only, for tests

Option names are compared without case, dashes and underscores (`leaseSeconds`, `lease_seconds`, and what Spark
makes of them, `leaseseconds`, are one option). An unknown one is refused with the nearest that exists.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pyomid.errors import Misuse, MisuseType


@dataclass(frozen=True, slots=True)
class EmbeddedAddress:
    """A folder on this machine; absolute."""

    folder: str


@dataclass(frozen=True, slots=True)
class HBaseAddress:
    """ZooKeeper's quorum as "host:port,host:port" and HBase's parent znode."""

    quorum: str
    znode: str


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """A name inside this process; every connection to one name shares one database."""

    name: str


Address = EmbeddedAddress | HBaseAddress | MemoryAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be set, with its default and the reason for it. Seconds unless a name says otherwise."""

    lease_seconds: float = 300.0
    """The term of a lease. A driver that died holds the watermark back at most this long. One that lives renews its
    lease every third of it, so a task may wait in a busy cluster's queue for a minute or two without losing it."""

    max_transaction_age_seconds: float = 600.0
    """Older transactions without a lease cannot commit; this bounds for how long a transaction that is open, or whose
    process was stopped or killed, keeps history. Where all have ended, history goes within seconds. Ten minutes is ten
    times what a person waits, and short enough that a quiet store is clean within the hour."""

    commit_retry_seconds: float = 60.0
    """How long the client repeats a request for a commit whose answer was lost, before it raises `OutcomeUnknown`:
    longer than a TSO's restart or fail-over (about the 10 s lease plus 2 s), shorter than people's patience. Other
    requests wait as long for a TSO. One that waits for 2 s says so in the log. Sanitizing waits at least this long."""

    request_seconds: float = 5.0
    """A request without an answer is sent again after this time; Apache Omid's client uses the same. Over HBase a
    client whose TSO is silent for a second looks once a second whether ZooKeeper names another TSO, and goes there at
    once."""

    tso_idle_exit_seconds: float = 60.0
    """The on-demand TSO of a folder ends this long after its last connection and lease: a shell loop of short programs
    shares one TSO, and no process stays that nothing uses."""

    conflict_map_entries: int = 1 << 20
    """Cells that the TSO remembers. 1 M entries take about 20 MB, enough for one machine. A TSO started by hand takes
    16 M."""

    flush_bytes: int = 4 << 20
    """Own writes are buffered up to this many bytes of keys and values, then go to the store in one batch: large enough
    that a batch costs its bytes and not its fsync, small enough for any process."""

    scan_batch_rows: int = 1_000
    """Rows that a scan fetches at once: some hundred kilobytes, so that the first row still comes soon."""

    retries: int = 20
    """How many times at most `db.transactional` runs a function again on `ConflictError`."""

    retry_backoff_ms: float = 2.0
    """The upper bound of the first back-off; it doubles each time. About one commit's time on a local disk."""

    retry_backoff_ms_max: float = 1_000.0
    """No back-off is longer than this."""

    completion_linger_ms: float = 20.0
    """How long shadow cells of finished transactions are gathered before they are written, off the caller's path: at a
    thousand commits a second one durable write then serves twenty of them. Meanwhile readers find the commit in the
    commit table."""

    completion_cells_max: int = 100_000
    """How many cells may wait for their shadow cells. Beyond it repairs by readers are dropped, and commits wait for
    room."""

    commit_cache_entries: int = 100_000
    """Known commits (start → commit) that a client remembers: they never change, and 100 k of them take about 15 MB."""

    catalog_cache_seconds: float = 0.0
    """How long a client keeps a table's catalog entry. 0 reads it at each transaction's first use of a table: a local
    lookup of some microseconds. HBase's default is 30, because the entry costs a round trip there. A table that was
    dropped meanwhile is noticed at the next begin, whatever is set here; under a Java TSO, which does not tell of
    drops, the entry is read in each transaction."""

    create: bool = True
    """Embedded: a folder that holds no database becomes one. With `false` it is refused, so that a path with a slip of
    the pen in it makes none."""

    folder_access: str = "owner"
    """Embedded: the users of the folder. `owner`: only its owner may read its files. `group`: a new folder is made for
    its group too, and a folder that another user made so may be used. The first of these users starts the TSO for all.
    """

    map_size_gib: float = 64.0
    """Embedded: the size to which each of the folder's LMDB environments may grow. This is address space, not disk
    space."""

    retention: str = ""
    """Embedded: for how long history is kept, so that it can be read as of a time in the past: `7d`, `12h`, `30m`; `0`:
    no longer than a reader needs it. A folder keeps the last value; its TSO uses it from its next start on.
    Over HBase it is an option of `pyomid tso`."""

    transaction_id_days: float = 30.0
    """An idempotency key (`run_once`, `transaction_id`) keeps its run's result and start for so long. After that upkeep
    leaves six bytes of it: its id still never commits again. 0: all is kept for ever. A folder goes by that of the
    client that started its TSO, HBase by that of the client that calls `expire` or `compact`."""

    upkeep_share: float = 0.1
    """Embedded: the share of one core, and of the time of the store's writer lock, that the folder's TSO may take for
    compaction and sanitizing in the background, which keep its size and its scans as those of a fresh one; 0: none. A
    tenth cleans some ten thousand versions a second."""

    ceiling: str = "hbase"
    """HBase: where the TSO keeps its timestamp ceiling, as the Java TSO of the deployment does: `hbase` (a table) or
    `zookeeper` (a znode). A TSO refuses to start where the other place holds a higher one; `pyomid init` moves it."""

    durability: str = "table"
    """HBase: when a write counts as durable. `table`: as the table and the servers are configured. `sync`: in the
    memory of the log's replicas. `fsync`: on their disks, which survives loss of power everywhere at once and costs a
    disk flush for each write."""

    others_seal: bool = False
    """HBase, for a TSO: other clients place invalidation markers within its epoch too: Java clients that call `fence()`
    or read in low-latency mode. The TSO then reads the markers of each flush back before it answers, one more round
    trip for each flush."""

    store_retry_seconds: float = 60.0
    """HBase: how long an operation is repeated while HBase or ZooKeeper does not answer, is starting, or has no server
    for a region, before it raises `Unavailable`: longer than the recovery of a region server. One that waits for 2 s
    says so in the log."""

    tls_ca: str = ""
    """HBase: a file with the authority (PEM) that must have signed the TSO's certificate. With it, connections to the
    TSO use TLS, as `pyomid tso --tls-cert` serves it; without it they are plain. The file must be on every machine of a
    job."""

    tls_cert: str = ""
    """HBase: a file with the certificate (PEM) that this client shows to a TSO with `--tls-client-ca`."""

    tls_key: str = ""
    """HBase: a file with the key of `tlsCert`, if that file does not hold it."""

    hbase_tls_ca: str = ""
    """HBase 2.6: a file with the authority (PEM) that must have signed the certificates of HBase's servers. With it,
    all connections to them use TLS (`hbase.server.netty.tls.enabled`)."""

    hbase_tls_cert: str = ""
    """HBase: a file with the certificate (PEM) that is shown to HBase's servers."""

    hbase_tls_key: str = ""
    """HBase: a file with the key of `hbaseTlsCert`, if that file does not hold it."""

    zookeeper_tls_ca: str = ""
    """HBase: a file with the authority (PEM) that must have signed the certificates of ZooKeeper's servers. With it,
    the quorum's ports are those of TLS (`secureClientPort`)."""

    zookeeper_tls_cert: str = ""
    """HBase: a file with the certificate (PEM) that is shown to ZooKeeper's servers."""

    zookeeper_tls_key: str = ""
    """HBase: a file with the key of `zookeeperTlsCert`, if that file does not hold it."""

    token_file: str = ""
    """HBase: a file whose content is shown to a TSO with `--token-file`. It is a file so that no URL holds a secret."""

    authentication: str = "simple"
    """HBase: how this client says who it is to HBase and ZooKeeper. `simple`: by the name of the operating system's
    user, which a server without security believes. `kerberos`: by a ticket; needs the extra `kerberos`."""

    principal: str = ""
    """HBase, `kerberos`: who this client is, as `app@EXAMPLE.COM`; without it, whose ticket is in the ticket cache."""

    keytab: str = ""
    """HBase, `kerberos`: a file with the key of `principal`. Tickets are taken by it and renewed. Without it they are
    those of the ticket cache (KRB5CCNAME), which others must keep fresh. The file must be on every machine of a job."""

    hbase_principal: str = "hbase/_HOST"
    """HBase, `kerberos`: the principal of its servers (`hbase.regionserver.kerberos.principal`), with `_HOST` for the
    name of each. Without a realm, it is the one that krb5.conf has for the host."""

    zookeeper_principal: str = "zookeeper/_HOST"
    """HBase, `kerberos`: the principal of ZooKeeper's servers; `none` for a ZooKeeper without SASL."""

    rpc_protection: str = ""
    """HBase, `kerberos`: `authentication`, `integrity` or `privacy`, of which HBase must offer this one
    (`hbase.rpc.protection`). Without it, the strongest that HBase offers."""

    run_as: str = ""
    """HBase, `kerberos`: in whose name HBase performs this client's calls, with that user's rights. HBase must let
    `principal` do so (`hadoop.proxyuser`). ZooKeeper knows `principal` alone."""

    def __post_init__(self) -> None:
        for option in fields(self):
            _check(option.name, getattr(self, option.name))


def parse_url(url: str, **options: object) -> tuple[Address, Settings]:
    """The address and the settings that `url` and `options` name; options given twice must agree.

    Raises `Misuse` naming the value and the rule it breaks.
    """
    if not isinstance(url, str):
        raise MisuseType(f"url {url!r} is {type(url).__name__}, not a string", value=url)
    parts = urlsplit(url)
    parse = _SCHEMES.get(parts.scheme)
    if parse is None:
        near = difflib.get_close_matches(parts.scheme, _SCHEMES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}:?" if near else ""
        raise Misuse(
            f"url {url!r} begins with none of omid:///folder, omid+hbase://host:port,…/znode, omid-memory:name{hint}",
            url=url,
        )
    if parts.fragment:
        raise Misuse(f"url {url!r} has a fragment (#{parts.fragment}), which means nothing here", url=url)
    address = parse(url, parts.netloc, unquote(parts.path))
    given = dict(_query_options(url, parts.query))
    for name, value in options.items():
        known = option_name(name)
        if known in given and given[known] != value:
            raise Misuse(f"option {known} is given twice, as {given[known]!r} and {value!r}", option=known)
        given[known] = value
    settings = make_settings(given, base=_base(address))
    if not isinstance(address, HBaseAddress):
        for known in _OF_HBASE:
            if known in given:
                raise Misuse(f"option {camel_case(known)} is of omid+hbase:// alone, not of {url!r}", option=known)
    elif settings.retention:
        raise Misuse("option retention is of a folder: over HBase give `pyomid tso --retention`", option="retention")
    return address, settings


def make_settings(options: Mapping[str, object], *, base: Settings | None = None) -> Settings:
    """`base` with `options`, whose values may be text (from a URL, the environment or Spark)."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        known = option_name(name)
        if known in values:
            raise Misuse(f"option {known} is given twice", option=known)
        values[known] = _converted(known, value)
    return replace(base or Settings(), **values)


def option_name(name: str) -> str:
    """The setting that `name` means, whatever its case and dashes; `Misuse` with the nearest one if none."""
    found = _OPTIONS.get(_folded(name))
    if found is not None:
        return found
    near = difflib.get_close_matches(_folded(name), _OPTIONS, n=1, cutoff=0.5)
    hint = f"; did you mean {camel_case(_OPTIONS[near[0]])}?" if near else f"; known: {_option_list()}"
    raise Misuse(f"unknown option {name!r}{hint}", option=name)


def camel_case(name: str) -> str:
    """A setting's name as URLs spell it."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def duration_s(text: str) -> float:
    """Seconds, of text as people write it: "7d", "12h", "30m", "90s", "90"."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise Misuse(f"{text!r} is no length of time: 7d, 12h, 30m, 90s, or 0", value=text)
    seconds = float(found[1]) * _UNITS_S[found[2]]
    if seconds > DURATION_S_MAX:
        raise Misuse(f"{text!r} is over a hundred years", value=text)
    return seconds


DURATION_S_MAX: Final = 36_500 * 86_400.0

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


_SHORTHANDS: Final = {
    "maxtransactionage": "max_transaction_age_seconds",
    "idleexitseconds": "tso_idle_exit_seconds",
    "cataloguecacheseconds": "catalog_cache_seconds",  # its former name, kept for one release
}
_OPTIONS: Final[dict[str, str]] = {_folded(option.name): option.name for option in fields(Settings)} | _SHORTHANDS
_TYPES: Final[dict[str, type]] = {option.name: type(option.default) for option in fields(Settings)}

_LOWEST: Final[dict[str, float]] = {
    "lease_seconds": 0.1,
    "max_transaction_age_seconds": 0.1,
    "commit_retry_seconds": 0.1,
    "request_seconds": 0.01,
    "store_retry_seconds": 0.1,
    "conflict_map_entries": 32,
    "flush_bytes": 1,
    "scan_batch_rows": 1,
    "completion_cells_max": 1,
    "map_size_gib": 0.001,
}
"""The least values that make sense; 0 for the other options."""


_CHOICES: Final = {
    "folder_access": ("owner", "group"),
    "ceiling": ("hbase", "zookeeper"),
    "durability": ("table", "sync", "fsync"),
    "authentication": ("simple", "kerberos"),
    "rpc_protection": ("", "authentication", "integrity", "privacy"),
}
"""The values of options that take one of a few words."""

_OF_HBASE: Final = (
    "ceiling",
    "durability",
    "others_seal",
    "store_retry_seconds",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "token_file",
    "authentication",
    "principal",
    "keytab",
    "hbase_principal",
    "zookeeper_principal",
    "rpc_protection",
    "run_as",
    "hbase_tls_ca",
    "hbase_tls_cert",
    "hbase_tls_key",
    "zookeeper_tls_ca",
    "zookeeper_tls_cert",
    "zookeeper_tls_key",
)
"""Refused for other stores, where they would mean nothing."""


def _check(name: str, value: object) -> None:
    kind = _TYPES[name]
    if kind is bool:
        if not isinstance(value, bool):
            raise MisuseType(f"option {camel_case(name)}={value!r} is neither true nor false", option=name, value=value)
        return
    if kind is str:
        if not isinstance(value, str):
            raise MisuseType(f"option {camel_case(name)}={value!r} is not a string", option=name, value=value)
        if name == "retention" and value:
            duration_s(value)
        if name in _CHOICES and value not in _CHOICES[name]:
            known = ", ".join(_CHOICES[name])
            near = difflib.get_close_matches(value.lower(), _CHOICES[name], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Misuse(f"option {camel_case(name)}={value!r} is none of {known}{hint}", option=name, value=value)
        return
    if name == "upkeep_share" and isinstance(value, float) and value > 1:
        raise Misuse(f"option upkeepShare={value!r} is above 1, one whole core", option=name, value=value)
    if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
        what = "a whole number" if kind is int else "a number"
        raise MisuseType(f"option {camel_case(name)}={value!r} is not {what}", option=name, value=value)
    lowest = _LOWEST.get(name, 0)
    if not math.isfinite(value) or value < lowest:
        raise Misuse(f"option {camel_case(name)}={value!r} is below its least value {lowest}", option=name, value=value)


def _converted(name: str, value: object) -> int | float | str | bool:
    kind = _TYPES[name]
    if kind is bool and isinstance(value, str):
        return _BOOLEANS.get(value.strip().lower(), value)
    if kind in (bool, str):
        return value.strip() if isinstance(value, str) else value  # type: ignore[return-value]  # checked later
    try:
        if isinstance(value, str):
            return kind(value.strip())  # type: ignore[no-any-return]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise Misuse(f"option {camel_case(name)}={value!r} is not {what}", option=name, value=value) from None
    return value  # type: ignore[return-value]  # Settings itself checks what is neither


_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _option_list() -> str:
    return ", ".join(camel_case(option.name) for option in fields(Settings))


def _query_options(url: str, query: str) -> Iterator[tuple[str, object]]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise Misuse(f"url {url!r}: the options after '?' are not name=value pairs joined by '&'", url=url) from error
    seen: set[str] = set()
    for name, value in pairs:
        known = option_name(name)
        if known in seen:
            raise Misuse(f"url {url!r} gives option {name} twice", url=url, option=known)
        seen.add(known)
        yield known, _converted(known, value)


def _embedded(url: str, netloc: str, path: str) -> Address:
    if netloc:
        raise Misuse(
            f"url {url!r} names a host {netloc!r}: the embedded store is a local folder, write omid:///absolute/folder",
            url=url,
        )
    if not path.startswith("/") or path.rstrip("/") == "":
        raise Misuse(f"url {url!r} names no absolute folder, write omid:///absolute/folder", url=url)
    return EmbeddedAddress(path.rstrip("/"))


def _hbase(url: str, netloc: str, path: str) -> Address:
    hosts = [host for host in netloc.split(",") if host]
    if not hosts:
        raise Misuse(f"url {url!r} names no ZooKeeper server, write omid+hbase://host:2181,host:2181/hbase", url=url)
    return HBaseAddress(",".join(_host_and_port(url, host) for host in hosts), path.rstrip("/") or "/hbase")


def _host_and_port(url: str, text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon:
        return f"{text}:2181"
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Misuse(f"url {url!r}: {text!r} is not host:port", url=url)
    return text


def _memory(url: str, netloc: str, path: str) -> Address:
    name = (netloc + path).strip("/")
    if not name:
        raise Misuse(f"url {url!r} names no database, write omid-memory:name", url=url)
    return MemoryAddress(name)


def _base(address: Address) -> Settings:
    return Settings(catalog_cache_seconds=30.0) if isinstance(address, HBaseAddress) else Settings()


_SCHEMES: Final[dict[str, Callable[[str, str, str], Address]]] = {
    "omid": _embedded,
    "omid+hbase": _hbase,
    "omid-memory": _memory,
}
