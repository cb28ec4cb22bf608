"""The shape of the package: what a linter's contract does not say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

import pyomid

PACKAGE = Path(pyomid.__file__).parent
MODULES_MIN = 4


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; those for type checkers do not: a table names its transaction's type."""
    graph = grimp.build_graph("pyomid", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert list(circles(imports)) == []


def test_what_imports_itself_by_another_is_found() -> None:
    assert list(circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})) == [["b", "c"]]


def test_no_folder_has_fewer_than_four_modules() -> None:
    """But those of compiled code, which holds what is compiled."""
    counts = Counter(path.parent for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    few = {str(folder.relative_to(PACKAGE)) for folder, count in counts.items() if count < MODULES_MIN}
    assert {folder for folder in few if not folder.endswith("native")} <= {"testing", "omid", "omid/client"}


FETCHES = re.compile(
    r"(?<!class )\b(?:ReadRows|ReadRange|ReadSettled|NextBatch|StartOfLastRows|FetchedBatch|resolve_rows)\("
    r"|store\.(?:scan|read_rows|read_settled|changed_rows|start_of_last_rows)\("
)
FETCH = {
    "protocol/reading.py": "checks each read",
    "protocol/changes.py": "ends with check_kept",
    "database/driver.py": "performs the effects",
    "database/change_feed.py": "ends with check_kept",
    "database/found_tables.py": "a table that is not registered yet",
    "database/writes/store_view.py": "own versions, before they are replaced; the read that needs them is checked",
    "protocol/commit.py": "own versions, as evidence of a commit",
    "protocol/compaction.py": "returns no rows",
    "database/upkeep/verification.py": "returns no rows",
    "spark/run_outcome.py": "a table that is never dropped",
    "spark/source/write_task.py": "versions of the transaction's branches, whose commit a drop's fence refuses",
}
"""R10: the modules that fetch rows from a store, and what tells them that a table was dropped meanwhile."""


def test_r10_rows_reach_readers_by_few_ways() -> None:
    """Whoever reads in another module reads by `read_rows`, `read_settled` or `SnapshotScan`."""
    modules = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    found = {
        name for name, text in modules.items() if FETCHES.search(text) and not name.startswith(("folder/", "omid/"))
    }
    assert found == FETCH.keys()


def circles(imports: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """What is left of the modules when those that import nothing left, or that nothing left imports, are taken away:
    each circle, and what lies between two."""
    left = dict(imports)
    while True:
        imported = {module for module in left for module in left[module]}
        ends = {m for m, each in left.items() if not each & left.keys() or m not in imported}
        if not ends:
            break
        left = {module: each for module, each in left.items() if module not in ends}
    if left:
        yield sorted(left)
