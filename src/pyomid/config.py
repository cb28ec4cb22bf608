"""Settings: parses and checks a URL and its options, and returns an `Address` and `Settings`.

    omid:///folder?leaseSeconds=300                     embedded: a folder with an LMDB environment
    omid+hbase://zk1:2181,zk2:2181/hbase?…              a cluster, found through ZooKeeper
    omid-memory:name                                    this process only, for tests

Option names are compared without case, dashes and underscores: `leaseSeconds`, `lease_seconds` and Spark's
`leaseseconds` are the same option. An unknown name raises `Misuse`, which names the nearest option.
"""

from __future__ import annotations

import difflib
import logging
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from pyomid.errors import Misuse, MisuseType
from pyomid.types import python_scalar

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EmbeddedAddress:
    """The absolute path of a folder on this machine."""

    folder: str


@dataclass(frozen=True, slots=True)
class HBaseAddress:
    """ZooKeeper's quorum as "host:port,host:port" and HBase's parent znode."""

    quorum: str
    znode: str


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """A name in this process; all connections to one name share a database."""

    name: str


Address = EmbeddedAddress | HBaseAddress | MemoryAddress

FolderAccess = Literal["owner", "group"]
Ceiling = Literal["hbase", "zookeeper"]
Durability = Literal["table", "sync", "fsync"]
Authentication = Literal["simple", "kerberos"]
RpcProtection = Literal["", "authentication", "integrity", "privacy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSettings:
    """The options of every kind of database, each with its default. Times are in seconds, unless the name says
    otherwise."""

    lease_seconds: float = 300.0
    """Term of a lease. The client renews a lease after a third of the term. If a client dies, its lease holds the
    watermark back until the term ends."""

    max_transaction_age_seconds: float = 600.0
    """Maximum age of a transaction without a lease. An older transaction no longer holds the watermark back, and cannot
    commit writes. In a folder, an older transaction can still commit until the watermark passes its start."""

    commit_retry_seconds: float = 60.0
    """How long a client retries a request to the TSO. After this time, a commit whose reply was lost raises
    `OutcomeUnknown`, and any other request raises `Unavailable`. The value must exceed the duration of a TSO failover
    (about 12 s). In a folder, only `sanitize` uses this option."""

    request_seconds: float = 5.0
    """Timeout of one request to the TSO. If the TSO has not replied by then, the client sends the request again."""

    conflict_map_entries: int = 1 << 20
    """Number of cells that the TSO remembers for conflict checks; a million cells take about 20 MB. The default of
    `pyomid tso` is 16 million."""

    reported_ids_max: int = 16_000_000
    """Maximum number of conflict ids of Spark transactions that the TSO keeps, in addition to the conflict map. Each id
    takes 8 bytes. If the TSO has no room for a transaction's ids, the transaction claims whole tables."""

    flush_bytes: int = 4 << 20
    """Size of a transaction's write buffer. The client sends a full buffer to the store as one batch."""

    scan_batch_rows: int = 1_000
    """Number of rows that a scan fetches at once."""

    retries: int = 200
    """Maximum number of reruns by `run`, `run_once` and `transactional`."""

    retry_backoff_ms: float = 2.0
    """Minimum length of the unit of the random back-off between attempts. Normally, the unit is as long as the run's
    shortest attempt. A back-off lasts up to 32 units; after many conflicts the maximum is lower."""

    retry_backoff_ms_max: float = 1_000.0
    """Maximum length of one back-off."""

    completion_linger_ms: float = 20.0
    """How long a client collects the shadow cells of its commits before it writes the shadow cells in the background.
    In a folder, only large commits have shadow cells."""

    completion_cells_max: int = 100_000
    """Maximum number of cells that wait for their shadow cells. When this number is reached, further commits wait."""

    commit_cache_entries: int = 100_000
    """Number of commits (start → commit timestamp) that a client caches; 100 000 take about 15 MB."""

    catalog_cache_seconds: float = 0.0
    """How long a client caches a table's catalog entry. With 0, the client caches the entry only within one
    transaction; only `omid-memory:` has this default. Over HBase the default is 30. In a folder the default is 3600,
    because each new transaction checks whether an entry changed."""

    create: bool = True
    """Embedded: whether to create a database if the folder does not contain one. With `false`, a mistyped path raises
    an error."""

    folder_access: FolderAccess = "owner"
    """Embedded: with `owner`, only the folder's owner may use the folder. With `group`, pyomid creates a new folder
    with access for the folder's group, and also accepts a folder of another user that grants this access."""

    map_size_gib: float = 64.0
    """Embedded: maximum size of the folder's data. Each process reserves this size as address space. If the value is
    above 64, give all clients the same value."""

    accept_clock: bool = False
    """Open the database even if this machine's clock is more than 400 days ahead of the database's last use. For a new
    database, the option permits a clock more than five years ahead of this version's release. Set the option once,
    after checking the clock."""

    retention: str = ""
    """How long history is kept: `7d`, `12h`, `30m`. With `0`, history is kept only while a reader needs it. The
    database stores the value for later connections. Over HBase, put the option in the URL of the TSO."""

    run_id_days: float = 30.0
    """Number of days for which the idempotency key of a run id (`run_once`) keeps the run's result; 0 means for ever.
    Even after this time, a run with the same id does not commit again. A folder uses the value of the process that
    performs the folder's upkeep. Over HBase, `expire` and `compact` use the value of the calling client."""

    upkeep_share: float = 0.1
    """Embedded: maximum share of one core, and of the writer lock, that this process uses for upkeep; 0 turns upkeep
    off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CommonSettings):
    """All options: the common options, and the options of a database over HBase."""

    ceiling: Ceiling = "hbase"
    """HBase: where the TSO keeps its timestamp ceiling: `hbase` (a table) or `zookeeper` (a znode). If the deployment
    has a Java TSO, choose the place where the Java TSO keeps the ceiling."""

    zk_namespace: str = "omid"
    """HBase: ZooKeeper namespace that contains the TSO's lease and address; Omid has the same option. The value `omid`
    means the znode `/omid`."""

    commit_table_name: str = "OMID_COMMIT_TABLE"
    """HBase: name of the commit table; Omid has the same option. pyomid creates its own tables in the HBase namespace
    of the commit table. A namespace can contain only one database."""

    timestamp_table_name: str = "OMID_TIMESTAMP_TABLE"
    """HBase: name of the table that holds the timestamp ceiling. Omid's timestamp storage calls this option
    `tableName`."""

    durability: Durability = "table"
    """HBase: when a write counts as durable. With `table`, the settings of the table and of the servers decide. With
    `sync`, a write is durable when the log's replicas have it in memory. With `fsync`, a write is durable when the
    replicas have it on disk, which costs a disk flush per write."""

    others_seal: bool = False
    """HBase: only a TSO uses this option. Set it if other clients write invalidation markers for transactions of the
    current TSO epoch, as Java clients do if they call `fence()` or read in low-latency mode."""

    store_retry_seconds: float = 60.0
    """HBase: how long a client retries an operation while HBase or ZooKeeper is down or starting. After this time, the
    operation raises `Unavailable`."""

    tls_ca: str = ""
    """HBase: CA certificate (PEM file) for the TSO's certificate. This option turns on TLS to the TSO; start the TSO
    with `--tls-cert`."""

    tls_cert: str = ""
    """HBase: this client's certificate (PEM file), for a TSO started with `--tls-client-ca`."""

    tls_key: str = ""
    """HBase: file with the private key of `tlsCert`. Omit the option if the file `tlsCert` contains the key."""

    hbase_tls_ca: str = ""
    """HBase: CA certificate (PEM file) for the certificates of HBase's servers (HBase 2.6 or later). This option turns
    on TLS to all these servers."""

    hbase_tls_cert: str = ""
    """HBase: this client's certificate (PEM file) for connections to HBase's servers."""

    hbase_tls_key: str = ""
    """HBase: file with the private key of `hbaseTlsCert`. Omit the option if the file `hbaseTlsCert` contains the
    key."""

    zookeeper_tls_ca: str = ""
    """HBase: CA certificate (PEM file) for the certificates of ZooKeeper's servers. This option turns on TLS to these
    servers. The URL must then contain ZooKeeper's TLS ports (`secureClientPort`)."""

    zookeeper_tls_cert: str = ""
    """HBase: this client's certificate (PEM file) for connections to ZooKeeper's servers."""

    zookeeper_tls_key: str = ""
    """HBase: file with the private key of `zookeeperTlsCert`. Omit the option if the file `zookeeperTlsCert` contains
    the key."""

    token_file: str = ""
    """HBase: file with the token for a TSO started with `--token-file`."""

    authentication: Authentication = "simple"
    """HBase: how the client identifies itself to HBase and ZooKeeper. With `simple`, the client uses the operating
    system's user name, which no server verifies. With `kerberos`, the client uses a Kerberos ticket."""

    principal: str = ""
    """`kerberos`: the client's principal, such as `app@EXAMPLE.COM`. The default is the principal of the ticket
    cache."""

    keytab: str = ""
    """`kerberos`: file with the key of `principal`. Without a keytab, the client uses the ticket cache (KRB5CCNAME)."""

    hbase_principal: str = "hbase/_HOST"
    """`kerberos`: principal of HBase's servers (`hbase.regionserver.kerberos.principal`); `_HOST` stands for each
    server's name."""

    zookeeper_principal: str = "zookeeper/_HOST"
    """`kerberos`: principal of ZooKeeper's servers. Give `none` if ZooKeeper does not use SASL."""

    rpc_protection: RpcProtection = ""
    """`kerberos`: protection of calls to HBase: `authentication`, `integrity` or `privacy`. HBase must offer the chosen
    protection (`hbase.rpc.protection`). The default is the strongest protection that HBase offers."""

    run_as: str = ""
    """`kerberos`: user on whose behalf HBase performs this client's calls (`hadoop.proxyuser`). ZooKeeper sees only
    `principal`."""

    def __post_init__(self) -> None:
        for option in fields(self):
            _check(option.name, getattr(self, option.name))


class Options(TypedDict, total=False):
    """The keyword arguments of `connect`: the fields of `Settings`, in their order, for editors and type checkers."""

    lease_seconds: float
    max_transaction_age_seconds: float
    commit_retry_seconds: float
    request_seconds: float
    conflict_map_entries: int
    reported_ids_max: int
    flush_bytes: int
    scan_batch_rows: int
    retries: int
    retry_backoff_ms: float
    retry_backoff_ms_max: float
    completion_linger_ms: float
    completion_cells_max: int
    commit_cache_entries: int
    catalog_cache_seconds: float
    create: bool
    folder_access: FolderAccess
    map_size_gib: float
    accept_clock: bool
    retention: str
    run_id_days: float
    upkeep_share: float
    ceiling: Ceiling
    zk_namespace: str
    commit_table_name: str
    timestamp_table_name: str
    durability: Durability
    others_seal: bool
    store_retry_seconds: float
    tls_ca: str
    tls_cert: str
    tls_key: str
    hbase_tls_ca: str
    hbase_tls_cert: str
    hbase_tls_key: str
    zookeeper_tls_ca: str
    zookeeper_tls_cert: str
    zookeeper_tls_key: str
    token_file: str
    authentication: Authentication
    principal: str
    keytab: str
    hbase_principal: str
    zookeeper_principal: str
    rpc_protection: RpcProtection
    run_as: str


def parse_url(url: str, **options: object) -> tuple[Address, Settings]:
    """Return the address and settings of `url` and `options`. An option in both must have the same value.

    If a value is wrong, `Misuse` names the value and the rule that it breaks.
    """
    return _parsed(url, options, None)


def parse_tso_url(url: str, defaults: Settings) -> tuple[Address, Settings]:
    """Return the address and settings of a TSO's URL, like `parse_url`. Options that the URL omits have their values in
    `defaults`."""
    return _parsed(url, {}, defaults)


def _parsed(url: str, options: Mapping[str, object], defaults: Settings | None) -> tuple[Address, Settings]:
    if not isinstance(url, str):
        raise MisuseType(f"url {url!r} is {type(url).__name__}, not a string", value=url)
    _check_text(f"url {url!r}", url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Misuse(f"url {url!r} is malformed: {error}", url=url) from error
    parse = _SCHEMES.get(parts.scheme)
    if parse is None:
        near = difflib.get_close_matches(parts.scheme, _SCHEMES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}:?" if near else ""
        raise Misuse(
            f"url {url!r} does not begin with omid:///folder, omid+hbase://host:port,…/znode or omid-memory:name{hint}",
            url=url,
        )
    if "#" in url:
        raise Misuse(f"url {url!r} has a fragment (#{parts.fragment}): write %23 for a # in a name", url=url)
    address = parse(url, parts.netloc, _decoded(url, parts.path))
    given = dict(_query_options(url, parts.query))
    for name, value in options.items():
        if _is_gone(name):
            continue
        known = option_name(name)
        if known in given and given[known] != value:
            raise Misuse(f"option {known} is given twice, as {given[known]!r} and {value!r}", option=known)
        given[known] = value
    settings = make_settings(given, base=defaults or _base(address))
    _refuse_options_of_others(url, address, given)
    return address, settings


def _refuse_options_of_others(url: str, address: Address, given: Collection[str]) -> None:
    """Raise `Misuse` for an option that this kind of database does not have."""
    is_folder = isinstance(address, EmbeddedAddress)
    for known in given:
        if known in _OF_HBASE and not isinstance(address, HBaseAddress):
            reason = f"is only for omid+hbase:// URLs, not for {url!r}; omit it"
        elif known in _OF_TSO and is_folder:
            reason = f"is only for a database with a TSO, and the folder {url!r} has no TSO; omit it"
        elif known in _OF_FOLDER and not is_folder:
            reason = f"is only for a folder (omid:///folder), not for {url!r}; omit it"
        else:
            continue
        raise Misuse(f"option {camel_case(known)} {reason}", option=known)


def _decoded(url: str, path: str) -> str:
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError as error:
        raise Misuse(f"url {url!r} has percent-encoded bytes that are not UTF-8: {error.reason}", url=url) from error
    _check_text(f"url {url!r}", decoded)
    return decoded


def path_of(path: object) -> Path:
    """Return `path` as a `Path`, checked by the rules for a folder in a URL."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise MisuseType(f"path {path!r} is {type(path).__name__}, not a string or a pathlib.Path", value=path)
    _check_text(f"path {os.fspath(path)!r}", os.fspath(path))
    return Path(path)


def _check_text(whole: str, text: str) -> None:
    """Refuse control characters in `text`; the error shows `whole`. `urlsplit` would drop some of these characters, and
    the URL would name another folder."""
    found = _REFUSED_CHARACTER.search(text)
    if found is not None:
        raise Misuse(
            f"{whole} contains the character {found[0]!r}: URLs, paths and options must be UTF-8 without control "
            "characters",
            character=found[0],
        )


_REFUSED_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters (Unicode's class Cc) and lone surrogates."""


def make_settings(options: Mapping[str, object], *, base: Settings | None = None) -> Settings:
    """Return `base` changed by `options`, whose values may be text (from a URL, the environment or Spark)."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        known = option_name(name)
        if known in values:
            raise Misuse(f"option {known} is given twice", option=known)
        values[known] = _converted(known, value)
    return replace(base or Settings(), **values)


def option_name(name: str) -> str:
    """Return the setting that `name` means, ignoring case, dashes and underscores. If there is none, `Misuse` names the
    nearest setting."""
    found = _OPTIONS.get(_folded(name))
    if found is not None:
        return found
    near = difflib.get_close_matches(_folded(name), _OPTIONS, n=1, cutoff=0.5)
    hint = f"; did you mean {camel_case(_OPTIONS[near[0]])}?" if near else f"; known: {_option_list()}"
    raise Misuse(f"unknown option {name!r}{hint}", option=name)


_GONE: Final = {"tsoidleexitseconds": "no TSO runs beside a folder any more"}
"""Options without effect, which existing URLs may still contain."""


def _is_gone(name: str) -> bool:
    reason = _GONE.get(_folded(name))
    if reason is not None:
        log.info("option %s has no effect: %s; omit it", name, reason)
    return reason is not None


def camel_case(name: str) -> str:
    """Return a setting's name as URLs spell it."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def duration_s(text: str) -> float:
    """Return the seconds of a duration such as "7d", "12h", "30m", "90s" or "90"."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise Misuse(invalid_duration(text), value=text)
    seconds = float(found[1]) * _UNITS_S[found[2]]
    if seconds > DURATION_S_MAX:
        raise Misuse(f"duration {text!r} exceeds the maximum of 100 years", value=text)
    return seconds


def invalid_duration(value: object) -> str:
    return f'invalid duration {value!r} (examples: "7d", "12h", "30m", "90s", "0")'


DURATION_S_MAX: Final = 36_500 * 86_400.0

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


_OPTIONS: Final[dict[str, str]] = {_folded(option.name): option.name for option in fields(Settings)}
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
"""Minimum values of options; the minimum of all other options is 0."""


_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "folder_access": get_args(FolderAccess),
    "ceiling": get_args(Ceiling),
    "durability": get_args(Durability),
    "authentication": get_args(Authentication),
    "rpc_protection": get_args(RpcProtection),
}
"""The values of options that accept one of a few words."""

_HBASE_TABLE: Final = (
    re.compile(r"(?:\w+:)?(?!PYOMID_)\w[\w.-]*", re.ASCII),
    "the name of an HBase table, [NAMESPACE:]NAME, where NAME does not begin with PYOMID_",
)
_PATTERNS: Final = {
    "zk_namespace": (
        re.compile(r"(?!\.)[\w.-]+(?:/(?!\.)[\w.-]+)*", re.ASCII),
        "a path of znodes, without / at its ends",
    ),
    "commit_table_name": _HBASE_TABLE,
    "timestamp_table_name": _HBASE_TABLE,
}
"""For options that accept names: the pattern, and its meaning for messages."""

_OF_HBASE: Final = tuple(
    option.name for option in fields(Settings) if option.name not in CommonSettings.__dataclass_fields__
)
"""Options that are refused for other stores, where they have no meaning."""

_OF_TSO: Final = ("conflict_map_entries", "reported_ids_max", "request_seconds")
"""Options that are refused for a folder, which has no TSO."""

_OF_FOLDER: Final = ("create", "folder_access", "map_size_gib", "upkeep_share")
"""Options that are refused for other stores, which have no folder."""


def _check(name: str, value: object) -> None:
    kind = _TYPES[name]
    if kind is bool:
        if not isinstance(value, bool):
            raise MisuseType(f"option {camel_case(name)}={value!r} is neither true nor false", option=name, value=value)
        return
    if kind is str:
        if not isinstance(value, str):
            if name == "retention":
                raise MisuseType(f"option retention: {invalid_duration(value)}", option=name, value=value)
            raise MisuseType(f"option {camel_case(name)}={value!r} is not a string", option=name, value=value)
        _check_text(f"option {camel_case(name)}={value!r}", value)
        if name == "retention" and value:
            duration_s(value)
        if name in _PATTERNS and not _PATTERNS[name][0].fullmatch(value):
            what = _PATTERNS[name][1]
            raise Misuse(f"option {camel_case(name)}={value!r} is not {what}", option=name, value=value)
        if name in _CHOICES and value not in _CHOICES[name]:
            known = ", ".join(_CHOICES[name])
            near = difflib.get_close_matches(value.lower(), _CHOICES[name], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Misuse(f"option {camel_case(name)}={value!r} is not one of {known}{hint}", option=name, value=value)
        return
    if name == "upkeep_share" and isinstance(value, float) and value > 1:
        raise Misuse(
            f"option upkeepShare={value!r} is above the maximum 1, which means one whole core", option=name, value=value
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
        what = "a whole number" if kind is int else "a number"
        raise MisuseType(f"option {camel_case(name)}={value!r} is not {what}", option=name, value=value)
    lowest = _LOWEST.get(name, 0)
    if not math.isfinite(value):
        raise MisuseType(f"option {camel_case(name)}={value!r} is not a finite number", option=name, value=value)
    if value < lowest:
        raise Misuse(f"option {camel_case(name)}={value!r} is below the minimum {lowest}", option=name, value=value)


def _converted(name: str, value: object) -> int | float | str | bool:
    kind = _TYPES[name]
    value = python_scalar(value)
    if kind is bool and isinstance(value, str):
        return _BOOLEANS.get(value.strip().lower(), value)
    if kind in (bool, str):
        return value.strip(" ") if isinstance(value, str) else value  # type: ignore[return-value]  # checked later
    try:
        if isinstance(value, str):
            return kind(value.strip())  # type: ignore[no-any-return]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise Misuse(f"option {camel_case(name)}={value!r} is not {what}", option=name, value=value) from None
    return value  # type: ignore[return-value]  # Settings checks other values


_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _option_list() -> str:
    return ", ".join(camel_case(option.name) for option in fields(Settings))


def _query_options(url: str, query: str) -> Iterator[tuple[str, object]]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except UnicodeDecodeError as error:
        raise Misuse(f"url {url!r} has percent-encoded bytes that are not UTF-8: {error.reason}", url=url) from error
    except ValueError as error:
        raise Misuse(f"url {url!r}: the options after '?' are not name=value pairs joined by '&'", url=url) from error
    seen: set[str] = set()
    for name, value in pairs:
        _check_text(f"url {url!r}", name + value)
        if _is_gone(name):
            continue
        known = option_name(name)
        if known in seen:
            raise Misuse(f"url {url!r} gives option {name} twice", url=url, option=known)
        seen.add(known)
        yield known, _converted(known, value)


def _embedded(url: str, netloc: str, path: str) -> Address:
    if netloc:
        raise Misuse(
            f"url {url!r} names a host {netloc!r}, but the embedded store is a local folder; write "
            "omid:///absolute/folder",
            url=url,
        )
    if not path.startswith("/") or path.rstrip("/") == "":
        raise Misuse(f"url {url!r} names no absolute folder; write omid:///absolute/folder", url=url)
    return EmbeddedAddress(path.rstrip("/"))


def _hbase(url: str, netloc: str, path: str) -> Address:
    hosts = [host for host in netloc.split(",") if host]
    if not hosts:
        raise Misuse(f"url {url!r} names no ZooKeeper server; write omid+hbase://host:2181,host:2181/hbase", url=url)
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
        raise Misuse(f"url {url!r} names no database; write omid-memory:name", url=url)
    return MemoryAddress(name)


def _base(address: Address) -> Settings:
    seconds = {HBaseAddress: 30.0, EmbeddedAddress: 3600.0}.get(type(address), 0.0)
    return Settings(catalog_cache_seconds=seconds)


_SCHEMES: Final[dict[str, Callable[[str, str, str], Address]]] = {
    "omid": _embedded,
    "omid+hbase": _hbase,
    "omid-memory": _memory,
}
