"""Draws the pictures of docs/concepts.md: two overlapping transactions, the two stores, the low watermark.

.venv/bin/python docs/pictures/concepts.py        # writes them; a test fails if one is out of date
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
WIDTH: Final = 860
GREEN, BLUE, RED, SAND, GREY = "#e3f1e3", "#e3ebf7", "#f7e0de", "#f7efdf", "#f2f2f2"
LINE, TEXT, SOFT, ALARM = "#555555", "#111111", "#444444", "#a02020"


def text(x: float, y: float, words: str, *, bold: bool = False, color: str = TEXT, middle: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{color}"{weight}{anchor}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4" fill="{fill}" '
        f'stroke="#888888"{dashes}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, arrow: bool = False, dashed: bool = False) -> str:
    marker = ' marker-end="url(#tip)"' if arrow else ""
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    return f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{LINE}"{marker}{dashes}/>'


def lines(x: float, y: float, *words: str, color: str = TEXT) -> list[str]:
    return [text(x, y + 19 * number, each, color=color) for number, each in enumerate(words)]


def svg(title: str, height: int, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13">\n<title>{escape(title)}</title>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{LINE}"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _moment(timestamp: int) -> float:
    return 120 + timestamp * 11


def _transaction(y: float, name: str, start: int, end: int, does: str, ends: str, *, commits: bool = True) -> list[str]:
    """A bar from the start timestamp to the commit timestamp, or to the refused commit."""
    left, right = _moment(start), _moment(end)
    return [
        text(10, y + 21, name, bold=True),
        box(left, y, right - left, 32, GREEN if commits else RED, dashed=not commits),
        text(left + 8, y + 21, does),
        text(right + 8, y + 21, ends, color=TEXT if commits else ALARM),
    ]


def _time_line(y: float, timestamps: tuple[int, ...]) -> list[str]:
    parts = [line(_moment(0), y, WIDTH - 20, y, arrow=True), text(10, y + 5, "timestamps", color=SOFT)]
    for each in timestamps:
        parts += [line(_moment(each), y - 4, _moment(each), y + 4), text(_moment(each), y + 20, str(each), middle=True)]
    return parts


def transactions() -> str:
    parts = [text(10, 24, "A conflict: two overlapping transactions write the same cell", bold=True)]
    parts += _transaction(40, "A", 5, 22, "reads 9, writes 8", "commits at 22")
    parts += _transaction(82, "B", 12, 31, "reads 9, writes 8", "ConflictError: 22 is above 12", commits=False)
    parts += _transaction(124, "B, rerun", 36, 53, "reads 8, writes 7", "commits at 53")
    parts += _time_line(176, (5, 12, 22, 31, 36, 53))
    y = 232
    parts += [text(10, y, "A claim: each transaction reads what the other one writes", bold=True)]
    parts += _transaction(y + 16, "C", 5, 32, "reads and claims x, writes y", "commits at 32")
    parts += _transaction(y + 58, "D", 12, 39, "reads y, writes x", "ConflictError: x was claimed", commits=False)
    parts += _time_line(y + 110, (5, 12, 32, 39))
    parts += lines(
        120,
        y + 154,
        "The left edge of a bar is the start timestamp: the transaction reads the snapshot of that time.",
        "A commit fails if a transaction that committed after this start wrote or claimed one of the same cells.",
        color=SOFT,
    )
    return svg("Two overlapping transactions: a conflict, and a claim", y + 190, parts)


def stores() -> str:
    half, gap = 405, 20
    right = 15 + half + gap
    parts = [
        text(15, 24, "A folder: omid:///folder", bold=True),
        text(right, 24, "A cluster: omid+hbase://…", bold=True),
        # the folder
        box(15, 40, 190, 52, GREEN),
        *lines(25, 62, "process 1: your program", "with pyomid inside"),
        box(230, 40, 190, 52, GREEN),
        *lines(240, 62, "process 2: a Spark task", "with pyomid inside"),
        line(110, 92, 150, 134, arrow=True),
        line(325, 92, 285, 134, arrow=True),
        box(15, 136, half, 72, SAND),
        text(25, 158, "LMDB's write lock", bold=True),
        text(25, 177, "one process at a time decides the waiting commits"),
        text(25, 196, "and writes their rows, in one LMDB transaction"),
        line(217, 208, 217, 238, arrow=True),
        box(15, 240, half, 72, GREY),
        text(25, 262, "data.mdb, one file on this machine", bold=True),
        *lines(25, 281, "rows, each with its commit timestamp;", "catalog, leases, W"),
        # the cluster
        box(right, 40, 190, 52, GREEN),
        *lines(right + 10, 62, "machine 1: your program", "with pyomid inside"),
        box(right + 215, 40, 190, 52, GREEN),
        *lines(right + 225, 62, "machine 2: a Spark task", "with pyomid inside"),
        line(right + 40, 92, right + 40, 238, arrow=True),
        line(right + 290, 92, right + 290, 134, arrow=True),
        text(right + 48, 118, "1 rows", color=SOFT),
        text(right + 298, 118, "2 write set", color=SOFT),
        box(right + 100, 136, 305, 72, SAND),
        text(right + 110, 158, "TSO, one leading process", bold=True),
        *lines(right + 110, 177, "compares the write set with its conflict map", "of recent commits, in memory"),
        line(right + 290, 208, right + 290, 238, arrow=True),
        text(right + 298, 228, "3 commit entry", color=SOFT),
        box(right, 240, half, 72, GREY),
        text(right + 10, 262, "HBase, on many machines", bold=True),
        *lines(right + 10, 281, "rows; later their shadow cells", "commit table: start → commit"),
    ]
    rows = (
        ("Who decides", "the process with the write lock", "the leading TSO"),
        ("Where rows are", "in the folder's data file", "in HBase's regions, on any server"),
        (
            "When a commit is acknowledged",
            "after LMDB's sync of rows and commit",
            "after the flush of the commit entry",
        ),
        ("If a client dies", "its commit is whole, or absent", "its cells stay invisible if there is no entry"),
    )
    for number, (question, folder, cluster) in enumerate(rows):
        y = 340 + number * 40
        parts += [
            text(15, y, question, bold=True),
            text(15, y + 18, folder),
            text(right, y + 18, cluster),
        ]
    return svg("A folder and HBase side by side: who decides, where rows are, what is durable", 490, parts)


def watermark() -> str:
    now, mark, sanitized = 800, 250, 130
    bars = (
        (270, "lease", "keeps a Spark job's snapshot until the job or the lease ends", BLUE),
        (370, "retention=7d", "keeps the history of the last seven days readable", SAND),
        (530, "open transaction", "keeps its snapshot", GREEN),
    )
    parts = [
        box(20, 40, mark - 20, 62, RED),
        *lines(30, 64, "compaction may have dropped", "versions: SnapshotTooOld"),
        box(mark, 40, now - mark, 62, GREEN),
        *lines(mark + 10, 64, "each snapshot here can be read: compaction keeps all versions", "that it may need"),
    ]
    parts += [line(x, 102, x, 296, dashed=True) for x, *_ in bars]
    for number, (x, name, words, fill) in enumerate(bars):
        y = 124 + number * 46
        parts += [box(x, y, now - x, 32, fill)]
        parts += [text(x + 8, y + 21, f"{name}: {words}")]
    parts += [line(20, 296, 840, 296, arrow=True), text(20, 24, "Timestamps, from old to new", bold=True)]
    for x, name in ((sanitized, "H"), (mark, "W"), (now, "now")):
        parts += [line(x, 290, x, 302), text(x, 320, name, bold=True, middle=True)]
    parts += [line(mark, 102, mark, 296)]
    parts += lines(
        20,
        350,
        "W, the low watermark, stays below the oldest of these three. When the oldest ends, W rises to the next.",
        "H, the sanitized horizon, follows W: below H every kept version carries its commit timestamp.",
        color=SOFT,
    )
    return svg("The low watermark W, leases and retention on the time line", 386, parts)


def pictures() -> dict[Path, str]:
    """Return each picture's file and content."""
    drawn = (transactions, stores, watermark)
    return {FOLDER / f"{each.__name__}.svg": each() for each in drawn}


if __name__ == "__main__":
    for path, content in pictures().items():
        path.write_text(content)
