"""One process of clients that append to lists, or write registers, and record it: over any URL and front end.

    python elle_workload.py URL MODEL FRONT FILE [--transactions N] [--until FILE] [--workers 8] [--seed 0]
                            [--first-process 0] [--seconds-a-key 0.1] [--keys 40] [--write-chance 0.5]
                            [--flush-chance 0.4] [--blind]

It ends after so many transactions, or once a file is there. Every element is unique. A key is in use for a while, by
the clock that all processes share, and then left for ever: contended, and no list gets long.

Small writes leave with their commit. So some transactions flush after one of their writes, and what they write after it
stays buffered. FILE.commits tells how many commit requests held all cells, and how many came after a flush.

`--blind`: beside it runs who appends without reading (`df.write`), which no list of more than one element survives.
Its lists are its own: it appends to the three of a group once, all in one transaction, and the others read them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from elle_histories import MODELS, MicroOps, Recorder

import pyomid
import pyomid.aio
from pyomid.errors import ConflictError, OutcomeUnknown, Unavailable
from pyomid.folder.decision import _unpack
from pyomid.types import CommitRequest

COLUMN = b"f:v"
BLIND_KEYS, KEYS_A_GROUP, SECONDS_A_GROUP = 10**10, 3, 2.0
WORKERS_MAX = 1000
NUMBERS_APART = 4 * WORKERS_MAX
"""Numbers of processes go on by so many when one of them ended without an answer; elements too."""


def first_key(order: argparse.Namespace) -> int:
    """Of those that are in use now."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) / order.seconds_a_key)


def micro_ops(order: argparse.Namespace, chance: random.Random, elements: Iterator[int]) -> MicroOps:
    if order.blind and chance.random() < 0.2:
        return [["r", key, None] for key in group(group_number() - chance.randrange(3))]
    first = first_key(order)
    ops: MicroOps = []
    for _ in range(chance.randint(1, 4)):
        key = first + chance.randrange(order.keys)
        if chance.random() >= order.write_chance:
            ops.append(["r", key, None])
        else:  # a write is read before, so that the order of versions can be told
            ops += [["r", key, None], [write_of(order.model), key, next(elements)]]
    return ops


def last_before_flush(order: argparse.Namespace, chance: random.Random, ops: MicroOps) -> int | None:
    """After which of its writes the transaction flushes, if it does."""
    writes = [index for index, (name, _, _) in enumerate(ops) if name != "r"]
    return chance.choice(writes) if writes and chance.random() < order.flush_chance else None


def group_number() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) / SECONDS_A_GROUP)


def group(number: int) -> range:
    first = BLIND_KEYS + KEYS_A_GROUP * number
    return range(first, first + KEYS_A_GROUP)


def write_of(model: str) -> str:
    return "append" if model == "list-append" else "w"


def table_of(model: str) -> str:
    return f"elle-{model}"


def row_of(key: int) -> bytes:
    return b"%012d" % key


def found(model: str, row: dict[bytes, bytes] | None) -> Any:
    value = row.get(COLUMN) if row else None
    if model == "list-append":
        return [] if value is None else [int(each) for each in value.split()]
    return None if value is None else int(value)


def stored(value: Any) -> bytes:
    return b" ".join(b"%d" % each for each in value) if isinstance(value, list) else b"%d" % value


class Clients:
    """What the workers of one process have in common."""

    def __init__(self, order: argparse.Namespace) -> None:
        self.order = order
        self.recorder = Recorder(order.file)
        self._numbers = itertools.count()
        self._elements = itertools.count(1 + order.first_process, NUMBERS_APART)
        self._lock = threading.Lock()
        self.commits = Counter(packed=0, flushed=0)

    def count_commits(self, session: Any) -> None:
        commit = session.commit

        def counting(request: CommitRequest) -> Any:
            with self._lock:
                self.commits["flushed" if not request.packed or _unpack(request.packed).branches else "packed"] += 1
            return commit(request)

        session.commit = counting

    def go_on(self) -> bool:
        is_over = self.order.until is not None and self.order.until.exists()
        with self._lock:
            return not is_over and next(self._numbers) < self.order.transactions

    def element(self) -> int:
        with self._lock:
            return next(self._elements)

    def next_ops(self, chance: random.Random) -> MicroOps | None:
        return micro_ops(self.order, chance, iter(self.element, None)) if self.go_on() else None

    def ended(self, process: int, ops: MicroOps, error: Exception | None) -> int:
        """The number of the process that goes on."""
        how = "ok" if error is None else "info"
        if isinstance(error, ConflictError | Unavailable):  # "nothing of the request took effect"
            how = "fail"
        self.recorder.completed(how, process, ops)
        if error is not None and how == "info" and not isinstance(error, OutcomeUnknown):
            raise error
        return process + NUMBERS_APART if how == "info" else process


def blocking_worker(clients: Clients, db: Any, process: int) -> None:
    chance, model = random.Random(f"{clients.order.seed} {process}"), clients.order.model
    while (ops := clients.next_ops(chance)) is not None:
        flush_at = last_before_flush(clients.order, chance, ops)
        clients.recorder.invoked(process, ops)
        error: Exception | None = None
        done: MicroOps = []
        try:
            with db.begin() as tx:
                table = tx.table(table_of(model))
                for index, (name, key, value) in enumerate(ops):
                    if name == "r":
                        value = found(model, table.get(row_of(key)))
                    elif name == "append":
                        table.put(row_of(key), {COLUMN: stored([*found(model, table.get(row_of(key))), value])})
                    else:
                        table.put(row_of(key), {COLUMN: stored(value)})
                    done.append([name, key, value])
                    if index == flush_at:
                        tx.flush()
        except Exception as raised:
            error = raised
        process = clients.ended(process, [*done, *ops[len(done) :]], error)


async def asyncio_worker(clients: Clients, db: Any, process: int) -> None:
    chance, model = random.Random(f"{clients.order.seed} {process}"), clients.order.model
    while (ops := clients.next_ops(chance)) is not None:
        flush_at = last_before_flush(clients.order, chance, ops)
        clients.recorder.invoked(process, ops)
        error: Exception | None = None
        done: MicroOps = []
        try:
            async with db.begin() as tx:
                table = await tx.table(table_of(model))
                for index, (name, key, value) in enumerate(ops):
                    if name == "r":
                        value = found(model, await table.get(row_of(key)))
                    elif name == "append":
                        before = found(model, await table.get(row_of(key)))
                        await table.put(row_of(key), {COLUMN: stored([*before, value])})
                    else:
                        await table.put(row_of(key), {COLUMN: stored(value)})
                    done.append([name, key, value])
                    if index == flush_at:
                        await tx.flush()
        except Exception as raised:
            error = raised
        process = clients.ended(process, [*done, *ops[len(done) :]], error)


def run_blocking(clients: Clients) -> None:
    order = clients.order
    with pyomid.connect(order.url) as db:
        clients.count_commits(db._core.deployment.tso)
        processes = range(order.first_process, order.first_process + order.workers)
        with ThreadPoolExecutor(order.workers) as pool:
            for ended in [pool.submit(blocking_worker, clients, db, process) for process in processes]:
                ended.result()


def run_asyncio(clients: Clients) -> None:
    async def run() -> None:
        order = clients.order
        async with await pyomid.aio.connect(order.url) as db:
            clients.count_commits(db._session or db._core.deployment.tso)
            processes = range(order.first_process, order.first_process + order.workers)
            await asyncio.gather(*(asyncio_worker(clients, db, process) for process in processes))

    asyncio.run(run())


def run_spark(clients: Clients) -> None:
    import elle_on_spark

    elle_on_spark.run(clients)


FRONTS = {"blocking": run_blocking, "asyncio": run_asyncio, "spark": run_spark}


def prepare(url: str) -> None:
    """Tables without the rows of an earlier history."""
    with pyomid.connect(url) as db:
        known = {table.name for table in db.tables()}
        for name in map(table_of, MODELS):
            if name in known:
                db.drop_table(name)
            db.create_table(name, families=["f"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("front", choices=FRONTS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--transactions", type=int, default=1 << 40)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--seconds-a-key", type=float, default=0.1)
    parser.add_argument("--keys", type=int, default=40)
    parser.add_argument("--write-chance", type=float, default=0.5)
    parser.add_argument("--flush-chance", type=float, default=0.4)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first-process", type=int, default=0)
    clients = Clients(parser.parse_args())
    FRONTS[clients.order.front](clients)
    clients.recorder.close()
    commits = clients.order.file.with_name(f"{clients.order.file.name}.commits")
    commits.write_text(json.dumps(clients.commits))


if __name__ == "__main__":
    main()
