"""Only the oracle itself looks at clock, windows and conflict map: a service uses the machine's methods and report."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

import pyomid.omid.tso
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.outgoing import Step

pytestmark = pytest.mark.fast

FOR_DRIVERS: Final = {
    # steps
    "handle", "may_decide_fast",
    # what a driver tells
    "serve_until_s", "database_id", "count", "note_longest", "notice_wall_clock", "clock_trouble",
    # what a driver may know
    "settings", "epoch", "dead", "is_quiet", "report", "status", "validate",
    "longest_retry_s",
    "step.now_s", "step.in_doubt", "step.has_more_begins",
}  # fmt: skip
WHOLE: Final = {"step", "state"}
SOURCES: Final = sorted(Path(pyomid.omid.tso.__file__).parent.rglob("*.py"))


def names_asked_of_machines(source: str) -> set[str]:
    """`x` of `machine.x`; `step.x` of `machine.step.x`, and so of `state`, which a driver only passes on."""
    asked: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        path = re.findall(r"(?:^|\.)(\w+)", ast.unparse(node)) if isinstance(node, ast.Attribute) else []
        for at, name in enumerate(path[:-1]):
            if name in ("machine", "_machine"):
                asked.add(".".join(path[at + 1 : at + 3 if path[at + 1] in WHOLE else at + 2]))
    return asked - WHOLE


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_service_uses_nothing_of_the_machine_s_parts(path: Path) -> None:
    assert names_asked_of_machines(path.read_text(encoding="utf-8")) <= FOR_DRIVERS


def test_the_machine_has_all_that_services_use() -> None:
    public = {name for name in vars(TsoMachine) if not name.startswith("_")} - WHOLE
    attributes = {"settings", "epoch", "database_id", "serve_until_s", "dead"}
    of_a_step = {f"step.{name}" for name in Step.__slots__}
    assert public <= FOR_DRIVERS <= public | attributes | of_a_step


def test_a_look_at_a_part_is_seen() -> None:
    seen = names_asked_of_machines(
        "self.machine.state.oracle.conflict_map; f(machine.state.windows).head; machine.step.counters"
    )
    assert seen == {"state.oracle", "state.windows", "step.counters"}
