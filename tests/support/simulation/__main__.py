"""Many seeds: `python -m simulation --seeds 10000 --from 1`. The first failure tells its story."""

from __future__ import annotations

import argparse
import sys
import time

from simulation.build import Build
from simulation.compiled import MirrorBuild
from simulation.runs import run_seed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many (default 1000)")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--keep-going", action="store_true", help="list all failing seeds instead of ending at one")
    parser.add_argument("--mirror", action="store_true", help="the shipped TSO, compiled beside its reference")
    options = parser.parse_args(arguments)
    build: Build = MirrorBuild() if options.mirror else Build()
    began, failures, committed = time.monotonic(), 0, 0
    for seed in range(options.first, options.first + options.seeds):
        report = run_seed(seed, build)
        committed += report.committed
        if not report.ok:
            failures += 1
            print(f"seed {seed}: {report.failure}" if options.keep_going else report, flush=True)
            if not options.keep_going:
                return 1
    print(f"{options.seeds} seeds, {committed} commits, {failures} failures, {time.monotonic() - began:.1f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
