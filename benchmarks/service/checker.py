"""The checker, a process of its own: every few seconds the sums at one snapshot, the folder's size, the cost of reads.

usage: python -m benchmarks.service.checker URL FOLDER NOTES SECONDS-BETWEEN
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from pathlib import Path

import pyomid
from benchmarks.service.bank import ACCOUNTS, TOTAL, balances, folder_bytes, name_of, note
from pyomid.database.database import Database

GETS = 200
KEYS = [name_of(number).encode() for number in range(ACCOUNTS)]


def main(url: str, folder: Path, notes: Path, between_s: float) -> None:
    with pyomid.connect(url, retries=1000) as db:
        number = 0
        while True:
            try:
                check(db, folder, notes, number)
                number += 1
            except pyomid.OmidError as error:
                if isinstance(error, pyomid.Misuse | pyomid.Corruption):
                    note(notes, "wrong", repr(error))
                note(notes, "error", error.code)
            time.sleep(between_s)


def check(db: Database, folder: Path, notes: Path, number: int) -> None:
    for table in ("accounts", "statements"):
        began, used = time.monotonic(), time.thread_time()
        found = balances(db, table)
        scan_s, scan_cpu_s = time.monotonic() - began, time.thread_time() - used
        if found and (len(found), sum(found.values())) != (ACCOUNTS, TOTAL):
            note(notes, "wrong", f"{table}: {len(found)} rows hold {sum(found.values())}")
        if table == "accounts":
            accounts_s, accounts_cpu_s = scan_s, scan_cpu_s
    times = []
    with db.snapshot() as tx:
        accounts, used = tx.table("accounts"), time.thread_time()
        for key in random.sample(KEYS, GETS):
            began = time.perf_counter()
            row = accounts.get(key)
            times.append(time.perf_counter() - began)
            assert row, key
        get_cpu_s = (time.thread_time() - used) / GETS

    def put(tx: pyomid.Transaction) -> None:
        tx.table("readings").put(b"%d %d" % (os.getpid(), number), {b"f:load": b"%.2f" % os.getloadavg()[0]})

    db.run(put)
    with db.snapshot() as tx:
        readings = sum(1 for _ in tx.table("readings").scan())
    times.sort()
    note(
        notes,
        "reading",
        folder_bytes(folder),
        f"{statistics.median(times) * 1e6:.1f}",
        f"{times[GETS * 99 // 100] * 1e6:.1f}",
        f"{get_cpu_s * 1e6:.1f}",
        f"{accounts_s * 1e3:.2f}",
        f"{accounts_cpu_s * 1e3:.2f}",
        readings,
        f"{os.getloadavg()[0]:.2f}",
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
