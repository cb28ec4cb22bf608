"""`python -m benchmarks.hbase [--minutes M] [--quick]`: what benchmarks/results/hbase.md shows, step by step.

Each command has processes and an HBase of its own, so that none inherits another's heap. Behind the last one stand all
lines with a goal once more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Final

from benchmarks._report import machine_lines

COMMANDS: Final = (
    ("benchmarks.hbase.run",),
    ("benchmarks.hbase.failover",),
    ("benchmarks.hbase.spark", "--rows", "15000", "--only", "regions", "--actions", "count"),
    ("benchmarks.tso.run", "--only", "memory", "--rounds", "2"),
    ("benchmarks.hbase.tso", "--rounds", "2", "--loads", "8x16,64x16"),
    ("benchmarks.hbase.upkeep", "--rows", "60000", "--regions", "64"),
    ("benchmarks.hbase.build_up", "--rows", "30000"),
    ("benchmarks.hbase.spark", "--only", "writes,reads"),
)
QUICK: Final = {
    "benchmarks.hbase.run": ("--rows", "2000"),
    "benchmarks.hbase.failover": ("--times", "1"),
    "benchmarks.tso.run": ("--rounds", "1", "--seconds", "1", "--loads", "8x16"),
    "benchmarks.hbase.spark": ("--rows", "2000", "--regions", "3,30"),
    "benchmarks.hbase.tso": ("--rounds", "1", "--seconds", "1", "--loads", "8x16"),
    "benchmarks.hbase.upkeep": ("--rows", "4000", "--regions", "8"),
    "benchmarks.hbase.build_up": ("--rows", "2000"),
}
"""Sizes that only show that all of it runs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="none begins later; default: %(default)g")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether all of it runs")
    parser.add_argument("--only", default="", help="commands whose name has one of these words, with commas between")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    goals: list[str] = []
    failed: list[str] = []
    for command in COMMANDS:
        if not any(word in command[0] for word in arguments.only.split(",")):
            continue
        minutes = (time.monotonic() - began_s) / 60
        line = " ".join((*command, *(QUICK[command[0]] if arguments.quick else ())))
        if minutes > arguments.minutes:
            print(f"\n=== not run, {minutes:.1f} minutes are over: {line}", flush=True)
            continue
        print(f"\n=== {line}, {minutes:.1f} minutes from the begin", flush=True)
        if not shown(line.split(), goals):
            failed.append(line)
    print(f"\n=== all lines with a goal, {(time.monotonic() - began_s) / 60:.1f} minutes", *goals, sep="\n")
    print("\n".join(machine_lines()))
    if failed:
        print(f"failed: {'; '.join(failed)}", file=sys.stderr)
    return len(failed)


def shown(command: list[str], goals: list[str]) -> bool:
    """Runs it, prints what it prints, and keeps its lines with a goal. Whether it ran to its end."""
    told = len(goals)
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if "goal" in line:
                goals.append(line.rstrip())
    return process.returncode == 0 or any("MISSED" in line for line in goals[told:])


if __name__ == "__main__":
    sys.exit(main())
