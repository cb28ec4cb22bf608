"""Taking over where the ceiling is kept beside Java's TSOs: whether one of them led is seen by its ceiling (K6)."""

from __future__ import annotations

import pytest

from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle.takeover import TakenOver, take_leadership
from pyomid.omid.tso.store_calls import TsoStores, perform
from pyomid.types import TABLES_UNCONFIRMED, LeaderRecord, LeaderStateChanges

pytestmark = pytest.mark.fast

STEP = 1000


class Ceiling:
    def __init__(self, value: int = 0) -> None:
        self.value = value

    def read(self) -> int:
        return self.value

    def compare_and_set(self, expected: int, ceiling: int) -> bool:
        if self.value != expected:
            return False
        self.value = ceiling
        return True


class Database:
    """The stores of a cluster, and Java TSOs that lead it in between."""

    def __init__(self, ceiling: int = 0, state: LeaderRecord | None = None) -> None:
        self.ceiling = Ceiling(ceiling)
        self.stores = TsoStores(MemoryCommitTable(), MemoryLeaderState(state), MemoryCatalog(), self.ceiling)

    def java_leads(self) -> None:
        self.ceiling.value += 500

    def take_over(self, *, dies_after: int | None = None, java_leads_at: int | None = None) -> TakenOver | None:
        """`dies_after` so many store calls; a Java TSO leads before the `java_leads_at`-th."""
        steps = take_leadership(ceiling_step=STEP, ceiling_elsewhere=True)
        result: object = None
        calls = 0
        while True:
            try:
                operation = steps.send(result)
            except StopIteration as end:
                taken: TakenOver = end.value
                return taken
            if calls == dies_after:
                return None
            if calls == java_leads_at:
                self.java_leads()
            result = perform(self.stores, operation)
            calls += 1

    def moves_its_ceiling(self, taken: TakenOver) -> None:
        """As `TsoMachine` does: noted, then moved."""
        ceiling = taken.ceiling + STEP
        self.stores.leader_state.update(taken.epoch, LeaderStateChanges(ceiling=ceiling))
        assert self.ceiling.compare_and_set(taken.ceiling, ceiling)

    @property
    def is_confirmed(self) -> bool:
        return TABLES_UNCONFIRMED not in self.stores.catalog.unknown_tables()

    def confirm(self) -> None:
        nonce = self.stores.catalog.unknown_tables()[TABLES_UNCONFIRMED]
        self.stores.catalog.clear_unknown_table(TABLES_UNCONFIRMED, nonce)


def test_a_store_that_java_never_led_needs_no_confirmation() -> None:
    database = Database()
    for _ in range(3):
        taken = database.take_over()
        assert taken is not None
        database.moves_its_ceiling(taken)
        assert database.is_confirmed


def test_the_first_take_over_after_java_leaves_unconfirmed() -> None:
    """Its commits to tables that nobody registers would be sanitised away."""
    database = Database(ceiling=70_000)
    assert database.take_over() is not None
    assert not database.is_confirmed
    database.confirm()
    assert database.take_over() is not None
    assert database.is_confirmed


def test_each_take_over_after_java_led_again_leaves_it_too() -> None:
    database = Database()
    for _ in range(3):
        taken = database.take_over()
        assert taken is not None
        database.moves_its_ceiling(taken)
        database.java_leads()
        assert database.take_over() is not None
        assert not database.is_confirmed
        database.confirm()


@pytest.mark.parametrize("dies_after", range(9))
def test_a_take_over_that_dies_forgets_no_java_tso(dies_after: int) -> None:
    """The mark is durable before the note that would hide it, and before the W that sanitising goes by."""
    database = Database(ceiling=70_000, state=LeaderRecord(epoch=100, watermark=100))
    database.take_over(dies_after=dies_after)
    assert not database.is_confirmed or database.stores.leader_state.read().watermark == 100
    assert database.take_over() is not None
    assert not database.is_confirmed


@pytest.mark.parametrize("java_leads_at", range(6))
def test_a_java_tso_that_leads_during_a_take_over_is_seen(java_leads_at: int) -> None:
    database = Database()
    assert database.take_over() is not None
    assert database.take_over(java_leads_at=java_leads_at) is not None
    assert not database.is_confirmed


@pytest.mark.parametrize("dies_after", range(9))
def test_every_epoch_is_above_every_ceiling_of_before(dies_after: int) -> None:
    database = Database(ceiling=70_000)
    for _ in range(2):
        database.take_over(dies_after=dies_after)
        ceiling = database.ceiling.value
        taken = database.take_over()
        assert taken is not None
        assert taken.epoch >= ceiling
        assert database.ceiling.value == taken.ceiling > taken.epoch
        assert database.stores.leader_state.read().epoch == taken.epoch
