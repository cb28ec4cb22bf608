"""How far the horizon goes (K5, K6), step by step on memory stores, with a catalog that changes between the steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from conformance import put_entry
from pyomid.errors import Misuse
from pyomid.omid.memory import MemoryCatalog
from pyomid.protocol import effects
from pyomid.protocol.hashing import table_id
from pyomid.protocol.sanitize import Sanitized, sanitize_entries
from pyomid.types import TABLES_UNCONFIRMED, KeyRange, RegionWatermark, TableInfo

pytestmark = pytest.mark.fast

W = 1000
JAVA = table_id(b"java")


def sanitise(
    catalog: MemoryCatalog, between: Callable[[int], None] = lambda step: None, retry_bound_s: float = 0.0
) -> Sanitized:
    """`between(n)` comes before the n-th look."""
    answers: dict[type, Callable[[Any], Any]] = {
        effects.ReadWatermarks: lambda _: (W, 0),
        effects.ReadTables: lambda _: catalog.tables(),
        effects.ReadUnknownTables: lambda _: catalog.unknown_tables(),
        effects.ReadRegionWatermarks: lambda effect: catalog.region_watermarks(effect.table),
        effects.DropRegionWatermarks: lambda effect: catalog.drop_region_watermarks(effect.newest),
        effects.AdvanceHorizon: lambda _: 0,
    }
    steps = sanitize_entries(now_s=5000.0, retry_bound_s=retry_bound_s)
    result, step = None, 0
    while True:
        try:
            effect = steps.send(result)
        except StopIteration as end:
            done: Sanitized = end.value
            return done
        between(step)
        step += 1
        result = answers[type(effect)](effect)


def cleaned(catalog: MemoryCatalog, name: str, watermark: int, generation: int = 1, at_s: float = 1.0) -> None:
    catalog.put_region_watermark(RegionWatermark(name, generation, KeyRange(), watermark, at_s))


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("clears", [False, True], ids=["mark stays", "mark goes as in earlier versions"])
def test_a_table_registered_meanwhile_holds_h(at: int, clears: bool) -> None:
    """K6. In neither list, H would pass its unhealed commits: gone for every reader."""
    catalog = MemoryCatalog()
    catalog.mark_unknown_table(JAVA)

    def register(step: int) -> None:
        if step == at:
            put_entry(catalog, TableInfo("java", (b"f",), generation=900))
            if clears:
                catalog.clear_unknown_table(JAVA, catalog.unknown_tables()[JAVA])

    with suppress(Misuse):
        assert sanitise(catalog, register).horizon == 0


@pytest.mark.parametrize("at", range(5))
def test_a_table_unregistered_meanwhile_holds_h(at: int) -> None:
    """K6. Its mark comes first, its entry goes then: H would pass its unhealed commits."""
    catalog = MemoryCatalog()
    put_entry(catalog, TableInfo("java", (b"f",), generation=900))

    def unregister(step: int) -> None:
        if step == at:
            catalog.mark_unknown_table(JAVA)
            entry = catalog.entry("java")
            assert entry is not None
            catalog.remove_entry(entry)

    with suppress(Misuse):
        assert sanitise(catalog, unregister).horizon == 0


def test_a_mark_of_a_registered_table_stops_nobody() -> None:
    """Its records speak for it, whether the mark came before the registration or after."""
    catalog = MemoryCatalog()
    put_entry(catalog, TableInfo("java", (b"f",)))
    catalog.mark_unknown_table(JAVA)
    assert sanitise(catalog).horizon == 0
    cleaned(catalog, "java", 700)
    assert sanitise(catalog).horizon == 700


def test_a_mark_of_an_unregistered_table_stops_it_before_h_moves() -> None:
    catalog = MemoryCatalog()
    catalog.mark_unknown_table(JAVA)
    with pytest.raises(Misuse, match=str(JAVA)):
        sanitise(catalog)


def test_nothing_is_sanitised_after_java_led_until_confirmed() -> None:
    catalog = MemoryCatalog()
    catalog.mark_unknown_table(TABLES_UNCONFIRMED)
    with pytest.raises(Misuse, match="pyomid tables URL confirm"):
        sanitise(catalog)
    catalog.clear_unknown_table(TABLES_UNCONFIRMED, catalog.unknown_tables()[TABLES_UNCONFIRMED])
    assert sanitise(catalog).horizon == W


@pytest.mark.parametrize("pause_s", [1.0, 20.0, 59.0])
def test_compacting_often_does_not_stop_it(pause_s: float) -> None:
    """Each run used to take the place of the only record that was old enough: H stayed for ever, without a word."""
    catalog = MemoryCatalog()
    put_entry(catalog, TableInfo("t", (b"f",)))
    at_s = 5000.0 - 300 * pause_s
    for number in range(300):
        cleaned(catalog, "t", 100 + number, at_s=at_s + number * pause_s)
    done = sanitise(catalog, retry_bound_s=60.0)
    assert done.horizon > 100
    assert done.too_young == {"t": 399}


def test_what_does_not_count_yet_is_said() -> None:
    catalog = MemoryCatalog()
    put_entry(catalog, TableInfo("t", (b"f",)))
    cleaned(catalog, "t", 700, at_s=4990.0)
    done = sanitise(catalog, retry_bound_s=60.0)
    assert done.horizon == 0
    assert done.held_back_by == {"t": 0}
    assert done.too_young == {"t": 700}
