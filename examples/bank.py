"""A bank in one folder: an owner's two accounts together never fall below zero, although each alone may.

Two transfers that overlap could each see enough money in the owner's other account: write skew. So a transfer claims
the account that it relies on and does not write. Run: python examples/bank.py [FOLDER]
"""

import random
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import pyomid

Money = Annotated[Decimal, "decimal(18,2)"]
OWNERS, KINDS = ("alice", "bob", "carol"), ("checking", "savings")
FIRST_BALANCE = Decimal("100.00")


@dataclass
class Account:
    owner: str
    kind: str
    balance: Money


@dataclass
class Entry:
    """One transfer in the audit table, written in the transfer's own transaction."""

    id: str
    at: datetime
    source: str
    source_kind: str
    target: str
    target_kind: str
    amount: Money


class Overdrawn(Exception):
    pass


Key = tuple[str, str]


def open_accounts(db: pyomid.Database) -> None:
    db.create_table("accounts", Account, row_key=["owner", "kind"], if_not_exists=True)
    db.create_table("audit", Entry, row_key="id", if_not_exists=True)
    with db.begin() as tx:
        for owner in OWNERS:
            for kind in KINDS:
                tx.table("accounts", codec=Account).put_if_absent(Account(owner, kind, FIRST_BALANCE))


def account(tx: pyomid.Transaction, key: Key, *, claim: bool = False) -> Account:
    found = tx.table("accounts", codec=Account).get(key, for_update=claim)
    if found is None:  # a typed table's `get` returns None for a row that does not exist
        raise LookupError(f"no account {key}")
    return found


def transfer(tx: pyomid.Transaction, id: str, source: Key, target: Key, amount: Decimal) -> None:
    giver, receiver = account(tx, source), account(tx, target)
    partner = (source[0], "savings" if source[1] == "checking" else "checking")
    if partner != target:  # else the sum of the two accounts stays the same
        other = account(tx, partner, claim=True)
        if giver.balance + other.balance < amount:
            raise Overdrawn(f"{source[0]} has {giver.balance + other.balance}, not {amount}")
    accounts = tx.table("accounts", codec=Account)
    accounts.put(replace(giver, balance=giver.balance - amount))
    accounts.put(replace(receiver, balance=receiver.balance + amount))
    tx.table("audit", codec=Entry).put(Entry(id, datetime.now(UTC), *source, *target, amount))


def teller(db: pyomid.Database, name: str, transfers: int, outcomes: list[str]) -> None:
    keys = [(owner, kind) for owner in OWNERS for kind in KINDS]
    for number in range(transfers):
        id = f"{name}-{number}"
        source, target = random.sample(keys, 2)
        try:
            db.run_once(id, transfer, id, source, target, Decimal(random.randint(1, 9000)) / 100)
            outcomes.append("done")
        except Overdrawn:
            outcomes.append("refused")


def audit(db: pyomid.Database) -> dict[Key, Decimal]:
    """Return the balances, after a check that they follow from the audit table and that no owner is overdrawn."""
    with db.snapshot() as tx:
        accounts, entries = tx.table("accounts", codec=Account), tx.table("audit", codec=Entry)
        balances = {(each.owner, each.kind): each.balance for each in accounts.scan()}
        expected = dict.fromkeys(balances, FIRST_BALANCE)
        for entry in entries.scan():
            expected[entry.source, entry.source_kind] -= entry.amount
            expected[entry.target, entry.target_kind] += entry.amount
    assert balances == expected
    assert all(sum(balances[owner, kind] for kind in KINDS) >= 0 for owner in OWNERS)
    return balances


def main(folder: str, tellers: int = 4, transfers: int = 20) -> Counter[str]:
    outcomes: list[str] = []
    with pyomid.connect(f"omid://{folder}") as db:
        open_accounts(db)
        threads = [
            threading.Thread(target=teller, args=(db, f"{datetime.now(UTC)} teller {number}", transfers, outcomes))
            for number in range(tellers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        balances = audit(db)
    print(*(f"{owner}'s {kind}: {balance}" for (owner, kind), balance in balances.items()), sep="\n")
    print(dict(Counter(outcomes)), "sum", sum(balances.values()))
    return Counter(outcomes)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="bank-"))
