"""The hour as a picture, an SVG of its own, and as some lines of text."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 900
PANEL: Final = 150
LEFT: Final = 70
RIGHT: Final = 20
GAP: Final = 50
TOP: Final = 30

Point = tuple[float, float]


@dataclass
class Notes:
    """What the processes of the hour noted; times are minutes from the first note."""

    readings: list[list[float]] = field(default_factory=list)
    """Minute, bytes, get's median, p99 and processor time (µs), scan's time and processor time (ms), rows that expire,
    load."""
    transfers: list[Point] = field(default_factory=list)
    """Minute, seconds until the answer."""
    rounds: list[Point] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Notes:
        notes, first = cls(), 0.0
        for line in path.read_text(encoding="utf-8").splitlines():
            at, kind, *rest = line.split(",")
            first = first or float(at)
            minute = (float(at) - first) / 60
            if kind == "reading":
                notes.readings.append([minute, *map(float, rest)])
            elif kind == "transfer":
                notes.transfers.append((minute, float(rest[0])))
            elif kind == "round":
                notes.rounds.append((minute, float(rest[0])))
            elif kind == "fault":
                notes.faults.append((minute, rest[0]))
            elif kind == "error":
                notes.errors[rest[0]] += 1
            else:
                notes.wrong.append(f"minute {minute:.1f}: {','.join(rest)}")
        return notes

    @property
    def minutes(self) -> float:
        return max(reading[0] for reading in self.readings)

    def by_minute(self, column: int, of: Callable[[list[float]], float] = statistics.median) -> list[Point]:
        """Of each minute's readings the median, or what `of` makes of them."""
        groups: dict[int, list[float]] = {}
        for reading in self.readings:
            groups.setdefault(int(reading[0]), []).append(reading[column])
        return [(minute + 0.5, of(values)) for minute, values in sorted(groups.items())]

    def answered(self) -> list[Point]:
        """Transfers a second, of each whole minute."""
        counts = Counter(int(minute) for minute, _ in self.transfers)
        return [(minute + 0.5, counts[minute] / 60) for minute in range(int(self.minutes))]


def summary(notes: Notes) -> list[str]:
    """The first and the last quarter beside each other, behind five minutes in which the folder finds its size."""
    lines = [
        f"{notes.minutes:.0f} minutes, {len(notes.transfers)} transfers answered, {len(notes.rounds)} rounds of the "
        f"batch job, {len(notes.readings)} checks, {len(notes.faults)} faults",
        ", ".join(f"{count} × {name}" for name, count in sorted(Counter(name for _, name in notes.faults).items())),
        f"longest wait for an answer: {max((s for _, s in notes.transfers), default=0):.1f} s; "
        f"errors that the checker saw: {dict(notes.errors) or 'none'}",
    ]
    names = {
        1: ("folder, MB", 1e-6),
        2: ("get, median µs", 1.0),
        4: ("get, processor time, µs", 1.0),
        5: ("scan of 1 000 rows, ms", 1.0),
        6: ("scan, processor time, ms", 1.0),
        7: ("rows of the table whose rows expire", 1.0),
        8: ("load of the machine", 1.0),
    }
    for column, (name, factor) in names.items():
        quarters = [
            [reading[column] * factor for reading in notes.readings if first <= _quarter(notes, reading[0]) < first + 1]
            for first in range(4)
        ]
        medians = [statistics.median(quarter) for quarter in quarters if quarter]
        lines.append(f"{name}, medians of the quarters: {', '.join(f'{median:.3g}' for median in medians)}")
    return lines


def _quarter(notes: Notes, minute: float) -> float:
    begin = min(5.0, notes.minutes / 5)
    return (minute - begin) / max(notes.minutes - begin, 1e-9) * 4 if minute < notes.minutes else 3.999


def draw(notes: Notes) -> str:
    """Four panels over one axis of minutes; a tick at the top for each fault."""
    panels: list[tuple[str, list[tuple[str, str, list[Point]]]]] = [
        (
            "folder on the disk, MB: of each minute the most",
            [("all its files", "#1f5fa8", [(at, size / 1e6) for at, size in notes.by_minute(1, max)])],
        ),
        (
            "get, µs: of each minute the median",
            [("time", "#1f5fa8", notes.by_minute(2)), ("processor time, on average", "#c2611f", notes.by_minute(4))],
        ),
        (
            "scan of 1 000 accounts, ms: of each minute the median",
            [("time", "#1f5fa8", notes.by_minute(5)), ("processor time", "#c2611f", notes.by_minute(6))],
        ),
        ("transfers answered, a second", [("of each minute", "#1f5fa8", notes.answered())]),
    ]
    height = TOP + len(panels) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" role="img">',
        "<title>A service and a batch job for an hour under faults: size, reads, throughput</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (title, lines) in enumerate(panels):
        parts += _panel(title, lines, TOP + number * (PANEL + GAP), notes)
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, lines: Sequence[tuple[str, str, list[Point]]], top: float, notes: Notes) -> list[str]:
    highest = max((value for _, _, points in lines for _, value in points), default=1.0) or 1.0
    ceiling = _round_up(highest)
    span, bottom, wide = max(notes.minutes, 1e-9), top + PANEL, WIDTH - LEFT - RIGHT

    def x(minute: float) -> float:
        return LEFT + min(minute / span, 1.0) * wide

    def y(value: float) -> float:
        return bottom - value / ceiling * PANEL

    parts = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{escape(title)}</text>']
    for step in range(5):
        value = ceiling * step / 4
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for tick_minute in range(0, int(span) + 1, 10 if span > 15 else 1):
        parts.append(f'<text x="{x(tick_minute):.1f}" y="{bottom + 15}" text-anchor="middle">{tick_minute} min</text>')
    for minute, name in notes.faults:
        tick = f"M{x(minute):.1f} {top}v7"
        parts.append(f'<path d="{tick}" stroke="#b00020"><title>{escape(name)}, minute {minute:.1f}</title></path>')
    label = float(WIDTH - RIGHT)
    for name, colour, points in reversed(lines):
        path = " ".join(f"{x(minute):.1f},{y(value):.1f}" for minute, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{label}" y="{top - 8}" fill="{colour}" text-anchor="end">{escape(name)}</text>')
        label -= 9.0 * len(name) + 10
    return parts


def _round_up(value: float) -> float:
    """To the next 1, 2, 4 or 8 of its power of ten: four grid lines have short names then."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * factor for factor in (1, 2, 4, 8, 10) if power * factor >= value)
