"""Draws docs/pictures/house.svg: the packages by the layers of the import contracts in pyproject.toml.

.venv/bin/python docs/pictures/house.py        # writes it; a test fails if it is out of date
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURE: Final = ROOT / "docs" / "pictures" / "house.svg"
WIDTH, ROW, GAP, INSET = 860, 34, 10, 14
FILLS: Final = {"folder": "#e3f1e3", "omid": "#e3ebf7", "database": "#f7efdf"}


def layers() -> tuple[list[list[str]], list[list[str]]]:
    """Return the layers of the whole, and those inside Omid's system, highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    of = {tuple(each.get("containers", ())): each["layers"] for each in contracts if each["type"] == "layers"}
    return [_siblings(layer) for layer in of[()]], [_siblings(layer) for layer in of["pyomid.omid",]]


def _siblings(layer: str) -> list[str]:
    return [name.strip() for name in layer.split("|")]


def words_of(package: str) -> str:
    """Return the first sentence of a package's docstring."""
    path = ROOT / "src" / package.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not source.exists():
        return ""
    text = ast.get_docstring(ast.parse(source.read_text())) or ""
    return (
        " ".join(text.split())
        .split(". ")[0]
        .split(": ")[0]
        .split(" (")[0]
        .split(", as ")[0]
        .rstrip(".")
        .replace("`", "")
    )


def picture() -> str:
    whole, inside = layers()
    parts: list[str] = []
    y = GAP
    for names in whole:
        homes = "pyomid.omid" in names
        height = 2 * ROW + len(inside) * (ROW + 4) if homes else ROW
        width = (WIDTH - GAP * (len(names) + 1)) / len(names)
        for number, name in enumerate(names):
            x = GAP + number * (width + GAP)
            short = name.removeprefix("pyomid.")
            parts.append(_box(x, y, width, height, short, words_of(name), FILLS.get(short, "#f2f2f2")))
            if name == "pyomid.omid":
                parts += _rooms(inside, x + INSET / 2, y + ROW + 12, width - INSET)
            elif homes:
                parts += _modules(ROOT / "src" / name.replace(".", "/"), x + 8, y + 2 * ROW - 16, width, height)
        y += height + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="12">\n'
        "<title>Packages of pyomid; each imports only from what is below it</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _rooms(inside: list[list[str]], x: float, y: float, width: float) -> list[str]:
    rooms: list[str] = []
    for names in inside:
        each = (width - 4 * (len(names) - 1)) / len(names)
        for number, name in enumerate(names):
            rooms.append(_box(x + number * (each + 4), y, each, ROW - 4, name, "", "#ffffff"))
        y += ROW + 4
    return rooms


def _modules(folder: Path, x: float, y: float, width: float, height: float) -> list[str]:
    """Return the names of a package's modules and folders, in two columns."""
    names = sorted(
        f"{path.stem}/" if path.is_dir() else path.stem
        for path in folder.iterdir()
        if not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists())
    )
    rows = -(-len(names) // 2)
    step = min(16.0, (height - 2 * ROW + 10) / rows)
    return [
        f'<text x="{x + index // rows * width / 2:.0f}" y="{y + index % rows * step:.0f}" font-size="10" '
        f'fill="#444444">{escape(name)}</text>'
        for index, name in enumerate(names)
    ]


def _box(x: float, y: float, width: float, height: float, name: str, words: str, fill: str) -> str:
    room = int(width / 6.4) - len(name) - 3
    shown = words if len(words) <= room else ""
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4" fill="{fill}" '
        f'stroke="#888888"/><text x="{x + 8:.0f}" y="{y + 20:.0f}"><tspan font-weight="bold">{escape(name)}</tspan>'
        f'<tspan dx="10" fill="#444444">{escape(shown)}</tspan></text>'
    )


def pictures() -> dict[Path, str]:
    """Return the picture's file and content."""
    return {PICTURE: picture()}


if __name__ == "__main__":
    for path, content in pictures().items():
        path.write_text(content)
