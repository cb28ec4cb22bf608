"""Changes of a folder's records that only tests make."""

from __future__ import annotations

from pyomid.folder.branches import Branch, put_branch
from pyomid.folder.environment import Transaction
from pyomid.folder.folder_state import put_state, read_state
from pyomid.folder.layout import BRANCHES, EPOCH
from pyomid.ports import Deployment


def commit_branch(parts: Deployment, version: int, commit_ts: int) -> None:
    """Note a branch that committed, whose records do not have its commit timestamp yet."""
    environment = parts.store.environment  # type: ignore[attr-defined]
    branch, database = Branch(version, version, commit_ts), environment.databases[BRANCHES]
    environment.write(lambda transaction: put_branch(transaction, database, version, branch))


def set_watermark(parts: Deployment, watermark: int) -> None:
    environment = parts.store.environment  # type: ignore[attr-defined]
    database = environment.databases[EPOCH]

    def write(transaction: Transaction) -> None:
        put_state(transaction, database, read_state(transaction, database)._replace(watermark=watermark))

    environment.write(write)
