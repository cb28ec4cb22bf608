"""Results as text tables."""

from __future__ import annotations

from collections.abc import Sequence


def table_text(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns; numbers are right-aligned, with thousands separated."""
    shown = [[_shown(value) for value in row] for row in rows]
    widths = [max(len(line[index]) for line in (headings, *shown)) for index in range(len(headings))]
    numeric = [all(isinstance(row[index], int | float) for row in rows) for index in range(len(headings))]
    lines = [_line(headings, widths, numeric), "  ".join("-" * width for width in widths)]
    lines += [_line(line, widths, numeric) for line in shown]
    return "\n".join(lines)


def _line(values: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = [
        value.rjust(width) if right else value.ljust(width)
        for value, width, right in zip(values, widths, numeric, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"{value:,.2f}".replace(",", " ")
