"""The site's navigation and API pages are whole: without building it (`make docs` does, and checks each link)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
import yaml

from pyomid.spark import SparkDatabase

pytestmark = pytest.mark.fast

REPOSITORY = Path(__file__).parents[2]
SITE = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))


def targets(entry: object) -> Iterator[str]:
    """Of a part of the navigation: pages and folders."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, list):
        for each in entry:
            yield from targets(each)
    elif isinstance(entry, dict):
        for each in entry.values():
            yield from targets(each)


def test_navigation_leads_to_every_page_of_docs() -> None:
    listed = list(targets(SITE["nav"]))
    assert len(listed) > 20
    assert len(set(listed)) == len(listed)
    for target in listed:
        assert (REPOSITORY / target).exists(), target
    for page in (REPOSITORY / "docs").rglob("*.md"):
        path = str(page.relative_to(REPOSITORY))
        assert path in listed or str(page.parent.relative_to(REPOSITORY)) in listed, f"mkdocs.yml, nav: {path}"


def shown() -> Iterator[tuple[str, list[str]]]:
    """Each name that an API page shows, with the members that it lists."""
    for page in sorted((REPOSITORY / "docs" / "api").glob("*.md")):
        for block in page.read_text(encoding="utf-8").split("\n::: ")[1:]:
            members = re.search(r"^ +members: \[(.*)\]$", block, re.MULTILINE)
            yield block.split("\n")[0], members[1].split(", ") if members else []


def found(name: str) -> object:
    """The module, or what it holds, by its dotted name."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(found(module), attribute)


@pytest.mark.parametrize(("name", "members"), list(shown()))
def test_every_name_of_the_api_pages_exists(name: str, members: list[str]) -> None:
    owner = found(name)
    for member in members:
        assert hasattr(owner, member) or f"self.{member}" in inspect.getsource(cast(type, owner)), member


@pytest.mark.parametrize("package", ["pyomid", "pyomid.aio", "pyomid.spark"])
def test_api_pages_show_every_public_name(package: str) -> None:
    names = {name for name, _ in shown()}
    errors = set(vars(import_module("pyomid.errors")))
    for public in import_module(package).__all__:
        assert f"{package}.{public}" in names or public in errors or public == "__version__", f"docs/api: {public}"


CLASSES = [(name, members) for name, members in shown() if members and isinstance(found(name), type)]


@pytest.mark.parametrize(("name", "members"), CLASSES, ids=[name for name, _ in CLASSES])
def test_the_members_that_a_page_lists_are_all_that_programs_may_use(name: str, members: list[str]) -> None:
    public, _, _ = inspect.getsource(cast(type, found(name))).partition("    # For pyomid's own use")
    defined = set(re.findall(r"^    (?:async )?def ([a-z]\w*)\(", public, re.MULTILINE))
    assert {each for each in defined if not each.endswith("_steps")} <= set(members)


def test_the_page_of_spark_shows_every_method_that_is_a_function_of_another_module() -> None:
    bound = [each for each in vars(SparkDatabase).values() if inspect.isfunction(each) and "." not in each.__qualname__]
    assert len(bound) > 10
    assert {f"{each.__module__}.{each.__name__}" for each in bound} <= {name for name, _ in shown()}


@pytest.mark.parametrize("package", ["pyomid", "pyomid.aio", "pyomid.spark", "pyomid.observe"])
def test_api_pages_show_no_name_that_is_not_exported(package: str) -> None:
    exported = import_module(package).__all__
    listed = [name for name, _ in shown() if name.rpartition(".")[0] == package]
    assert listed
    for name in listed:
        assert name.rpartition(".")[2] in exported or inspect.ismodule(found(name)), name


@pytest.mark.parametrize("module", ["history", "checker"])
def test_the_page_of_testing_shows_every_public_class_and_function(module: str) -> None:
    """The exceptions are forms of what the recorder records."""
    source = inspect.getsource(import_module(f"pyomid.testing.{module}"))
    defined = set(re.findall(r"^(?:class|def) ([A-Za-z]\w*)", source, re.MULTILINE))
    names = {name.rpartition(".")[2] for name, _ in shown()}
    internal = {"Read", "Write", "Scan", "boottime_s", "list_value", "list_elements"}
    assert defined - names == defined & internal
