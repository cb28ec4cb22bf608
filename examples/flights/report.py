"""build/demo/report.html: one self-contained page with inline SVG pictures."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.flights import carriers, corrections
from examples.flights.events import Event, all_events
from examples.flights.places import (
    CLUSTER,
    EXAMPLE_ENTRY_BYTES,
    EXAMPLE_FAILING,
    EXAMPLE_RATE,
    SECONDS_A_YEAR,
    Place,
)
from examples.flights.settings import MONTHS, PIPELINES, REPORT

if TYPE_CHECKING:
    from examples.flights.demo import Run

PAGE: Final = Path(__file__).with_name("page.html")

WIDTH, LEFT, LANE_HEIGHT = 1080, 110, 46
LANE_NAMES: Final = {
    "A": "pipeline A",
    "B": "pipeline B",
    carriers.LANE: "stream",
    "corrections": "service",
    "reader": "reader",
    "tso": "TSO",
    CLUSTER: "HBase",
}


def growth_text(place: Place) -> str:
    """Return a sentence on the entries that dead clients leave in a year: in Omid's example, and in this store."""
    example = EXAMPLE_RATE * EXAMPLE_FAILING * SECONDS_A_YEAR * EXAMPLE_ENTRY_BYTES
    words, here = place.growth()
    return (
        f"Without sanitizing the commit table would grow by {example / 1e9:.0f} GB a year at {EXAMPLE_RATE:,} tx/s × "
        f"{EXAMPLE_FAILING:.0%} failing × {EXAMPLE_ENTRY_BYTES} B; this store {words}: {here / 1e12:.1f} TB"
    )


def write(run: Run) -> None:
    events = all_events()
    verdict = "every figure equals the source" if not run.failures else f"{len(run.failures)} failures"
    body = [
        f"<h1>Flights of 2013, in transactions</h1><p class='lead'>{_verdict(run)}</p>",
        _tiles(run, events),
        "<h2>What happened</h2>",
        in_wide(_timeline(events)),
        _legend(),
        "<h2>Faults</h2>",
        table(
            ("fault", "happened", "outcome found afterwards", "orphan cells removed"),
            [(f.what, "yes" if f.hit else "no", f.outcome, f"{f.orphans:,}") for f in run.faults.values()],
        ),
        "<h2>The store before and after compaction and sanitizing</h2>",
        in_wide(_sizes(run)),
        f"<p>{html.escape(growth_text(run.place))}.</p>",
        "<h2>Comparison with the source</h2>",
        table(
            ("figure", "source", "database", ""),
            [
                (c.what, _number(c.source), _number(c.database), "equal" if c.equal else "different")
                for c in run.comparisons
            ],
        ),
        *[f"<p class='bad'>{html.escape(failure)}</p>" for failure in run.failures],
    ]
    page = PAGE.read_text(encoding="utf-8").replace("{title}", html.escape(verdict)).replace("{body}", "\n".join(body))
    REPORT.write_text(page, encoding="utf-8")


def _verdict(run: Run) -> str:
    if run.failures:
        return f"<span class='bad'>{len(run.failures)} checks failed.</span>"
    return (
        f"Two PySpark pipelines, a stream of their changes, a service and a reader on {run.place.title}. Killed: a "
        f"worker, three drivers, {run.place.deaths}. "
        "<b>Nothing was lost, nothing was counted twice, no snapshot was torn.</b>"
    )


def _tiles(run: Run, events: Sequence[Event]) -> str:
    def kinds(*names: str) -> int:
        return sum(event.kind in names for event in events)

    corrected = len(corrections.committed_runs())
    flights = next((c.database for c in run.comparisons if c.what == "rows in flights"), 0)
    seconds = events[-1].at - events[0].at if events else 0
    figures = [
        (f"{flights:,}", "flights"),
        (str(MONTHS), "months, one transaction each"),
        (str(kinds("conflict")), "conflicts, retried"),
        (str(len(carriers.merged_batches(events))), "batches of changes, merged by the stream"),
        (str(corrected), "flights corrected by the service"),
        (str(run.snapshots), f"snapshots checked, {run.torn} torn"),
        (f"{seconds:.0f} s", "on this machine"),
    ]
    return "<div class='tiles'>" + "".join(f"<div><b>{n}</b><span>{t}</span></div>" for n, t in figures) + "</div>"


# --- the time line ----------------------------------------------------------------------------------------


def _timeline(events: Sequence[Event]) -> str:
    shown = [event for event in events if event.lane in LANE_NAMES]
    if not shown:
        return ""
    lanes = [lane for lane in LANE_NAMES if any(event.lane == lane for event in shown)]
    first, last = shown[0].at, max(event.at for event in shown)
    scale = (WIDTH - LEFT - 20) / max(last - first, 1e-9)

    def x(at: float) -> float:
        return LEFT + (at - first) * scale

    height = LANE_HEIGHT * len(lanes) + 40
    parts = [f"<svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label='time line'>"]
    parts += axis(first, last, x, height)
    for index, lane in enumerate(lanes):
        middle = 20 + LANE_HEIGHT * index + LANE_HEIGHT / 2
        parts.append(f"<text x='{LEFT - 12}' y='{middle + 4}' class='lane'>{LANE_NAMES[lane]}</text>")
        parts.append(f"<line x1='{LEFT}' y1='{middle}' x2='{WIDTH - 20}' y2='{middle}' class='rail'/>")
        of_lane = [event for event in shown if event.lane == lane]
        parts += _attempts(of_lane, x, middle) if lane in (*PIPELINES, carriers.LANE) else _dots(of_lane, x, middle)
    parts.append("</svg>")
    return "".join(parts)


def axis(first: float, last: float, x: Any, height: int) -> Iterable[str]:
    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300) if (last - first) / s <= 14 or s == 300)
    second = 0
    while second <= last - first:
        at = x(first + second)
        yield f"<line x1='{at:.1f}' y1='16' x2='{at:.1f}' y2='{height - 20}' class='grid'/>"
        yield f"<text x='{at:.1f}' y='{height - 4}' class='tick'>{second} s</text>"
        second += step


def _attempts(events: Sequence[Event], x: Any, middle: float) -> Iterable[str]:
    """Yield a bar for each attempt of a month or a batch, from begin to end: committed, lost or killed."""
    begun: Event | None = None
    for event in events:
        if event.kind == "begun":
            begun = event
        elif event.kind in ("committed", "conflict", "interrupted", "killed") and begun is not None:
            kind = {"committed": "good", "conflict": "lost", "interrupted": "lost", "killed": "dead"}[event.kind]
            what, number = _work(begun)
            title = f"{what} {number}, start {begun.values['start_ts']}: {event.kind}"
            yield _bar(x(begun.at), x(event.at), middle, kind, str(number), title)
            begun = None
        elif event.kind == "already":
            what, number = _work(event)
            yield _mark(x(event.at), middle, "known", f"{what} {number}: found already committed")
        if event.kind == "killed":
            yield cross(x(event.at), middle, "driver killed")


def _work(event: Event) -> tuple[str, int]:
    what = "month" if "month" in event.values else "batch"
    return what, event.values[what]


def _dots(events: Sequence[Event], x: Any, middle: float) -> Iterable[str]:
    for event in events:
        if event.kind in ("corrected", "agreed"):
            radius = 2 if event.kind == "corrected" else 5
            title = f"{event.kind}, start {event.values.get('start_ts', '')}"
            yield _dot(x(event.at), middle, radius, "good", title)
        elif event.kind in ("torn", "failed"):
            yield cross(x(event.at), middle, event.kind)
        elif event.kind == "interrupted":
            yield _dot(x(event.at), middle, 3, "lost", "interrupted")
        elif event.kind == "killed":
            yield cross(x(event.at), middle, f"process {event.values['pid']} killed")
        elif event.kind in ("split", "moved", "started"):
            words = ", ".join(f"{name} {value}" for name, value in event.values.items())
            yield _mark(x(event.at), middle, "known", f"{event.kind}: {words}")


def _dot(at: float, middle: float, radius: int, kind: str, title: str) -> str:
    return f"<circle cx='{at:.1f}' cy='{middle}' r='{radius}' class='{kind}'><title>{title}</title></circle>"


def _bar(left: float, right: float, middle: float, kind: str, label: str, title: str) -> str:
    width = max(right - left, 3)
    text = f"<text x='{left + width / 2:.1f}' y='{middle + 4}' class='bar'>{label}</text>" if width > 14 else ""
    box = f"<rect x='{left:.1f}' y='{middle - 11}' width='{width:.1f}' height='22' rx='3' class='{kind}'>"
    return f"{box}<title>{html.escape(title)}</title></rect>{text}"


def _mark(at: float, middle: float, kind: str, title: str) -> str:
    points = f"{at:.1f},{middle - 8} {at + 8:.1f},{middle} {at:.1f},{middle + 8} {at - 8:.1f},{middle}"
    return f"<polygon points='{points}' class='{kind}'><title>{html.escape(title)}</title></polygon>"


def cross(at: float, middle: float, title: str) -> str:
    top = middle - 19
    return (
        f"<g class='fault'><title>{html.escape(title)}</title>"
        f"<path d='M{at:.1f} {middle + 13} V{top} M{at - 5:.1f} {top - 1} l10 10 M{at + 5:.1f} {top - 1} l-10 10'/></g>"
    )


def _legend() -> str:
    items = [
        ("good", "committed, agreed"),
        ("lost", "conflict or interruption: retried"),
        ("dead", "its driver was killed"),
        ("known", "found committed by its idempotency key"),
        ("cross", "kill −9"),
    ]
    return "<p class='legend'>" + "".join(f"<span><i class='{k}'></i>{t}</span>" for k, t in items) + "</p>"


# --- sizes ------------------------------------------------------------------------------------------------


def _sizes(run: Run) -> str:
    if run.before is None or run.after is None:
        return ""
    rows = [
        ("cells", run.before.cells, run.after.cells),
        ("without shadow cell", run.before.missing_shadow_cells, run.after.missing_shadow_cells),
        ("orphans", run.before.orphans, run.after.orphans),
        ("commit-table entries", run.before.commit_table_entries, run.after.commit_table_entries),
    ]
    parts = [f"<svg viewBox='0 0 {WIDTH} {len(rows) * 58 + 10}' role='img' aria-label='store sizes'>"]
    for index, (name, before, after) in enumerate(rows):
        top = index * 58 + 8
        most = max(before, after, 1)
        parts.append(f"<text x='{170}' y='{top + 27}' class='lane'>{name}</text>")
        for offset, kind, value in ((0, "before", before), (21, "after", after)):
            width = max(1.0, 700 * value / most) if value else 0
            parts.append(f"<rect x='186' y='{top + offset}' width='{width:.1f}' height='17' rx='2' class='{kind}'/>")
            parts.append(f"<text x='{192 + width:.1f}' y='{top + offset + 13}' class='value'>{value:,} {kind}</text>")
    parts.append("</svg>")
    return "".join(parts)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return in_wide(f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>")


def in_wide(picture: str) -> str:
    """Wrap content that scrolls sideways in a narrow window."""
    return f"<div class='wide'>{picture}</div>"


def _number(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return "; ".join(map(_number, value))
    return str(value) if value else "none"
