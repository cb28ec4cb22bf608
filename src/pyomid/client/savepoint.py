"""A savepoint: a transaction's own writes as they were, to go back to without ending it.

What is still buffered is kept as a copy. Before a batch leaves for the store, what its cells held at the savepoint is
read (`transaction_steps.TransactionSteps`); going back writes that again, under the same version. So nothing is ever
deleted in the store, and a cell that left stays in the write set.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyomid.client.transaction_steps import SavedWrites

if TYPE_CHECKING:
    from pyomid.client.transaction import RowTransaction


class Savepoint:
    """Made by `Transaction.savepoint`; a context manager, in `with` and in `async with`. Nothing of it waits."""

    def __init__(self, transaction: RowTransaction[Any], saved: SavedWrites) -> None:
        self._transaction = transaction
        self._saved = saved

    def rollback(self) -> None:
        """The transaction's writes are again what they were. May be repeated; ends the savepoints made since."""
        self._transaction.begin_write()
        self._transaction.writes.go_back(self._saved)

    def release(self) -> None:
        """Forgets it, and the savepoints made since; the writes stay. A second release does nothing."""
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
