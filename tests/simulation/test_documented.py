"""The example of docs/api/testing.md, as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "api" / "testing.md"


@pytest.mark.fast
def test_the_example_prints_what_the_page_says() -> None:
    [code] = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("lost update (T1, T2)"), done.stdout
