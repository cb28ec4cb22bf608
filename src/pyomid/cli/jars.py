"""Class paths of Java servers and clients, for tests, benchmarks and trials: not for production.

Maven downloads pinned artifacts once into its local repository. A file in the user's cache directory stores the
resulting class path, which is used as long as every jar in it exists.

    path = class_path(HBASE)                    # list of jars, in class-path order
    java("-Xmx64m", "-cp", join(path), "Main")  # argv for subprocess
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from pyomid.errors import Unavailable

_DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_RESOLVE_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """Artifacts that share one class path. `dropped`: prefixes of file names to omit."""

    name: str
    artifacts: tuple[str, ...]
    """`group:artifact:version`, pinned."""
    dropped: tuple[str, ...] = ()


HBASE: Final = Bundle("hbase", ("org.apache.hbase:hbase-server:2.6.1-hadoop3",))
"""HMaster, region server and ZooKeeper in one process; also the Java HBase client."""

JAVA_OPENS: Final = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.reflect",
        "java.nio",
        "sun.nio.ch",
        "java.io",
        "java.util",
        "java.util.concurrent",
        "java.net",
        "jdk.internal.ref",
        "jdk.internal.misc",
    )
) + tuple(
    f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in ("jdk.internal.misc", "sun.net.dns", "sun.net.util")
)
"""Options of a JDK 17 that HBase and Omid need."""


class JavaMissing(Unavailable):
    """JDK or Maven is missing, or Maven could not download the jars; the message says which."""

    code = "OMID-JAVA-MISSING"


def class_path(bundle: Bundle) -> list[Path]:
    """Return the jars of `bundle`; the first call may download them. Raises `JavaMissing`. Several processes may call
    it at once."""
    folder = cache_folder() / f"{bundle.name}-{digest(*bundle.artifacts, *bundle.dropped)}"
    cached = _cached(folder)
    if cached:
        return cached
    with locked(folder):
        cached = _cached(folder)
        if cached:
            return cached
        return _resolve(bundle, folder)


def join(jars: Sequence[Path | str]) -> str:
    """Return a class path as an argument of the JVM."""
    return os.pathsep.join(str(jar) for jar in jars)


def java(*arguments: str) -> list[str]:
    """Return a command that starts the JVM with the options that HBase and Omid need."""
    return [str(tool("java")), *JAVA_OPENS, *arguments]


def tool(name: str) -> Path:
    """Return the path of `java`, `javac` or `mvn`, from JAVA_HOME or else from PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / name).is_file():
        return Path(home) / "bin" / name
    found = shutil.which(name)
    if found is None:
        raise JavaMissing(f"{name} is not installed: Java servers need JDK 17 and Maven 3.8 or later")
    return Path(found)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pyomid" / "jars"


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cached(folder: Path) -> list[Path]:
    try:
        jars = [Path(line) for line in (folder / "class-path").read_text().splitlines()]
    except FileNotFoundError:
        return []
    return jars if all(jar.is_file() for jar in jars) else []


def _resolve(bundle: Bundle, folder: Path) -> list[Path]:
    (folder / "pom.xml").write_text(_pom(bundle))
    output = folder / "output"
    run_tool(
        [
            str(tool("mvn")),
            "-B",
            "-q",
            "-f",
            str(folder / "pom.xml"),
            f"{_DEPENDENCY_PLUGIN}:build-classpath",
            "-DincludeScope=runtime",
            f"-Dmdep.outputFile={output}",
        ],
        what=f"resolving the jars of {bundle.name}",
    )
    jars = [Path(entry) for entry in output.read_text().strip().split(os.pathsep) if entry]
    kept = [jar for jar in jars if not jar.name.startswith(bundle.dropped or ("\0",))]
    partial = folder / "class-path.partial"
    partial.write_text("\n".join(map(str, kept)))
    partial.rename(folder / "class-path")
    return kept


def _pom(bundle: Bundle) -> str:
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *map(escape, artifact.split(":"))
        )
        for artifact in bundle.artifacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>pyomid</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def run_tool(command: list[str], *, what: str) -> None:
    # A pipe and no input: otherwise Maven would read from the terminal and take part in its job control.
    finished = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_RESOLVE_TIMEOUT_S,
        check=False,
    )
    if finished.returncode != 0:
        tail = finished.stdout.decode(errors="replace")[-2000:]
        raise JavaMissing(f"{what} failed with code {finished.returncode}: {tail}", code=finished.returncode)
