"""What one process performs for another: the requests in a write transaction of LMDB (`environment.Requests`)."""

from __future__ import annotations

from collections.abc import Sequence

from pyomid.errors import Misuse
from pyomid.storage.embedded import folder_state
from pyomid.storage.embedded.decision import (
    Decision,
    Outcome,
    pack_outcomes,
    pack_requests,
    requests_of,
    unpack_outcomes,
)
from pyomid.storage.embedded.environment import Environment, Transaction
from pyomid.storage.embedded.layout import EPOCH
from pyomid.storage.embedded.shared_file import Posted


class CommitRequests:
    """Commit requests of one environment."""

    def __init__(self, environment: Environment, decision: Decision) -> None:
        self._environment = environment
        self.perform = decision.decide

    def packed(self, requests: Sequence[bytes]) -> bytes:
        return pack_requests(requests)

    def known(self, transaction: Transaction, posted: Posted) -> list[Outcome] | None:
        """Return the outcomes of posted requests that somebody has performed."""
        database = self._environment.databases[EPOCH]
        packed = folder_state.outcomes_of(transaction, database, posted.place, posted.number)
        return None if packed is None else unpack_outcomes(packed)

    def perform_posted(self, transaction: Transaction, posted: Posted) -> list[Outcome]:
        """Perform posted requests, unless somebody has (L3); note and return their outcomes (L2)."""
        outcomes = self.known(transaction, posted)
        if outcomes is not None:
            return outcomes
        try:
            outcomes = [self.perform(transaction, request, is_foreign=True) for request in requests_of(posted.content)]
        except ValueError as error:
            malformed = Misuse(f"posted commit requests are malformed: {error}; nothing of them was written")
            outcomes = [malformed]
        database = self._environment.databases[EPOCH]
        folder_state.put_outcomes(transaction, database, posted.place, posted.number, pack_outcomes(outcomes))
        return outcomes
