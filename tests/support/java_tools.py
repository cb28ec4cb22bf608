"""Apache Omid's jars, and Java sources of tests, compiled once for each content."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyomid.cli.hbase import Bundle, JavaMissing, cache_folder, class_path, digest, join, locked, run_tool, tool

OMID: Final = Bundle(
    "omid",
    (
        "org.apache.omid:omid-tso-server:1.1.3",
        "org.apache.omid:omid-hbase-client:1.1.3",
        "org.apache.omid:omid-hbase-coprocessor:1.1.3",
    ),
    # It binds slf4j to log4j 1, beside Omid's own binding to log4j 2.
    ("slf4j-reload4j",),
)
"""Apache Omid: `org.apache.omid.tso.TSOServer`, its HBase modules, transaction client and coprocessor."""


def missing() -> str | None:
    """Why Java cannot run here, in one sentence; None if it can."""
    for name in ("java", "javac", "mvn"):
        try:
            tool(name)
        except JavaMissing as error:
            return error.message
    return None


def compile_sources(folder: Path, bundle: Bundle) -> Path:
    """A directory with the classes of every `*.java` below `folder`, compiled once for each content."""
    sources = sorted(folder.rglob("*.java"))
    jars = class_path(bundle)
    content = digest(*bundle.artifacts, *(source.read_text() for source in sources))
    classes = cache_folder() / f"classes-{content}"
    with locked(classes):
        done = classes / ".done"
        if not done.exists():
            run_tool(
                [
                    str(tool("javac")),
                    "-nowarn",
                    "-proc:none",
                    "-d",
                    str(classes),
                    "-cp",
                    join(jars),
                    *map(str, sources),
                ],
                what=f"compiling {folder}",
            )
            done.touch()
    return classes
