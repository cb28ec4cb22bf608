"""build/cdc/report.html: one self-contained page with a picture of what was landed when."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.cdc.events import noted
from examples.flights.report import LEFT, PAGE, WIDTH, axis, cross, in_wide, table

if TYPE_CHECKING:
    from examples.cdc.demo import Run

HEIGHT = 260


def write(folder: Path, run: Run) -> None:
    events = noted(folder)
    landed = [event for event in events if event["kind"] == "landed"]
    verdict = "every snapshot agrees" if not run.failures else f"{len(run.failures)} failures"
    kills = [event["what"] for event in events if event["kind"] == "killed"]
    figures = [
        (f"{run.events:,}", "change events of four tables"),
        (f"{run.transactions:,}", "transactions of the shop, each landed whole"),
        (f"{rate(landed):,.0f}", "events a second landed"),
        (str(len(landed)), "batches, one transaction each"),
        (f"{run.checked}", f"snapshots checked, {run.torn} torn"),
        (f"{kills.count('driver')} + {kills.count('worker')}", "kills of driver and workers"),
    ]
    body = [
        "<h1>Change data of four tables, landed as one cut</h1>",
        "<div class='tiles'>" + "".join(f"<div><b>{n}</b><span>{t}</span></div>" for n, t in figures) + "</div>",
        "<h2>Events landed a second; crosses are kills</h2>",
        in_wide(picture(events, landed)),
        "<h2>At the end</h2>",
        table(("table", "rows that differ from the shop's"), list(run.differing.items())),
    ]
    if run.delta:
        rows = [
            ("pyomid", run.checked, run.torn),
            ("Delta Lake, table by table", run.delta["checked"], run.delta["torn"]),
        ]
        body += ["<h2>Snapshots of a reader beside the stream</h2>", table(("", "checked", "torn"), rows)]
    body += [f"<p class='bad'>{html.escape(failure)}</p>" for failure in run.failures]
    page = PAGE.read_text(encoding="utf-8").replace("{title}", html.escape(verdict)).replace("{body}", "\n".join(body))
    (folder / "report.html").write_text(page, encoding="utf-8")


def rate(landed: list[dict[str, Any]]) -> float:
    """Return the events a second from the begin of the first batch to the end of the last one."""
    if not landed:
        return 0.0
    seconds = landed[-1]["at"] - (landed[0]["at"] - landed[0]["seconds"])
    return float(sum(event["events"] for event in landed) / seconds)


def picture(events: list[dict[str, Any]], landed: list[dict[str, Any]]) -> str:
    if not landed:
        return ""
    first, last = events[0]["at"], max(event["at"] for event in events)
    most = max(event["events"] / event["seconds"] for event in landed)

    def x(at: float) -> float:
        return LEFT + (at - first) * (WIDTH - LEFT - 20) / (last - first)

    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='events landed a second'>"]
    parts += axis(first, last, x, HEIGHT)
    parts += bars(landed, x, most)
    parts += [cross(x(e["at"]), HEIGHT / 2, f"{e['what']} killed") for e in events if e["kind"] == "killed"]
    return "".join([*parts, f"<text x='{LEFT - 12}' y='30' class='lane'>{most:,.0f}/s</text></svg>"])


def bars(landed: list[dict[str, Any]], x: Any, most: float) -> Iterator[str]:
    for event in landed:
        left, right = x(event["at"] - event["seconds"]), x(event["at"])
        height = (HEIGHT - 60) * event["events"] / event["seconds"] / most
        box = f"<rect x='{left:.1f}' y='{HEIGHT - 20 - height:.1f}' width='{max(right - left, 2):.1f}'"
        title = f"{event['events']} events in {event['seconds']:.1f} s, {event['waiting']} waiting"
        yield f"{box} height='{height:.1f}' class='good'><title>{title}</title></rect>"
