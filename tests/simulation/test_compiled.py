"""The same interleavings on the product itself: its compiled kernels, the TSO's begins and commits by the fast path.

Each lie told to the kernel (what the machine knows, withheld) turns a schedule red: the schedules do look at it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pyomid.omid.oracle.native.compiled_oracle import CompiledOracle
from simulation.compiled import CompiledBuild, MirrorBuild
from simulation.directed import SCHEDULES, run_directed
from simulation.runs import run_seed

pytestmark = pytest.mark.fast

PREPARE = CompiledOracle._prepare


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_on_the_compiled_path(name: str) -> None:
    failure = run_directed(name, CompiledBuild())
    assert failure is None, f"{name} ({SCHEDULES[name].__doc__}): {failure}"


def test_universes_on_the_compiled_path_are_safe_and_live() -> None:
    """Each decision compared with the reference's, whatever interleaving chance makes."""
    build = MirrorBuild()
    for seed in range(20):
        report = run_seed(seed, build)
        assert report.ok, str(report)
    assert build.decided > 500, "the kernel took next to nothing"


def begins_from_the_open_batch(fast: CompiledOracle) -> None:
    """T1: not from the window of the oldest batch in flight."""
    starts = fast._tso.rare_starts.as_array()
    fast._decider.work_on(fast._batch, fast._batch, fast._map.words, fast._tables.rows, starts)


def no_rare_starts(fast: CompiledOracle) -> None:
    """R2, T7: what was sealed or asked for by a retry is decided all the same."""
    none = np.zeros(0, dtype=np.int64)
    fast._decider.work_on(fast._tso.windows.head, fast._batch, fast._map.words, fast._tables.rows, none)


LIES: dict[str, tuple[Callable[[CompiledOracle], None], str]] = {
    "begins from the open batch": (begins_from_the_open_batch, "a_begin_during_a_held_flush_sees_no_half_commit"),
    "no rare starts": (no_rare_starts, "a_start_that_was_sealed_is_never_decided"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_kernel_that_does_not_know_the_rule_is_caught(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tell, schedule = LIES[lie]

    def prepare(fast: CompiledOracle) -> None:
        PREPARE(fast)
        tell(fast)

    monkeypatch.setattr(CompiledOracle, "_prepare", prepare)
    assert run_directed(schedule, CompiledBuild()) is not None, "nobody notices"
