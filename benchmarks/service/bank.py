"""What the parts of the hour agree upon: the bank's tables, and the sum that never changes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import pyomid
from pyomid.database.database import Database

ACCOUNTS: Final = 1_000
OPENING: Final = 1_000_000
"""Cents; no account runs dry in an hour."""
TOTAL: Final = ACCOUNTS * OPENING
READINGS_TTL_S: Final = 120


def name_of(number: int) -> str:
    return f"account-{number:04}"


def open_bank(db: Database) -> None:
    """The accounts as `examples/web/service.py` has them, and a table whose rows expire."""
    db.create_table("accounts", {"name": str, "balance": int}, row_key="name")
    db.create_table("readings", families=["f"], ttl_seconds=READINGS_TTL_S)
    with db.begin() as tx:
        accounts = tx.table("accounts", codec=dict)
        for number in range(ACCOUNTS):
            accounts.put({"name": name_of(number), "balance": OPENING})


def balances(db: Database, table: str) -> dict[str, int]:
    """Of one snapshot; none of a table that is not there yet."""
    with db.snapshot() as tx:
        try:
            return {row["name"]: row["balance"] for row in tx.table(table, codec=dict).scan()}
        except pyomid.UnknownTable:
            return {}


def folder_bytes(folder: Path) -> int:
    """What its files take on the disk."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return size


def note(path: Path, *fields: object) -> None:
    """Appends a line in one write: whoever is killed leaves no half of one."""
    line = ",".join(str(field) for field in (f"{time.time():.3f}", *fields)) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
