"""A bank in one folder: accounts, transfers in transactions, a sum that never changes. Run: python examples/bank.py"""

import random
import sys
import tempfile
import threading

import pyomid

folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="bank-")
db = pyomid.connect(f"omid://{folder}")
names = [b"alice", b"bob", b"carol", b"dave"]


@db.transactional
def transfer(tx: pyomid.Transaction, source: bytes, target: bytes, amount: int) -> None:
    accounts = tx.table("accounts")
    for name, change in ((source, -amount), (target, amount)):
        balance = int(accounts.get(name)[b"f:balance"])
        accounts.put(name, {b"f:balance": b"%d" % (balance + change)})


def some_transfers() -> None:
    for _ in range(20):
        transfer(*random.sample(names, 2), random.randint(1, 10))


db.create_table("accounts", families=["f"], if_not_exists=True)
with db.begin() as tx:
    for name in names:
        tx.table("accounts").put(name, {b"f:balance": b"100"})
threads = [threading.Thread(target=some_transfers) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with db.begin() as tx:
    balances = {key.decode(): int(row[b"f:balance"]) for key, row in tx.table("accounts").scan()}
print(balances, "sum", sum(balances.values()))
db.close()
assert sum(balances.values()) == 400
