"""Only the oracle itself looks at clock, windows and conflict map: a service uses the machine's methods and figures."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import pyomid.server
from pyomid.oracle.machine import TsoMachine

pytestmark = pytest.mark.fast

FOR_DRIVERS: Final = {
    # steps
    "handle", "is_step_due", "start_plain_flush", "end_plain_flush", "give_up_plain_flush",
    "may_complete", "take_completions", "completed", "may_decide_fast",
    # what a driver tells
    "serve_until_s", "database_id", "count", "note_longest",
    # what a driver may know
    "settings", "epoch", "now_s", "dead", "in_doubt", "has_more_begins", "is_quiet", "figures", "status", "validate",
}  # fmt: skip
SOURCES: Final = sorted(Path(pyomid.server.__file__).parent.rglob("*.py"))


def names_asked_of_machines(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            asked = node.value
            name = asked.attr if isinstance(asked, ast.Attribute) else getattr(asked, "id", "")
            if name in ("machine", "_machine"):
                yield node.attr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_service_uses_nothing_of_the_machine_s_parts(path: Path) -> None:
    assert set(names_asked_of_machines(path.read_text(encoding="utf-8"))) <= FOR_DRIVERS


def test_the_machine_has_all_that_services_use() -> None:
    public = {name for name in vars(TsoMachine) if not name.startswith("_")}
    attributes = {"settings", "epoch", "database_id", "serve_until_s", "dead"}
    assert public - {"absorb"} <= FOR_DRIVERS <= public | attributes


def test_a_look_at_a_part_is_seen() -> None:
    seen = names_asked_of_machines("self.machine.oracle.conflict_map; machine.windows.head; self._machine.clock")
    assert set(seen) == {"oracle", "windows", "clock"}
