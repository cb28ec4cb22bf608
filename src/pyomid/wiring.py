"""Chooses the concrete parts of a database by its URL. Besides the command line the only place that knows every room.

Parts of kinds that are not asked for are not imported.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyomid.client.parts import Parts, boot_clock
from pyomid.config import Address, EmbeddedAddress, HBaseAddress, MemoryAddress, Settings, parse_url
from pyomid.errors import Misuse

if TYPE_CHECKING:
    from pyomid.client.database import Database
    from pyomid.core.tso_machine import TsoSettings


def open_database(url: str, **options: Any) -> Database:
    """What `pyomid.connect` returns; owns its parts."""
    from pyomid.client.database import Database

    return Database(open_parts(url, **options), url=url)


def open_parts(url: str, **options: Any) -> Parts:
    """Everything that a client of the database needs, opened; the caller closes it.

    `Misuse` for a bad URL or option, `Unavailable` where no TSO or store answers, `Corruption` for a folder whose
    layout is not what it says.
    """
    address, settings = parse_url(url, **options)
    return parts_at(address, settings)


def parts_at(address: Address, settings: Settings) -> Parts:
    """`open_parts` after the URL has been read."""
    match address:
        case MemoryAddress():
            return _memory_parts(address, settings)
        case HBaseAddress():
            return _hbase_parts(address, settings)
        case EmbeddedAddress():
            raise Misuse(f"{address} cannot be opened by this version of pyomid")


def tso_settings(settings: Settings) -> TsoSettings:
    """What of a database's settings is its TSO's."""
    from pyomid.core.tso_machine import TsoSettings

    return TsoSettings(
        conflict_map_entries=settings.conflict_map_entries,
        max_transaction_age_s=settings.max_transaction_age_seconds,
        lease_term_s=settings.lease_seconds,
    )


_memory_databases: Final[dict[str, Parts]] = {}
_memory_lock: Final = threading.Lock()


def _memory_parts(address: MemoryAddress, settings: Settings) -> Parts:
    """Every connection to one name shares stores and TSO, which live as long as the process; the settings of the
    first one are the TSO's.
    """
    with _memory_lock:
        shared = _memory_databases.get(address.name)
        if shared is None:
            shared = _memory_databases[address.name] = _new_memory_parts(settings)
    return replace(shared, settings=settings)


def _new_memory_parts(settings: Settings) -> Parts:
    from pyomid.storage.memory import MemoryCatalogue, MemoryCommitTable, MemoryEpochRow, MemoryStore
    from pyomid.tso.local import LocalTso
    from pyomid.tso.store_calls import TsoStores

    class SharedTso(LocalTso):
        """Outlives the connections to it."""

        def close(self) -> None:
            pass

    commit_table, epoch_row, catalogue = MemoryCommitTable(), MemoryEpochRow(), MemoryCatalogue()
    tso = SharedTso(TsoStores(commit_table, epoch_row, catalogue), tso_settings(settings), clock=boot_clock)
    return Parts(MemoryStore(), commit_table, epoch_row, catalogue, tso, settings)


def _hbase_parts(address: HBaseAddress, settings: Settings) -> Parts:
    """Stores by HBase's native RPC, the TSO found through the cluster's ZooKeeper."""
    from pyomid.client.session import TsoSession
    from pyomid.client.shared_commit_table import SharedTableTso
    from pyomid.storage.hbase.database import open_hbase
    from pyomid.storage.hbase.election import dial_tso

    database = open_hbase(address.quorum, address.znode)
    session = TsoSession(
        lambda: dial_tso(database.zookeeper, timeout_s=settings.request_seconds),
        request_s=settings.request_seconds,
        retry_s=settings.commit_retry_seconds,
        clock=boot_clock,
    )
    return Parts(
        database.store,
        database.commit_table,
        database.epoch_row,
        database.catalogue,
        SharedTableTso(session, database.commit_table),
        settings,
        closers=(database.close,),
    )
