"""Perform commit requests, of this process and of others, in a write transaction of LMDB (`environment.Requests`)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice

from pyomid.errors import Misuse
from pyomid.folder import folder_state
from pyomid.folder.decision import (
    Decision,
    Outcome,
    pack_outcomes,
    pack_requests,
    requests_of,
    unpack_outcomes,
)
from pyomid.folder.environment import Environment, Transaction
from pyomid.folder.layout import EPOCH
from pyomid.folder.shared_file import Posted


class CommitRequests:
    """Performs the commit requests of one environment."""

    def __init__(self, environment: Environment, decision: Decision) -> None:
        self._environment = environment
        self.perform = decision.decide

    def packed(self, requests: Sequence[bytes]) -> bytes:
        return pack_requests(requests)

    def known(self, transaction: Transaction, posted: Posted) -> list[Outcome] | None:
        """Return the outcomes of posted requests, or None if nobody has performed them."""
        database = self._environment.databases[EPOCH]
        packed = folder_state.outcomes_of(transaction, database, posted.place, posted.number)
        return None if packed is None else unpack_outcomes(packed)

    def perform_posted(self, transaction: Transaction, posted: Sequence[Posted]) -> list[list[Outcome]]:
        """Perform the posted requests that nobody has performed yet (L3). Note the outcomes and return them (L2)."""
        found = [self.known(transaction, each) for each in posted]
        new = [(at, _requests_in(each)) for at, each in enumerate(posted) if found[at] is None]
        outcomes = iter(self.perform(transaction, [each for _, requests in new for each in requests], is_foreign=True))
        database = self._environment.databases[EPOCH]
        for at, requests in new:
            place, number, _ = posted[at]
            performed = found[at] = list(islice(outcomes, len(requests))) or [_malformed()]
            folder_state.put_outcomes(transaction, database, place, number, pack_outcomes(performed))
        return found  # type: ignore[return-value]


def _requests_in(posted: Posted) -> list[bytes]:
    """Return the posted requests, or none if the content is malformed."""
    try:
        return requests_of(posted.content)
    except (ValueError, struct.error):
        return []


def _malformed() -> Misuse:
    return Misuse("posted commit requests are malformed; none of them was performed")
