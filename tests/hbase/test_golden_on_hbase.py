"""The golden scripts that do not set the clock, over HBase and a real TSO."""

from __future__ import annotations

from pathlib import Path

import pytest
from hbase_processes import TsoProcess

from golden_scripts import Script, load_scripts, run
from stages import UrlStage

SCRIPTS = [
    script for script in load_scripts(Path(__file__).parent.parent / "golden" / "scripts") if not script.needs_clock
]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=script.name, marks=[pytest.mark.long] if number % 4 else [])
        for number, script in enumerate(SCRIPTS)
    ],
)
def test_script(script: Script, url: str, tso: TsoProcess) -> None:
    run(script, UrlStage(url))
