"""The random programs of `client_model`, with all that happens around them: TSO and clients are killed, the database is
backed up and restored, verified while transactions are open, indexes of a typed table come and go, runs have ids.

Not here, because it goes by the clock: values and keys that expire.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_model import COUNTER, KEYS, TYPED, Play, Rows, Table, Transaction, in_range

import pyomid
from pyomid.errors import SnapshotTooOld

INDEXES = {"by_a": ("a", "b"), "by_b": ("b",)}
IDS = range(12)
AS = ["", "x", "y", "z" * 40, "x\0"]
ACTS = {
    "run_once": 4, "verify": 2, "back_up": 2, "restore": 1, "kill_client": 2, "watch": 2,
    "index": 4, "look_after": 12,
}  # fmt: skip


class WholePlay(Play):
    """`new_client` kills the last client, which has a process of its own, and gives another one."""

    def __init__(self, seed: int, clients: list[Any], folder: Path, new_client: Callable[[], Any]) -> None:
        super().__init__(seed, clients)
        self._folder, self._new_client = folder, new_client
        self._runs: dict[str, int] = {}
        self._backups: list[tuple[Path, dict[str, Rows]]] = []
        self._indexes: set[str] = set()
        clients[0].database("create_table", TYPED, families=[b"d"], conflict_level="row")
        clients[0].database("set_schema", TYPED, {"id": int, "a": str, "b": int}, row_key="id")
        self._tables[TYPED] = Table(TYPED, "row")

    def play(self, steps: int) -> None:
        super().play(steps // 2)
        if not self.done["kill_client"]:
            self._do("kill_client", self._clients[0])
        super().play(steps - steps // 2)
        while len(self._backups) < 2:
            self._do("back_up", self._clients[0])
        self._restore(self._clients[0])

    def _step(self) -> None:
        if len(self._open) >= 2 and self._draw.random() < 0.25:
            transaction = self._draw.choice(self._open)
            if TYPED not in transaction.altered:
                acts = [self._typed_get, self._typed_scan, self._look_up, self._look_up]
                acts += [self._typed_put, self._typed_put, self._typed_delete] if transaction.writes else []
                act = self._draw.choice(acts)
                self.done[act.__name__] += 1
                return act(transaction)
        return super()._step()

    def _look_after(self, client: Any) -> None:
        (act,) = self._draw.choices(list(ACTS), list(ACTS.values()))
        if act == "look_after":
            super()._look_after(client)
        else:
            self._do(act, client)

    def _do(self, act: str, client: Any) -> None:
        self.log.append(f"{self._clients.index(client)} {act}")
        self.done[act] += 1
        getattr(self, f"_{act}")(client)

    # Beside transactions

    def _run_once(self, client: Any) -> None:
        name, key = f"run {self._draw.randrange(20)}", self._draw.choice(KEYS)
        table = self._tables[self._draw.choice(["t", "u"])]
        start, version, commit = client.run_once(name, table.name, key)
        if name in self._runs:
            assert (start, commit) == (self._runs[name], 0), "a run under one id counts once"
            return
        assert commit
        self._runs[name] = start
        total = int.from_bytes(table.seen(start).get(key, {}).get(COUNTER, b""), "big", signed=True) + 1
        table.versions.setdefault((key, COUNTER), []).append((version, commit, total.to_bytes(8, "big", signed=True)))
        ids = {table.id_of(key, COUNTER)}
        self._committed.append((commit, {table.name: (ids, ids)}))

    def _verify(self, client: Any) -> None:
        found = client.database("verify")
        assert found.ok, str(found)

    def _watch(self, client: Any) -> None:
        table = self._tables[self._draw.choice(["t", "u"])]
        since = [each for each in self._bookmarks if each.start_ts > table.generation]
        if since:
            chosen = self._draw.choice(since)
            told = client.watched(table.name, chosen)
            wanted = table.changes(chosen.start_ts, 1 << 62)
            assert sorted(told, key=lambda change: (change[1], change[2])) == wanted

    def _kill_client(self, client: Any) -> None:
        gone = self._clients[-1]
        self._open = [transaction for transaction in self._open if transaction.client is not gone]
        self._clients[-1] = self._new_client()

    def _back_up(self, client: Any) -> None:
        made = self._folder / f"backup-{len(self._backups)}"
        since = self._backups[-1][0] if self._backups and self._draw.random() < 0.6 else None
        client.database("backup", made, since=since)
        self._backups.append((made, {name: table.seen(1 << 62) for name, table in self._tables.items()}))

    def _restore(self, client: Any) -> None:
        """Exactly what had committed when it was backed up; what was open then never does."""
        if not self._backups:
            return
        made, states = self._draw.choice(self._backups)
        to = self._folder / f"restored-{next(self._numbers)}"
        url = f"omid://{to}"
        pyomid.restore(made, url)
        with pyomid.connect(url) as restored:
            assert restored.verify().ok
            restored.compact()
            with restored.snapshot() as snapshot:
                for name in ("t", "u"):
                    assert list(snapshot.table(name).scan()) == in_range(states[name], {})
                assert list(snapshot.table(TYPED, codec=dict).scan()) == typed_rows(states[TYPED])
            assert restored.verify().ok

    def _index(self, client: Any) -> None:
        name = self._draw.choice(list(INDEXES))
        if name in self._indexes:
            client.database("drop_index", TYPED, name)
            self._indexes.remove(name)
        else:
            client.database("create_index", TYPED, name, list(INDEXES[name]))
            self._indexes.add(name)
        self._forget(self._tables[TYPED], lost=False)
        for transaction in self._open[:]:  # its flush may say as well that the index is gone
            if TYPED in transaction.perhaps:  # also where a savepoint took the writes back
                self._commit(transaction)

    # Typed rows

    def _typed(self, transaction: Transaction) -> Rows:
        return self._seen(transaction, self._tables[TYPED])

    def _ask_typed(self, transaction: Transaction, method: str, *arguments: Any, **named: Any) -> Any:
        self.log.append(f"{transaction.start} typed {method} {arguments} {named}")
        return transaction.client.typed(transaction.number, method, *arguments, **named)

    def _typed_get(self, transaction: Transaction) -> None:
        key = self._draw.choice(IDS)
        rows = {row["id"]: row for row in typed_rows(self._typed(transaction))}
        assert self._ask_typed(transaction, "get", key) == rows.get(key)

    def _typed_scan(self, transaction: Transaction) -> None:
        assert self._ask_typed(transaction, "scan") == typed_rows(self._typed(transaction))

    def _look_up(self, transaction: Transaction) -> None:
        for name in sorted(self._indexes):
            columns = INDEXES[name]
            row = self._draw.choice(typed_rows(self._typed(transaction)) or [{"a": "x", "b": 1}])
            count = self._draw.randrange(1, len(columns) + 1)
            values = tuple(row[column] for column in columns[:count])
            if None in values:
                continue
            try:
                found = self._ask_typed(transaction, "lookup", name, values)
            except SnapshotTooOld:
                assert not transaction.writes, "a snapshot of the past may be older than the index"
                continue
            wanted = [
                each
                for each in typed_rows(self._typed(transaction))
                if tuple(each[column] for column in columns[:count]) == values
                and all(each[column] is not None for column in columns)
            ]
            assert found == sorted(wanted, key=lambda each: (*(each[column] for column in columns), each["id"]))

    def _typed_put(self, transaction: Transaction) -> None:
        row = {"id": self._draw.choice(IDS)}
        row |= {"a": self._draw.choice(AS), "b": self._draw.choice([None, -1, 0, 7])}
        self._ask_typed(transaction, "put", row)
        self._may_conflict(transaction, row["id"])
        self._note_writes(transaction, self._tables[TYPED], row["id"], {name: row[name] for name in ("a", "b")})

    def _may_conflict(self, transaction: Transaction, key: int) -> None:
        """An index claims the row, and the claim stays where a savepoint takes the write back."""
        transaction.perhaps.setdefault(TYPED, set()).add((key,))

    def _typed_delete(self, transaction: Transaction) -> None:
        key = self._draw.choice(IDS)
        self._ask_typed(transaction, "delete", key)
        if key not in self._typed(transaction):
            return  # nothing was written
        self._may_conflict(transaction, key)
        self._note_writes(transaction, self._tables[TYPED], key, {"a": None, "b": None})


def typed_rows(rows: Any) -> list[dict[str, Any]]:
    return [{"id": key, "a": row.get("a"), "b": row.get("b")} for key, row in sorted(rows.items())]


def soon(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() < end_s
