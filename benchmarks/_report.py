"""What every benchmark prints the same way: the machine and versions, medians with their spread, ratios of one run.

    report = Report("embedded: point work")
    raw = report.measure("raw LMDB get", get_raw, items=10_000)           # items per second, median of several
    ours = report.measure("point get", get_ours, items=10_000)
    report.ratio("point get ÷ raw LMDB get", ours, raw)
    report.finish()                                                       # exit code 1 where a goal was missed

Contenders of one ratio should be measured by `measure_together`, which takes turns, so that a noisy neighbour
hits all of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Work = Callable[[], object]

_PACKAGES = ("pyomid", "lmdb", "numpy", "pyarrow", "pyspark", "uvloop", "protobuf")


@dataclass(frozen=True, slots=True)
class Sample:
    """Runs of one piece of work; `items` is what one run handles."""

    name: str
    seconds: tuple[float, ...]
    items: int
    unit: str = "items"

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def per_second(self) -> float:
        return self.items / self.median_s

    @property
    def item_us(self) -> float:
        return self.median_s / self.items * 1e6


@dataclass(slots=True)
class Report:
    """Prints as it goes; `missed` collects the ratios that fell short of their goals."""

    title: str
    missed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        print(f"\n{self.title}\n{'=' * len(self.title)}")
        for line in machine_lines():
            print(line)
        print()

    def measure(self, name: str, work: Work, *, items: int, unit: str = "items", runs: int = 5) -> Sample:
        return self.measure_together({name: work}, items=items, unit=unit, runs=runs)[0]

    def measure_together(
        self, works: Mapping[str, Work], *, items: int, unit: str = "items", runs: int = 5
    ) -> list[Sample]:
        """Each once to warm up, then in turns."""
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(runs + 1):
            for name, work in works.items():
                elapsed = timed(work)
                if turn > 0:
                    seconds[name].append(elapsed)
        return [self.show(Sample(name, tuple(taken), items, unit)) for name, taken in seconds.items()]

    def show(self, sample: Sample) -> Sample:
        low, high = sample.items / max(sample.seconds), sample.items / min(sample.seconds)
        print(
            f"  {sample.name:<52} {quantity(sample.per_second):>9} {sample.unit}/s  "
            f"({quantity(low)} … {quantity(high)}, {sample.item_us:.3g} µs each, {len(sample.seconds)} runs)"
        )
        return sample

    def latencies(self, name: str, taken_s: Sequence[float]) -> tuple[float, float]:
        """Prints and returns median and 99th percentile, in seconds."""
        ordered = sorted(taken_s)
        p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        print(f"  {name:<52} p50 {p50 * 1e6:>8.1f} µs   p99 {p99 * 1e6:>8.1f} µs   ({len(ordered)} calls)")
        return p50, p99

    def ratio(
        self,
        name: str,
        ours: Sample | float,
        theirs: Sample | float,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> float:
        """Of rates (samples) or of any two numbers; a goal that is missed is said and remembered."""
        value = _number(ours) / _number(theirs)
        goals = [f"goal ≥ {at_least:g}"] if at_least is not None else []
        goals += [f"goal ≤ {at_most:g}"] if at_most is not None else []
        missed = (at_least is not None and value < at_least) or (at_most is not None and value > at_most)
        if missed:
            self.missed.append(name)
        print(f"  → {name:<50} {value:>9.3g} ×  {', '.join(goals)}{'  MISSED' if missed else ''}")
        return value

    def note(self, text: str) -> None:
        print(f"  {text}")

    def finish(self) -> int:
        """Says which goals were missed; the number of them, for an exit code."""
        if self.missed:
            print(f"  missed: {'; '.join(self.missed)}")
        sys.stdout.flush()
        return len(self.missed)


def timed(work: Work) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def quantity(value: float) -> str:
    """1234567 → '1.23 M'."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def machine_lines() -> list[str]:
    packages = [f"{name} {version}" for name in _PACKAGES if (version := _version(name)) is not None]
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return [
        f"machine   {_processor()}, {os.cpu_count()} cores, {_memory_gb():.0f} GB, Linux {platform.release()}, "
        f"load {load}",
        f"versions  Python {platform.python_version()}, {', '.join(packages)}",
    ]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def _memory_gb() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)


def _number(value: Sample | float) -> float:
    return value.per_second if isinstance(value, Sample) else value
