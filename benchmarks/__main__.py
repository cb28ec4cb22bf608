"""`python -m benchmarks [name …]`: the benchmarks of the embedded store and Spark, one after the other."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

ROOMS = ("embedded", "spark")


def names() -> list[str]:
    here = Path(__file__).parent
    return [
        f"benchmarks.{room}.{path.stem}"
        for room in ROOMS
        for path in sorted((here / room).glob("*.py"))
        if not path.stem.startswith("_") and "__main__" in path.read_text(encoding="utf-8")
    ]


def main(wanted: list[str]) -> None:
    for name in names():
        if not wanted or any(word in name for word in wanted):
            print(f"\n=== {name}", flush=True)
            sys.argv = [name]
            runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
