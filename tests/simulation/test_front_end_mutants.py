"""The front ends with one rule taken out: a universe must show it, or the rule is not watched.

A mutant replaces one named function.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
from populations import Populate, remakers, runners, spark_jobs
from test_front_ends import play

import pyomid.client.database
import pyomid.client.retry
import pyomid.client.tables
import pyomid.spark.commit

SEEDS = range(1, 81)


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    without: str
    """What is lost where the rule is taken out."""
    populate: Populate
    replaced: Callable[[], AbstractContextManager[Any]]


def _no_marker(transaction: Any, transaction_id: str) -> None:
    """Neither reads the durable id nor writes it."""


def _request_without_id(conn: Any, start_ts: int, written: Any, level: Any, transaction_id: Any) -> Any:
    return _REQUEST(conn, start_ts, written, level, None)


class _WithoutFences:
    """A session whose fences reach nobody. (No patch: droppers interleave.)"""

    def __init__(self, tso: Any) -> None:
        self._tso = tso

    def fence(self, table_id: int) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tso, name)


def _drop_without_fence(parts: Any, dropping: Any) -> None:
    _FINISH_DROP(replace(parts, tso=_WithoutFences(parts.tso)), dropping)


_REQUEST = pyomid.spark.commit._request
_FINISH_DROP = pyomid.client.tables._finish_drop

MUTANTS = (
    Mutant(
        "rules of a dropped table are gone by",
        "T9: ids of cells meet ids of rows, an update is lost",
        remakers,
        lambda: patch.object(pyomid.client.database, "may_go_by", lambda read_after, begun: True),
    ),
    Mutant(
        "a drop sends no fence",
        "a commit to the dropped table counts in the one that is made after it",
        remakers,
        lambda: patch.object(pyomid.client.tables, "_finish_drop", _drop_without_fence),
    ),
    Mutant(
        "a run claims no durable id",
        "C7: a run counts twice",
        runners,
        lambda: patch.object(pyomid.client.retry, "claim_marker", _no_marker),
    ),
    Mutant(
        "a job's commit does not name its durable id",
        "S3: of two drivers with one id both commit",
        spark_jobs,
        lambda: patch.object(pyomid.spark.commit, "_request", _request_without_id),
    ),
)


@pytest.mark.fast
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_universe_shows_that_a_rule_is_gone(mutant: Mutant) -> None:
    with mutant.replaced():
        for seed in SEEDS:
            try:
                play(seed, mutant.populate)
            except AssertionError as error:
                print(f"seed {seed}: {str(error.__cause__)[:200]}")
                return
    pytest.fail(f"{len(SEEDS)} universes without this rule, and nothing showed it: {mutant.without}")
