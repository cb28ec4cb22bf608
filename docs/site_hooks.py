"""Hooks of mkdocs.yml: the site takes its pages and pictures where they lie in the repository, not only below docs/.

Every page keeps its path, so a relative link is the same on the site and in the repository, and README.md is the first
page. What a link names beyond the pages (a source file, a folder) is left out of the site's links.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

REPOSITORY = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "deploy/hbase/README.md",
    "docs/**/*.md",
    "docs/**/*.svg",
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as repository hosts make them; the section of decisions lists its folder."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.nav = [_listed(entry) for entry in config.nav or []]
    return config


def _listed(entry: object) -> object:
    """`entry` of the navigation; a folder becomes its pages, the index first."""
    if isinstance(entry, dict):
        [(title, target)] = entry.items()
        if isinstance(target, str) and (REPOSITORY / target).is_dir():
            return {title: [{"Overview": f"{target}/README.md"}, *_records(target)]}
    return entry


def _records(folder: str) -> list[str]:
    return sorted(f"{folder}/{page.name}" for page in (REPOSITORY / folder).glob("[0-9]*.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The repository's pages instead of those of docs/ alone; the theme's own files stay."""
    assets = [file for file in files if Path(file.src_uri).suffix not in (".md", ".py", ".svg")]
    return Files([*assets, *_pages(config)])


def _pages(config: MkDocsConfig) -> Iterator[File]:
    for path in sorted({path for pattern in PAGES for path in REPOSITORY.glob(pattern)}):
        yield File.generated(config, str(path.relative_to(REPOSITORY)), abs_src_path=str(path))
