"""The numbers of hazards: each is defined in one document, and named in the source and in the tests.

With Q for the letter of a hazard, these name a number:

    (Q15) · (law 8, Q3) · hazard Q7    in brackets, perhaps as an item of a list, or after the word
    Q4: …                              at the beginning of a docstring, comment or item
    Q1–Q4                              the two ends of a range: whoever searches for the others does not find them
    def test_q5_…                      a test's name
    _m("Q6e", …)                       a mutant's, one of several of a rule

    python tests/docs/hazard_numbers.py        a part of `make check`: one sentence for each number that is wrong
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
SOURCE, TESTS, DOCUMENTS = "src/pyomid", "tests", "docs"
_DEFINED: Final = re.compile(r"^- \*\*([A-Z]\d+)\*\* ", re.MULTILINE)
_NAMED: Final = re.compile(r"\b[A-Z][1-9]\d?(?=[),;:–])")
_BEFORE: Final = re.compile(r"(?:[(\"–\n]|[,;#] |\n +|\bhazards? )$")
_BEFORE_CHARS: Final = 40
_NAMED_BY_TEST: Final = re.compile(r"\bdef test_([a-z][1-9]\d?)_|\b_m\(\s*\"([A-Z]\d+)[a-z]?\"")
_SUFFIXES: Final = (".py", ".pyx", ".pxd", ".h", ".txt")


def files_below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the path, below the repository, and the text of each file."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in suffixes and "_pb2" not in path.name:
            yield str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")


def named_in(text: str) -> set[str]:
    """Return the numbers that the text of a file names."""
    by_test = {number.upper() for match in _NAMED_BY_TEST.findall(text) for number in match if number}
    return by_test | {
        found[0]
        for found in _NAMED.finditer(text)
        if _BEFORE.search(text[max(0, found.start() - _BEFORE_CHARS) : found.start()])
    }


def faults(
    documents: Iterable[tuple[str, str]], source: Iterable[tuple[str, str]], tests: Iterable[tuple[str, str]]
) -> list[str]:
    """Return one sentence for each number that is wrong. Each argument: (path, text) of files."""
    defined: dict[str, str] = {}
    found: list[str] = []
    for path, text in documents:
        for number in _DEFINED.findall(text):
            if number in defined:
                found.append(
                    f"{number} is defined in {defined[number]} and in {path}: give one of them another number."
                )
            defined[number] = path
    letters = {number[0] for number in defined}
    everywhere: dict[str, str] = {}
    for files, missing in (
        (source, f"no file of {SOURCE} names it: name it at the code that keeps it"),
        (tests, f"no file of {TESTS} names it: name it at a test that fails without it"),
    ):
        named: dict[str, str] = {}
        for path, text in files:
            named.update(dict.fromkeys(named_in(text), path))
        found += [
            f"{number} is defined in {path}, but {missing}." for number, path in defined.items() if number not in named
        ]
        everywhere.update(named)
    return found + [
        f"{number} is named in {path}, but no document below {DOCUMENTS} defines it."
        for number, path in sorted(everywhere.items())
        if number[0] in letters and number not in defined
    ]


def main() -> int:
    documents = files_below(REPOSITORY / DOCUMENTS, (".md",))
    source, tests = (files_below(REPOSITORY / folder, _SUFFIXES) for folder in (SOURCE, TESTS))
    found = faults(documents, source, tests)
    print("\n".join(found) if found else "each number of a hazard is defined, kept and tested")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
