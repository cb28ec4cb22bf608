"""Chooses the concrete parts of a database by its URL. Besides the command line the only place that knows every
package.

Deployment of kinds that are not asked for are not imported.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from pyomid.client.deployment import Deployment, boot_clock
from pyomid.config import Address, EmbeddedAddress, HBaseAddress, MemoryAddress, Settings, parse_url
from pyomid.errors import Misuse

if TYPE_CHECKING:
    import ssl

    from pyomid.client.aio.database import AsyncDatabase
    from pyomid.client.database import Database
    from pyomid.client.session.aio import AsyncTsoSession, Dialled
    from pyomid.oracle.settings import TsoSettings
    from pyomid.server.leadership import Leadership
    from pyomid.server.store_calls import TsoStores
    from pyomid.storage.hbase.coordination import AnnouncedTso
    from pyomid.storage.hbase.deployment import HBaseOptions
    from pyomid.storage.hbase.zookeeper import ZooKeeper

_TSO_STORE_TRY_S: Final = 10.0
"""How long one store call of a TSO over HBase goes on trying by itself; the machine repeats it for longer."""


def open_database(url: str, **options: Any) -> Database:
    """What `pyomid.connect` returns; owns its parts."""
    from pyomid.client.database import Database

    return Database(open_deployment(url, **options), url=url)


async def open_async_database(url: str, **options: Any) -> AsyncDatabase:
    """What `pyomid.aio.connect` returns; owns its parts."""
    from pyomid.client.aio.database import AsyncDatabase

    database = await asyncio.to_thread(open_database, url, **options)
    loop_session = database.parts.loop_session
    return AsyncDatabase(database, loop_session() if loop_session is not None else None)


def tso_folder(store: str) -> Path | None:
    """The folder whose lock a TSO must hold before it opens the stores at the URL `store`; None: no folder.

    Made where it is new; `Misuse` where it cannot be one (`open_folder`).
    """
    if store == "memory":
        return None
    address, settings = parse_url(store)
    return _open_folder(address, settings) if isinstance(address, EmbeddedAddress) else None


def _open_folder(address: EmbeddedAddress, settings: Settings) -> Path:
    """Made or opened for those whom the settings name."""
    from pyomid.storage.embedded.layout import open_folder

    return open_folder(address.folder, shared=settings.folder_access == "group")


def open_tso_stores(store: str) -> tuple[TsoStores, Callable[[], None]]:
    """What a TSO writes to at the URL `store` ("memory": nowhere), and what closes it all."""
    from pyomid.server.store_calls import TsoStores

    if store == "memory":
        from pyomid.storage.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState

        return TsoStores(MemoryCommitTable(), MemoryLeaderState(), MemoryCatalog()), lambda: None
    address, settings = parse_url(store)
    match address:
        case EmbeddedAddress(folder):
            from pyomid.storage.embedded import EmbeddedCatalog, EmbeddedCommitTable, EmbeddedLeaderState

            map_bytes = _map_bytes(settings)
            commit_table = EmbeddedCommitTable(folder, writable=True, map_bytes=map_bytes)
            leader_state = EmbeddedLeaderState(folder, writable=True, map_bytes=map_bytes)
            catalog = EmbeddedCatalog(folder, map_bytes=map_bytes)

            def close() -> None:
                catalog.close()
                leader_state.close()
                commit_table.close()

            return TsoStores(commit_table, leader_state, catalog), close
        case HBaseAddress(quorum, znode):
            from pyomid.storage.hbase.deployment import open_hbase

            database = open_hbase(quorum, znode, deadline_s=_TSO_STORE_TRY_S, options=_hbase_options(settings))
            stores = TsoStores(database.commit_table, database.leader_state, database.catalog, database.ceiling)
            return stores, database.close
        case _:
            raise Misuse(f"a TSO cannot serve {store!r}: memory, omid:///folder or omid+hbase://…", store=store)


def open_leadership(store: str, address: str, *, lease_s: float) -> Leadership | None:
    """How the TSO of `store`, reached at `address`, comes to lead; None where a folder's lock or nothing decides."""
    if store == "memory":
        return None
    place, _ = parse_url(store)
    if not isinstance(place, HBaseAddress):
        return None
    from pyomid.storage.hbase.coordination import LeaderLease
    from pyomid.storage.hbase.zookeeper import ZooKeeper

    zookeeper = ZooKeeper(place.quorum, place.znode, session_s=lease_s)
    return LeaderLease(zookeeper, address, clock=boot_clock, period_s=lease_s)


def open_deployment(url: str, **options: Any) -> Deployment:
    """Everything that a client of the database needs, opened; the caller closes it.

    `Misuse` for a bad URL or option, `Unavailable` where no TSO or store answers, `Corruption` for a folder whose
    layout is not what it says.
    """
    address, settings = parse_url(url, **options)
    return parts_at(address, settings)


def parts_at(address: Address, settings: Settings) -> Deployment:
    """`open_deployment` after the URL has been read."""
    match address:
        case MemoryAddress():
            return _memory_parts(address, settings)
        case HBaseAddress():
            return _hbase_parts(address, settings)
        case EmbeddedAddress():
            return _embedded_parts(address, settings)


def tso_settings(settings: Settings) -> TsoSettings:
    """What of a database's settings is its TSO's."""
    from pyomid.oracle.settings import TsoSettings

    return TsoSettings(
        conflict_map_entries=settings.conflict_map_entries,
        max_transaction_age_s=settings.max_transaction_age_seconds,
        lease_term_s=settings.lease_seconds,
    )


def _embedded_parts(address: EmbeddedAddress, settings: Settings) -> Deployment:
    """The TSO first: it makes the commit table's environment, which clients only read."""
    from pyomid.client.session.blocking import TsoSession
    from pyomid.storage.embedded import EmbeddedCatalog, EmbeddedCommitTable, EmbeddedLeaderState, EmbeddedStore

    folder, map_bytes = _open_folder(address, settings), _map_bytes(settings)
    dial = folder_dial(folder, settings)
    patience = _Patience(request_s=settings.request_seconds, retry_s=settings.commit_retry_seconds)
    store = EmbeddedStore(folder, map_bytes=map_bytes)

    def loop_session() -> AsyncTsoSession:
        from pyomid.client.session.aio import AsyncTsoSession, Dialled

        return AsyncTsoSession(lambda: asyncio.to_thread(lambda: Dialled(dial())), **patience)

    try:
        tso = TsoSession(dial, clock=boot_clock, **patience)
        tso.status()
        commit_table = EmbeddedCommitTable(folder, writable=False, map_bytes=map_bytes)
        leader_state = EmbeddedLeaderState(folder, writable=False, map_bytes=map_bytes)
        catalog = EmbeddedCatalog(folder, map_bytes=map_bytes)
    except BaseException:
        store.close()
        raise
    closers = (catalog.close, leader_state.close)
    return Deployment(
        store,
        commit_table,
        leader_state,
        catalog,
        tso,
        settings,
        closers=closers,
        is_gone=store.is_gone,
        loop_session=loop_session,
    )


class _Patience(TypedDict):
    """How long a session waits, in seconds: for one try, for the whole request."""

    request_s: float
    retry_s: float


def folder_dial(folder: Path, settings: Settings) -> Callable[[], socket.socket]:
    """Connects to the folder's TSO, starting one with these settings where there is none."""
    from pyomid.server.launcher import dial_folder

    return partial(dial_folder, folder, tso_command(folder, settings))


def tso_command(folder: Path, settings: Settings) -> list[str]:
    """What starts the folder's TSO: this interpreter, so that client and TSO are one version. Not from the client's
    working directory (-P): a file that lies there is none of the TSO's modules."""
    options = {
        "--idle-exit": settings.tso_idle_exit_seconds,
        "--conflict-map-entries": settings.conflict_map_entries,
        "--max-transaction-age": settings.max_transaction_age_seconds,
        "--lease-term": settings.lease_seconds,
        "--commit-retry": settings.commit_retry_seconds,
    }
    command = [sys.executable, "-P", "-m", "pyomid", "tso", "--on-demand", str(folder)]
    return command + [text for name, value in options.items() for text in (name, str(value))]


def _map_bytes(settings: Settings) -> int:
    return int(settings.map_size_gib * (1 << 30))


_memory_databases: Final[dict[str, Deployment]] = {}
_memory_lock: Final = threading.Lock()


def _memory_parts(address: MemoryAddress, settings: Settings) -> Deployment:
    """Every connection to one name shares stores and TSO, which live as long as the process; the settings of the
    first one are the TSO's.
    """
    with _memory_lock:
        shared = _memory_databases.get(address.name)
        if shared is None:
            shared = _memory_databases[address.name] = _new_memory_parts(settings)
    return replace(shared, settings=settings)


def _new_memory_parts(settings: Settings) -> Deployment:
    from pyomid.server.local import LocalTso
    from pyomid.server.store_calls import TsoStores
    from pyomid.storage.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore

    class SharedTso(LocalTso):
        """Outlives the connections to it."""

        def close(self) -> None:
            pass

    commit_table, leader_state, catalog = MemoryCommitTable(), MemoryLeaderState(), MemoryCatalog()
    tso = SharedTso(TsoStores(commit_table, leader_state, catalog), tso_settings(settings), clock=boot_clock)
    return Deployment(MemoryStore(), commit_table, leader_state, catalog, tso, settings)


def _hbase_options(settings: Settings) -> HBaseOptions:
    from pyomid.storage.hbase.deployment import HBaseOptions

    return HBaseOptions(settings.ceiling, settings.durability, settings.others_seal)


def _credentials(settings: Settings) -> tuple[ssl.SSLContext | None, bytes]:
    """What a cluster's TSO is trusted by, and the token that it is shown. `Misuse` before anything is dialled."""
    from pyomid.client.session.connecting import read_token, trusting

    if not settings.tls_ca and (settings.tls_cert or settings.tls_key):
        raise Misuse("options tlsCert and tlsKey need tlsCa")
    tls = trusting(settings.tls_ca, settings.tls_cert, settings.tls_key) if settings.tls_ca else None
    return tls, read_token(settings.token_file) if settings.token_file else b""


class _LeaderDial:
    """A session's connections to whoever leads a cluster; a certificate is held against the host that it announced."""

    def __init__(self, zookeeper: ZooKeeper, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._zookeeper = zookeeper
        self._tls = tls
        self._timeout_s = timeout_s
        self._dialled: AnnouncedTso | None = None

    def __call__(self) -> socket.socket:
        return self._dial(self._tls)[0]

    def for_loop(self) -> Dialled:
        """Without TLS yet: the event loop begins it."""
        from pyomid.client.session.aio import Dialled

        sock, tso = self._dial(None)
        return Dialled(sock, self._tls, tso.host)

    def _dial(self, tls: ssl.SSLContext | None) -> tuple[socket.socket, AnnouncedTso]:
        from pyomid.client.session.connecting import tcp_dial
        from pyomid.storage.hbase.coordination import find_tso

        self._dialled = tso = find_tso(self._zookeeper)
        return tcp_dial(tso.address, tls=tls, timeout_s=self._timeout_s)(), tso

    def has_moved(self) -> bool:
        """`TsoSession`'s `has_moved`."""
        from pyomid.storage.hbase.coordination import leads_another

        return self._dialled is not None and leads_another(self._zookeeper, self._dialled)


def _hbase_parts(address: HBaseAddress, settings: Settings) -> Deployment:
    """Stores by HBase's native RPC, the TSO found through the cluster's ZooKeeper."""
    from pyomid.client.session.blocking import TsoSession
    from pyomid.client.session.shared_commit_table import SharedTableTso
    from pyomid.storage.hbase.coordination import find_tso
    from pyomid.storage.hbase.deployment import open_hbase

    tls, token = _credentials(settings)
    database = open_hbase(address.quorum, address.znode, options=_hbase_options(settings))
    patience = _Patience(request_s=settings.request_seconds, retry_s=settings.commit_retry_seconds)

    def leader_dial() -> _LeaderDial:
        return _LeaderDial(database.zookeeper, tls, settings.request_seconds)

    def announced_epoch() -> int:
        return find_tso(database.zookeeper).epoch

    def loop_session() -> AsyncTsoSession:
        from pyomid.client.session.aio import AsyncTsoSession

        dial = leader_dial()
        return AsyncTsoSession(
            lambda: asyncio.to_thread(dial.for_loop),
            has_moved=dial.has_moved,
            announced_epoch=announced_epoch,
            token=token,
            **patience,
        )

    dial = leader_dial()
    session = TsoSession(
        dial, has_moved=dial.has_moved, announced_epoch=announced_epoch, token=token, clock=boot_clock, **patience
    )
    return Deployment(
        database.store,
        database.commit_table,
        database.leader_state,
        database.catalog,
        SharedTableTso(session, database.commit_table),
        settings,
        closers=(database.close,),
        loop_session=loop_session,
    )
