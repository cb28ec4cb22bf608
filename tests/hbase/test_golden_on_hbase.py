"""The golden scripts that need no clock in hand, over a real HBase and its TSO."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hbase_processes import TsoProcess

from pyomid.testing.golden import Script, load_scripts, run
from pyomid.testing.stages import UrlStage

NEEDS_MORE = {"time", "compact", "sanitise", "dies", "table", "cells"}
SCRIPTS = [
    script
    for script in load_scripts(Path(__file__).parents[1] / "golden" / "scripts")
    if not any(NEEDS_MORE & set(line.words) for line in script.statements)
]


@pytest.fixture(scope="module")
def golden_tso(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TsoProcess]:
    """One TSO for all scripts."""
    with TsoProcess(url, tmp_path_factory.mktemp("golden") / "tso.log") as process:
        process.wait_until_leading()
        yield process
        process.stop()


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.name for script in SCRIPTS])
def test_script_on_hbase(script: Script, url: str, golden_tso: TsoProcess) -> None:
    run(script, UrlStage(url, keep_tables=True))
