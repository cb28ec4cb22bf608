"""What the documentation names exists: links, paths, commands, options, metrics, errors; its lists are whole."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyomid.errors
from pyomid.cli import _modules, tso
from pyomid.config import _OF_HBASE, camel_case, option_name
from pyomid.omid.tso import metrics
from pyomid.spark.source import options as spark_options
from pyomid.types import AbortReason

pytestmark = pytest.mark.fast

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "docs/decisions/*.md", "deploy/**/*.md", "benchmarks/**/*.md")
    for page in REPOSITORY.glob(pattern)
)
SOURCES = sorted(
    path for folder in ("src", "tests", "examples", "benchmarks") for path in (REPOSITORY / folder).rglob("*.py")
)


def name_of(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as they are linked to."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), target
            assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_and_test_that_is_named_exists(page: Path) -> None:
    pattern = r"`((?:src|tests|docs|deploy|examples|benchmarks|requirements)/[\w./*-]+?)(?:::(\w+))?`"
    for path, test in re.findall(pattern, page.read_text(encoding="utf-8")):
        assert list(REPOSITORY.glob(path)), path
        assert not test or f"def {test}(" in (REPOSITORY / path).read_text(encoding="utf-8"), test
    for file in re.findall(r"`(test_\w+\.py)`", page.read_text(encoding="utf-8")):
        assert list((REPOSITORY / "tests").rglob(file)), file


PACKAGES = [path.name for path in (REPOSITORY / "src" / "pyomid").iterdir() if path.is_dir()]


def test_the_law_of_a_folder_is_short() -> None:
    assert len(text_of("docs/folder.md").split()) <= 1500


@pytest.mark.parametrize("page", ["architecture.md", "folder.md", "protocol.md", "layouts.md", "tso.md"])
def test_every_module_that_is_named_exists(page: str) -> None:
    for path in re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w./]*)`", text_of(f"docs/{page}")):
        assert (REPOSITORY / "src" / "pyomid" / path).exists(), path


def test_every_page_and_section_that_code_points_to_exists() -> None:
    pages = {page.name: page for folder in ("docs/api", "docs") for page in (REPOSITORY / folder).glob("*.md")}
    pages |= {page.name: page for page in REPOSITORY.glob("*.md")}
    pattern = re.compile(r"\b([\w-]+\.md)\b(?:, \"?([A-Z][a-z]\w*(?: \w+)*))?")
    for path in SOURCES:
        if path != Path(__file__):
            for name, section in pattern.findall(path.read_text(encoding="utf-8")):
                assert name in pages, f"{name_of(path)} points to {name}"
                slug = section.lower().replace(" ", "-")
                known = anchors(pages[name])
                assert any(each.startswith(slug) or slug.startswith(each) for each in known), (
                    f"{path}: {name}, {section}"
                )


def commands() -> Iterator[tuple[str, str]]:
    """Each `pyomid …` of the pages and of messages in the code, and where it stands."""
    for path in (*PAGES, *SOURCES, REPOSITORY / "deploy" / "pyomid-tso.service"):
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        fenced = "".join(block for language, block in blocks if language in ("", "sh"))
        indented = re.findall(r"^ {4}(pyomid .*)$", text, re.MULTILINE)
        lines = (*indented, *re.findall(r"^(?:[\d* ]+  )?(pyomid .*)$", fenced, re.MULTILINE))
        for line in (*re.findall(r"`(pyomid [^`]+)`", text), *lines):
            yield name_of(path), re.sub(r"\"\s+f?\"", "", line)


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    chosen = parser.add_subparsers()
    for module in _modules(command):
        module.add_command(chosen)
    return chosen.choices[command]


def below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from below(each)


def test_every_command_that_is_named_exists_with_its_options_in_their_order() -> None:
    found = list(commands())
    assert len(found) > 20
    for where, line in found:
        words = line.split("#")[0].split()[1:]
        if not re.fullmatch(r"[a-z]+", words[0]):
            continue
        parser = parser_of(words[0])
        known = {option for each in below(parser) for action in each._actions for option in action.option_strings}
        assert {word for word in words if word.startswith("--")} <= known, f"{where}: {line}"
        if words[0] == "tables" and len(words) > 1:
            assert words[1] in ("URL", "…"), f"{where}: the URL comes before the action: {line}"


def test_every_option_of_the_tso_that_is_named_exists() -> None:
    known = {f"--{option.name}" for option in tso.OPTIONS} | {"--config", "--help"}
    commands = ("init", "adopt", "hbase", "status", "tables", "backup", "restore", "compact")
    others = {option for command in commands for each in below(parser_of(command))
              for action in each._actions for option in action.option_strings}  # fmt: skip
    pages = ("tso", "hbase", "interop", "client", "options")
    decisions = [name_of(path) for path in (REPOSITORY / "docs" / "decisions").glob("*.md")]
    for page in (*(f"docs/{name}.md" for name in pages), "deploy/hbase/README.md", *decisions):
        for option in re.findall(r"`(--[a-z-]+)", text_of(page)):
            assert option in known | others, f"{page}: {option}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_of_a_url_that_is_shown_exists(page: Path) -> None:
    for query in re.findall(r"(?:\?|omid[\w+]*://\S*\?)([A-Za-z]+=[^\s`)\"]*)", page.read_text(encoding="utf-8")):
        for pair in query.split("&"):
            option_name(pair.split("=")[0])


def test_the_runbook_has_every_option_of_hbase() -> None:
    for option in _OF_HBASE:
        assert f"`{camel_case(option)}`" in text_of("deploy/hbase/README.md")


def test_the_list_of_spark_s_options_is_that_of_the_data_source() -> None:
    every = {**spark_options.COMMON, **spark_options.READING, **spark_options.WRITING}
    known = {name: text for name, text in every.items() if not text.startswith("Spark's option")}
    section = text_of("docs/options.md").split("## Of the Spark data source")[1]
    assert dict(re.findall(r"^- `(\w+)`: (.*)$", section, re.MULTILINE)) == known
    assert len(every) - len(known) == 2
    assert all(name.startswith("_") for name in spark_options.INTERNAL)


def test_every_metric_that_is_named_exists() -> None:
    known = {f"{name}_total" for name in metrics.COUNTERS} | set(metrics.GAUGES)
    known |= {"leads", "aborts_total", "flush_seconds", "watermark_lag"}
    table = re.findall(r"^- (`.*?): ", text_of("docs/tso.md").split("## Watching it")[1], re.MULTILINE)
    named = set(re.findall(r"`(\w+)(?:\{[a-z,]+\})?`", " ".join(table)))
    assert len(named) > 10
    assert named <= known
    for page in PAGES:
        assert set(re.findall(r"`pyomid_tso_(\w+)`", page.read_text(encoding="utf-8"))) <= known, name_of(page)
    for reason in AbortReason:
        assert f"`{reason.value}`" in text_of("docs/tso.md")


KINDS = [kind for kind in vars(pyomid.errors).values() if isinstance(kind, type)]
ERRORS = [kind for kind in KINDS if issubclass(kind, pyomid.errors.OmidError)]


def test_troubleshooting_has_a_section_for_each_error_with_its_code_and_bases() -> None:
    assert len(ERRORS) > 10
    _, *sections = text_of("docs/troubleshooting.md").split("\n## ")
    found = {section.split("\n")[0]: section.split("\n") for section in sections}
    assert set(found) == {kind.__name__ for kind in ERRORS} | {"Without an error"}
    for kind in ERRORS:
        lines = found[kind.__name__]
        said = set(re.findall(r"`([\w-]+)`", lines[2]))
        bases = {base.__name__ for base in kind.__bases__} - {"OmidError", "Exception"}
        assert said == {kind.code} | bases, kind.__name__
        for part in ("**What happened.**", "**What to do.**"):
            assert any(line.startswith(part) for line in lines), f"{kind.__name__}: {part}"


def test_every_target_of_make_that_is_named_exists_and_says_what_it_does() -> None:
    makefile = text_of("Makefile")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    said = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets == said
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = {*re.findall(r"`make ([a-z-]+)", text), *re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)}
        assert named <= targets, f"{name_of(page)}: {named - targets}"


def test_every_benchmark_that_is_named_can_be_started() -> None:
    for page in PAGES:
        for module in re.findall(r"python -m (benchmarks\.[\w.]+)", page.read_text(encoding="utf-8")):
            path = REPOSITORY / module.replace(".", "/")
            source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
            assert "__main__" in source.read_text(encoding="utf-8"), module


def test_the_index_of_decisions_has_their_titles() -> None:
    folder = REPOSITORY / "docs" / "decisions"
    listed = re.findall(r"^- \[(\d{4})\]\((\S+)\) (.*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert {file for _, file, _ in listed} | {"README.md"} == {page.name for page in folder.glob("*.md")}
    for number, file, title in listed:
        assert (folder / file).read_text().startswith(f"# {number} {title}\n"), file
