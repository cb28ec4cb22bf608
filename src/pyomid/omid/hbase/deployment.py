"""One database in HBase: its system tables, the ports that `wiring` opens over one client, and delegation tokens.

`pyomid init` creates the tables. The commit table and the timestamp table are like those that Apache Omid's own tool
creates, and may have other names (`SystemNames`). PYOMID_META is pyomid's own. One HBase namespace holds one database.

Delegation tokens from HBase authenticate this client's user on machines without Kerberos. HBase stores no tokens: it
accepts a token with a valid signature until the token expires (`hbase.auth.token.max.lifetime`, seven days by default),
and cannot renew it. The coprocessor `TokenProvider` of the region of `hbase:meta` issues tokens to clients that
authenticated by Kerberos.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from pyomid.config import Settings
from pyomid.errors import Corruption, Misuse, UnknownTable
from pyomid.omid.hbase.catalog import HBaseCatalog
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import (
    COMMIT_FAMILY,
    META_FAMILY,
    META_TABLE,
    TIMESTAMP_FAMILY,
    WATERMARK_FAMILY,
    SystemNames,
    commit_table_splits,
)
from pyomid.omid.hbase.commit_table import HBaseCommitTable
from pyomid.omid.hbase.coordination import OWNER_ZNODE, claim_namespace
from pyomid.omid.hbase.kerberos import Kerberos, KerberosOptions
from pyomid.omid.hbase.leader_state import OWNER_ROW, ChosenCeiling, HBaseCeiling, HBaseLeaderState, chosen_ceiling
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.regions.calls import Budget, parsed
from pyomid.omid.hbase.regions.locations import META_TABLE as REGIONS_TABLE
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.rpc.frames import Reply
from pyomid.omid.hbase.rpc.handshake import Handshake, SaslHandshake, TokenHandshake
from pyomid.omid.hbase.rpc.hbase_pb2 import (
    CoprocessorServiceRequest,
    CoprocessorServiceResponse,
    GetAuthenticationTokenResponse,
    Token,
    TokenIdentifier,
)
from pyomid.omid.hbase.rpc.requests import Durability
from pyomid.omid.hbase.sasl import Credentials, Protection
from pyomid.omid.hbase.store import HBaseStore
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.tls import client_context
from pyomid.types import TaskToken

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HBaseDatabase:
    """The ports of one database over one client. `close` closes the client's connections."""

    cluster: Cluster
    store: HBaseStore
    commit_table: HBaseCommitTable
    leader_state: HBaseLeaderState
    catalog: HBaseCatalog
    ceiling: ChosenCeiling

    @property
    def zookeeper(self) -> ZooKeeper:
        return self.cluster.zookeeper

    def close(self) -> None:
        self.cluster.close()


@dataclass(frozen=True, slots=True)
class HBaseOptions:
    """The options of a deployment, named as in URLs (`config.Settings`)."""

    names: SystemNames = SystemNames()  # noqa: RUF009 - immutable
    ceiling: str = "hbase"
    durability: str = "table"
    others_seal: bool = False
    kerberos: KerberosOptions | None = None
    tls: ssl.SSLContext | None = None
    """TLS for connections to HBase's servers."""
    zookeeper_tls: ssl.SSLContext | None = None
    token: Callable[[], TaskToken | None] | None = None
    """Returns the newest delegation token sent to this process. This client authenticates to HBase with the token until
    it expires, then with a Kerberos ticket. It authenticates to ZooKeeper with neither."""


def open_hbase(quorum: str, znode: str, *, deadline_s: float, options: HBaseOptions | None = None) -> HBaseDatabase:
    """Open the database. It connects at its first use. Each operation is retried for up to `deadline_s`."""
    options = options or HBaseOptions()
    cluster = open_cluster(quorum, znode, options, deadline_s=deadline_s)
    leader_state = HBaseLeaderState(cluster)
    return HBaseDatabase(
        cluster,
        HBaseStore(cluster, read_watermark=lambda: leader_state.read_watermarks()[0]),
        HBaseCommitTable(cluster, others_seal=options.others_seal, leader_state=leader_state),
        leader_state,
        HBaseCatalog(cluster),
        chosen_ceiling(cluster, options.ceiling),
    )


def create_database(cluster: Cluster, *, commit_table_regions: int = 16) -> list[str]:
    """Create the missing system tables and return their names. Tables that Java Omid created are used as they are.
    Idempotent."""
    admin, state = Admin(cluster), HBaseLeaderState(cluster)
    made = []
    for descriptor, splits in (
        (TableDescriptor(META_TABLE, (FamilyDescriptor(META_FAMILY, 1),)), []),
        (
            TableDescriptor(
                cluster.names.commit_table, (FamilyDescriptor(COMMIT_FAMILY, 1), FamilyDescriptor(WATERMARK_FAMILY, 1))
            ),
            commit_table_splits(commit_table_regions),
        ),
        (TableDescriptor(cluster.names.timestamp_table, (FamilyDescriptor(TIMESTAMP_FAMILY, 1),)), []),
    ):
        if admin.create_table(descriptor, splits):
            made.append(cluster.names.physical(descriptor.name))
        if descriptor.name == META_TABLE:
            state.keep_names()  # Raises if a TSO has used other names, before a table with a wrong name is created.
            state.database_id()  # so that clients tell its TSO from another database's
    return made


def check_database(cluster: Cluster) -> None:
    """Raise `UnknownTable`, with advice, if the database was never created; raise `Misuse` or `Unavailable` if there is
    no HBase. Waits for an HBase that is starting."""
    names = cluster.names
    missing = [names.physical(table) for table in cluster.missing_tables(sorted((META_TABLE, names.commit_table)))]
    if names.physical(META_TABLE) not in missing:
        HBaseLeaderState(cluster).check_names()
    if missing:
        raise UnknownTable(
            f"HBase at {cluster.zookeeper.quorum} has no table {', '.join(missing)}: run `pyomid init URL` once",
            table=missing[0],
        )


def claim_database(cluster: Cluster) -> None:
    """Raise `Misuse` if another database has this database's timestamp table or ZooKeeper namespace. A TSO calls this
    before it leads. Otherwise two TSOs would wait for each other, or hand out one range of timestamps twice."""
    own = HBaseLeaderState(cluster).database_id()
    names = cluster.names
    for owner, place, option, way_out in (
        (
            HBaseCeiling(cluster).claim(own),
            f"table {names.timestamp_table}",
            "timestampTableName",
            f"in HBase's shell: deleteall '{names.timestamp_table}', '{OWNER_ROW.decode()}'",
        ),
        (
            claim_namespace(cluster.zookeeper, own),
            f"ZooKeeper's namespace {cluster.zookeeper.namespace}",
            "zkNamespace",
            f"in ZooKeeper's zkCli: delete {cluster.zookeeper.namespace}/{OWNER_ZNODE}",
        ),
    ):
        if owner != own:
            raise Misuse(
                f"{place} belongs to another database ({owner.hex()[:8]}), not to this URL's database "
                f"({own.hex()[:8]}): before the first TSO of this URL's database starts, set option {option} to a "
                f"value of its own; if the other database no longer exists, remove its claim instead, {way_out}",
                database=owner.hex(),
            )


def hbase_options(settings: Settings) -> HBaseOptions:
    """Return the options of a URL. Raises `Misuse` if an option needs another one that is missing."""
    return HBaseOptions(
        SystemNames(settings.commit_table_name, settings.timestamp_table_name, settings.zk_namespace),
        settings.ceiling,
        settings.durability,
        settings.others_seal,
        _kerberos_options(settings),
        client_context("hbaseTls", settings.hbase_tls_ca, settings.hbase_tls_cert, settings.hbase_tls_key),
        client_context(
            "zookeeperTls", settings.zookeeper_tls_ca, settings.zookeeper_tls_cert, settings.zookeeper_tls_key
        ),
    )


def _kerberos_options(settings: Settings) -> KerberosOptions | None:
    if settings.authentication != "kerberos":
        if settings.principal or settings.keytab or settings.rpc_protection or settings.run_as:
            raise Misuse("options principal, keytab, rpcProtection and runAs need authentication=kerberos")
        return None
    return KerberosOptions(
        settings.principal,
        settings.keytab,
        settings.hbase_principal,
        "" if settings.zookeeper_principal == "none" else settings.zookeeper_principal,
        Protection[settings.rpc_protection.upper()] if settings.rpc_protection else None,
        settings.run_as or None,
    )


def open_zookeeper(quorum: str, znode: str, options: HBaseOptions, *, session_s: float = 10.0) -> ZooKeeper:
    """Return a ZooKeeper session for the user that the options name. It connects at its first use."""
    return _zookeeper(quorum, znode, _user_of(options), options, session_s=session_s)


def open_cluster(quorum: str, znode: str, options: HBaseOptions, *, deadline_s: float) -> Cluster:
    """Return the client of HBase and ZooKeeper. It connects at its first use. Raises `Misuse` if the Kerberos library
    or the keytab is missing."""
    user = _user_of(options)
    handshake: Handshake | None = None
    if (newest := options.token) is not None:
        handshake = TokenHandshake(
            lambda: _unexpired(newest()),
            _token_protection(options),
            otherwise=lambda: _ticket_handshake(Kerberos(options.kerberos or KerberosOptions())),
        )
    elif user is not None:
        handshake = _ticket_handshake(user)
    return Cluster(
        _zookeeper(quorum, znode, user, options),
        handshake=handshake,
        deadline_s=deadline_s,
        durability=Durability[options.durability.upper()],
        tls=options.tls,
        names=options.names,
    )


def _user_of(options: HBaseOptions) -> Kerberos | None:
    return Kerberos(options.kerberos) if options.kerberos is not None and options.token is None else None


def _ticket_handshake(user: Kerberos) -> SaslHandshake:
    known = user.options
    return SaslHandshake(user, known.hbase_principal, known.protection, run_as=known.run_as)


def _zookeeper(
    quorum: str, znode: str, user: Kerberos | None, options: HBaseOptions, *, session_s: float = 10.0
) -> ZooKeeper:
    principal = user.options.zookeeper_principal if user is not None else ""
    sasl = (user, principal) if user and principal else None
    namespace = options.names.zookeeper_namespace
    return ZooKeeper(quorum, znode, session_s=session_s, sasl=sasl, tls=options.zookeeper_tls, namespace=namespace)


# Delegation tokens

_LENGTH_BYTES: Final = 4
_REUSE_SHARE: Final = 0.1
"""New jobs get the same token during this part of its lifetime, so that each job has at least the rest of it."""


def task_tokens(cluster: Cluster, options: HBaseOptions) -> Callable[[], TaskToken | None]:
    """Return a function that returns the delegation token for tasks on other machines. It returns None without
    Kerberos, or if HBase issues no tokens: each task then needs its own ticket. A process that itself authenticates
    with a token passes that token on."""
    if options.token is not None:
        return options.token
    if options.kerberos is None:
        return lambda: None
    keeper, is_logged = token_keeper(cluster), bool(options.kerberos.keytab)

    def newest() -> TaskToken | None:
        nonlocal is_logged
        try:
            return keeper()
        except Misuse as error:
            if not is_logged:
                log.warning("HBase issued no delegation token; each task needs its own Kerberos ticket: %s", error)
            is_logged = True
            return None

    return newest


def token_keeper(cluster: Cluster) -> TokenKeeper:
    """Return the keeper of delegation tokens for this client's user. The user authenticates by Kerberos."""
    return TokenKeeper(lambda: cluster.run(_token(cluster.operations, cluster.budget("fetching a delegation token"))))


def _token_protection(options: HBaseOptions) -> Protection | None:
    """Return the SASL protection to request with a token. With a token there is no `privacy`; TLS replaces it."""
    wanted = options.kerberos.protection if options.kerberos is not None else None
    return None if wanted is Protection.PRIVACY and options.tls is not None else wanted


def _unexpired(token: TaskToken | None) -> Credentials | None:
    return credentials_of(token) if token is not None and time.time() * 1000 < token.expires_ms else None


async def _token(operations: RegionOperations, budget: Budget) -> Token:
    """Fetch a token. Raises `Misuse` if HBase refuses: the coprocessor is missing, or the client itself authenticated
    with a token."""
    request = CoprocessorServiceRequest()
    request.call.row, request.call.request = b"", b""
    request.call.service_name, request.call.method_name = "AuthenticationService", "GetAuthenticationToken"
    while True:
        region = await operations.locate(REGIONS_TABLE, b"", budget)
        request.region.CopyFrom(region.specifier)
        answer = await operations.ask_region(region, "ExecService", request, budget)
        if isinstance(answer, Reply):
            given = parsed(CoprocessorServiceResponse, answer).value.value
            try:
                return GetAuthenticationTokenResponse.FromString(given).token
            except DecodeError as error:
                raise Corruption(f"HBase's reply holds no delegation token: {error}") from error
        await budget.pause()


def task_token(given: Token) -> TaskToken:
    """Return the token in the form in which it is sent to tasks."""
    known = _identifier(given)
    return TaskToken(known.username.decode(errors="replace"), known.expiration_date, given.SerializeToString())


def credentials_of(token: TaskToken) -> Credentials:
    given = Token.FromString(token.secret)
    return Credentials.of_token(given.identifier, given.password)


class TokenKeeper:
    """Caches the token for tasks, and fetches a new token before the old one is too old. Thread-safe."""

    def __init__(self, fetch: Callable[[], Token]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._token: TaskToken | None = None
        self._reuse_until_s = 0.0

    def __call__(self) -> TaskToken:
        """Return a token that has at least nine tenths of its lifetime left. May wait for HBase."""
        with self._lock:
            now_s = time.monotonic()
            if self._token is None or now_s >= self._reuse_until_s:
                given = self._fetch()
                known = _identifier(given)
                life_s = (known.expiration_date - known.issue_date) / 1000
                if life_s <= 0:
                    raise Misuse(
                        f"HBase issues tokens with a lifetime of {life_s:g} s: correct hbase.auth.token.max.lifetime"
                    )
                self._token, self._reuse_until_s = task_token(given), now_s + life_s * _REUSE_SHARE
            return self._token


def _identifier(given: Token) -> TokenIdentifier:
    """Parse the identifier, which follows its own length (Java's `Writable`)."""
    try:
        return TokenIdentifier.FromString(given.identifier[_LENGTH_BYTES:])
    except DecodeError as error:
        raise Corruption(f"HBase's delegation token has a malformed identifier: {error}") from error
