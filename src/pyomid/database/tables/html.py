"""Rows and changes as HTML tables, for notebooks (`_repr_html_`). Every text is escaped, and long values are
truncated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from pyomid.database.tables.row_classes import row_class
from pyomid.rows.values import shown_value


def rows_html(rows: Iterable[Mapping[Any, Any]], *, caption: str = "") -> str:
    """Return rows (mappings of column to value) as an HTML table, with a column for every name in any row."""
    found = list(rows)
    names = list(dict.fromkeys(name for row in found for name in row))
    head = _line("th", [_name(name) for name in names])
    body = "".join(_line("td", [shown_value(row[name]) if name in row else "" for name in names]) for row in found)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead>{head}</thead><tbody>{body}</tbody></table>"


def fields_of(row: Any) -> Mapping[str, Any]:
    """Return the values of a row object by name."""
    kind: Any = type(row)
    found = None if isinstance(row, Mapping) else row_class(kind)
    return row if found is None else found.taken(row)


def change_html(caption: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """Return a change of a row as an HTML table, with a line for each column and its values before and after."""
    lines = []
    for name in dict.fromkeys((*before, *after)):
        line = {"column": _Text(_name(name))}
        lines.append(line | {when: row[name] for when, row in (("before", before), ("after", after)) if name in row})
    return rows_html(lines, caption=caption)


class _Text(str):
    """Text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _name(name: object) -> str:
    return name if isinstance(name, str) else shown_value(name)


def _line(kind: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts) + "</tr>"
