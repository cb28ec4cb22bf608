"""`python -m benchmarks [name …]`: the benchmarks of the embedded store and Spark, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOMS = ("embedded", "spark")
ALONE = ("peers",)
"""What has a target of its own."""


def names() -> list[str]:
    here = Path(__file__).parent
    return [
        f"benchmarks.{room}.{path.stem}"
        for room in ROOMS
        for path in sorted((here / room).glob("*.py"))
        if not path.stem.startswith("_") and path.stem not in ALONE and "__main__" in path.read_text(encoding="utf-8")
    ]


def main(wanted: list[str]) -> int:
    """Each in a process of its own, so that none inherits another's heap; 1 where one failed."""
    failed = [name for name in names() if (not wanted or any(word in name for word in wanted)) and not succeeds(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def succeeds(name: str) -> bool:
    print(f"\n=== {name}", flush=True)
    return subprocess.run([sys.executable, "-m", name], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
