"""A savepoint: a transaction's own writes at a moment, to which it can roll back without ending.

A savepoint has a copy of the buffered writes. Before a later batch is sent, the transaction reads the values of its
cells at the savepoint (`transaction_steps.TransactionSteps`). A rollback writes these values again, under the same
version. If the transaction had not written the cell before the savepoint, the commit first deletes that version: with
the snapshot's value it would hide other transactions' writes (C14).
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyomid.client.public_names import Handle
from pyomid.client.transaction_steps import SavedWrites

if TYPE_CHECKING:
    from pyomid.client.transaction import RowTransaction


class Savepoint(Handle):
    """A savepoint, returned by `Transaction.savepoint`; a context manager for `with` and `async with`. It never
    waits."""

    def __init__(self, transaction: RowTransaction[Any], saved: SavedWrites) -> None:
        self._transaction = transaction
        self._saved = saved

    def rollback(self) -> None:
        """Restore the transaction's writes as of the savepoint. Can be repeated; ends later savepoints."""
        self._transaction.begin_write()
        self._transaction.writes.go_back(self._saved)

    def release(self) -> None:
        """End this savepoint and later ones; the writes stay. A second release does nothing."""
        self._transaction.check_owner()
        self._transaction.writes.forget(self._saved)

    def __enter__(self) -> Savepoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and self._transaction.can_write and self._transaction.writes.keeps(self._saved):
            self.rollback()
        self.release()

    async def __aenter__(self) -> Savepoint:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)
