"""Ports that a folder implements in place of a commit table and a leader state: its branches, W and H."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from pyomid.folder import branches, folder_state
from pyomid.folder.environment import Environment, Transaction
from pyomid.folder.layout import BRANCHES, EPOCH
from pyomid.ports import Commits, DatabaseState
from pyomid.types import LeaderRecord


class BranchTable(Commits):
    """The branches of a folder, with the interface of a commit table: version → commit."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def lookup(self, starts: Sequence[int]) -> list[int]:
        return self._environment.read(branches.look_up, self._environment.databases[BRANCHES], starts)

    def lookup_then_watermarks(self, starts: Sequence[int]) -> tuple[list[int], int, int]:
        def read(transaction: Transaction) -> tuple[list[int], int, int]:
            databases = self._environment.databases
            state = folder_state.read_state(transaction, databases[EPOCH])
            return branches.look_up(transaction, databases[BRANCHES], starts), state.watermark, state.horizon

        return self._environment.read(read)

    def entries(self) -> Iterator[tuple[int, int]]:
        for version, branch in branches.iterate(self._environment.read, self._environment.databases[BRANCHES]):
            if branch.commit:
                yield version, branch.commit

    def count(self) -> int:
        return sum(1 for _ in self.entries())

    def delete(self, starts: Sequence[int]) -> None:
        """Forget branches whose records all have their commit timestamp."""

        def forget(transaction: Transaction) -> None:
            for start in starts:
                branches.forget(transaction, self._environment.databases[BRANCHES], start)

        if starts:
            self._environment.write(forget)

    def close(self) -> None:
        pass


class FolderState(DatabaseState):
    """The folder's W, H and clock, and the database's id."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def database_id(self) -> bytes:
        database = self._environment.databases[EPOCH]
        found: bytes | None = self._environment.read(
            lambda transaction: transaction.get(folder_state.ID_NAME, db=database)
        )
        if found is not None:
            return bytes(found)

        def write(transaction: Transaction) -> bytes:
            transaction.put(folder_state.ID_NAME, os.urandom(16), overwrite=False, db=database)
            return bytes(transaction.get(folder_state.ID_NAME, db=database))

        return self._environment.write(write)

    def read(self) -> LeaderRecord:
        state = self._state()
        return LeaderRecord(watermark=state.watermark, horizon=state.horizon, ceiling=state.clock)

    def read_watermarks(self) -> tuple[int, int]:
        state = self._state()
        return state.watermark, state.horizon

    def _state(self) -> folder_state.State:
        return self._environment.read(folder_state.read_state, self._environment.databases[EPOCH])
