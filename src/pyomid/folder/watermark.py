"""Raise W of a folder. Snapshots above W can be read; versions that only older ones need are removed (folder.md, L7).

    look      the clock is read; then the open starts of all processes
    raised    in a write transaction: leases and retention are read; then W is raised to below all

Upkeep, and each process that commits, look once a second. A process that commits raises W with its next commit. So W
rises even if only short-lived programs write.
"""

from __future__ import annotations

import time
from typing import Final

from pyomid.folder import folder_state
from pyomid.folder.environment import Environment, Transaction
from pyomid.folder.layout import CLAIMS, EPOCH
from pyomid.ports import boot_clock
from pyomid.protocol.timestamps import NS_PER_S, kept_start

LOOK_S: Final = 1.0
_CLAIMS_MAX: Final = 1000


def look(environment: Environment, max_age_s: float) -> int:
    """Return a timestamp below every open start, and keep it as `OpenStarts.released`. Starts that are open for longer
    than `max_age_s` do not count."""
    starts, shared = environment.starts, environment.shared
    starts.looked_s = time.monotonic()
    bound = environment.read(folder_state.read_state, environment.databases[EPOCH]).clock
    too_old_ns = starts.now_ns() - int(max_age_s * NS_PER_S)
    starts.tidy()
    for _, start_ts, since_ns in (*starts.oldest(), *(shared.open_starts() if shared is not None else ())):
        if since_ns > too_old_ns:
            bound = min(bound, start_ts - 1)
    starts.released = bound
    return bound


def look_if_due(environment: Environment, max_age_s: float) -> None:
    if time.monotonic() >= environment.starts.looked_s + LOOK_S:
        look(environment, max_age_s)


def raised(
    transaction: Transaction, environment: Environment, state: folder_state.State, now_ms: int | None = None
) -> folder_state.State:
    """Return the state with W raised to what this process released, but not above a lease or the retention. The caller
    stores the state. `now_ms` is a time of the leases' clock."""
    bound, databases = environment.starts.released, environment.databases
    if bound <= state.watermark:
        return state
    environment.starts.released = 0  # the next commits need not read leases and retention again
    now_ms = int(boot_clock() * 1000) if now_ms is None else now_ms
    for start_ts, lease in list(folder_state.leases(transaction, databases[EPOCH], now_ms)):
        if lease.lives_at(now_ms):
            bound = min(bound, start_ts - 1)
        folder_state.put_lease(transaction, databases[EPOCH], start_ts, lease, now_ms)
    retention_ms = folder_state.read_number(transaction, databases[EPOCH], folder_state.RETENTION)
    if retention_ms:
        bound = min(bound, kept_start(environment.wall.now_ns(state.clock), retention_ms / 1000))
    if bound <= state.watermark:
        return state
    _forget_claims(transaction, environment, bound)
    return state._replace(watermark=bound)


def _forget_claims(transaction: Transaction, environment: Environment, watermark: int) -> None:
    claims = environment.databases[CLAIMS]
    if not transaction.stat(claims)["entries"]:
        return
    with transaction.cursor(claims) as cursor:
        more, left = cursor.first(), _CLAIMS_MAX
        while more and left:
            left -= 1
            more = cursor.delete() if int.from_bytes(cursor.value()) <= watermark else cursor.next()
