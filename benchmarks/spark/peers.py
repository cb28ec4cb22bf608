"""pyomid, Delta Lake, Iceberg, DuckLake and plain Parquet on the flights of 2013: same rows, same work.

    python -m benchmarks.spark.peers [--rows 336776] [--stream-seconds 600]
        [--only pyomid,delta,iceberg,ducklake,parquet] [--work tiny,cold,stream]

Each runs in its own processes. Delta Lake and Iceberg have an environment of their own (build/peers), on a PySpark that
both support; Maven brings their jars. DuckLake is there too, in DuckDB without Spark. What is read is compared by
checksum with the source. The result is a Markdown table, also in build/peers.txt.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks._report import machine_lines
from benchmarks.spark._setting import ROWS, unpacked

from pyomid.cli.hbase import Bundle, class_path

DELTA: Final = "4.3.1"
ICEBERG: Final = "1.12.0"
DUCKDB: Final = "1.5.5"
FOR_ARROW: Final = ("pyarrow", "pandas", "pytz")
"""What PySpark and DuckDB need to hand each other tables and moments."""
ENVIRONMENT: Final = Path("build/peers")
REPORT: Final = Path("build/peers.txt")
CONTENDERS: Final = ("pyomid", "delta", "iceberg", "ducklake", "parquet")
WORKS: Final = ("tiny", "cold", "stream")
"""Each in a process of its own."""
TIMEOUT_S: Final = 3_600

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One piece of work in the table: what of the measurements is shown, and for pyomid the most that is the goal."""

    work: str
    names: tuple[str, ...]
    shown: Callable[[float], str]
    goal: str = ""
    most: Callable[[dict[str, Found]], float] | None = None


def seconds(value: float) -> str:
    return f"{value:.2f}"


def megabytes(value: float) -> str:
    return f"{value / 1e6:.0f} MB"


def whole(value: float) -> str:
    return f"{value:.0f}"


def of_delta(name: str, factor: float) -> Callable[[dict[str, Found]], float]:
    return lambda found: factor * float(found["delta"][name])


LINES: Final = (
    Line("load, first thing in a session", ("load_first",), seconds, "≤ 4.0", lambda _: 4.0),
    Line("load into another table, then", ("load_again",), seconds, "≤ 1.2", lambda _: 1.2),
    Line("20 rows, first thing in a session", ("tiny_first",), seconds, "≤ 1.5", lambda _: 1.5),
    Line("20 rows into another table, then", ("tiny_again",), seconds),
    Line("upsert of 100 rows", ("upsert_100",), seconds, "≤ Delta's ÷ 40", of_delta("upsert_100", 1 / 40)),
    Line("upsert of 1 000 rows", ("upsert_1000",), seconds, "≤ Delta's ÷ 25", of_delta("upsert_1000", 1 / 25)),
    Line("read all columns and aggregate", ("read_all",), seconds, "≤ 0.8 × Delta's", of_delta("read_all", 0.8)),
    Line("the same after ten upserts", ("read_all_after_upserts",), seconds, "≤ 0.9 × Delta's",
         of_delta("read_all_after_upserts", 0.9)),
    Line("the same after upkeep", ("read_all_after_upkeep",), seconds, "≤ 0.9 × Delta's",
         of_delta("read_all_after_upkeep", 0.9)),
    Line("read one column", ("read_one",), seconds, "≤ Delta's", of_delta("read_one", 1)),
    Line("one row by key", ("one_row",), seconds, "≤ 0.15", lambda _: 0.15),
    Line("1 000 rows into each of three tables, one commit", ("three_tables",), seconds),
    Line("stream of 1 000 rows a second, upserted, pyomid's upkeep beside it: rows a second",
         ("stream_rows_per_second",), whole),
    Line("a batch of it: median of the first quarter, of the last, the slowest",
         ("stream_first", "stream_last", "stream_slowest"), seconds),
    Line("space after the load", ("bytes_loaded",), megabytes),
    Line("space after ten upserts", ("bytes_upserted",), megabytes),
    Line("space after upkeep", ("bytes_after_upkeep",), megabytes, "≤ 2 × Delta's", of_delta("bytes_after_upkeep", 2)),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--stream-seconds", type=float, default=600.0)
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--work", default=",".join(WORKS))
    asked = parser.parse_args()
    chosen = asked.only.split(",")
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        settings = {
            "csv": unpacked(Path(name)),
            "rows": asked.rows,
            "folder": name,
            "stream_seconds": asked.stream_seconds,
        }
        for contender in chosen:
            python = sys.executable if contender in ("pyomid", "parquet") else python_of_peers()
            settings["jars"] = jars(contender) if contender in ("delta", "iceberg") else ""
            found[contender] = {}
            for what in asked.work.split(","):
                found[contender] |= measured(python, contender, what, settings)
                reported(asked.rows, found)
    print(REPORT.read_text(encoding="utf-8"), end="")
    return 0


def reported(rows: int, found: dict[str, Found]) -> None:
    """After each piece of work: a run that is ended early leaves what it measured."""
    told = {name: each for name, each in found.items() if each}
    report = "\n".join([*heading(rows, told), "", *table(told), *minutes(told)])
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(report + "\n", encoding="utf-8")


def measured(python: str, contender: str, what: str, settings: Found) -> Found:
    print(f"{contender}, {what} …", file=sys.stderr, flush=True)
    return measured_by(
        [python, str(Path(__file__).with_name("_peer.py")), contender, what, json.dumps(settings)], contender
    )


def measured_by(command: list[str], contender: str) -> Found:
    """Run a program that prints what it measured as its last line; end this one if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    told = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    if done.returncode or not told:
        sys.exit(f"{contender} failed:\n{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}")
    measurements: Found = json.loads(told[0].removeprefix("measured "))
    return measurements


def python_of_peers() -> str:
    """An environment with Delta Lake and the PySpark that it asks for, and with DuckDB; made once."""
    packages = [f"delta-spark=={DELTA}", f"duckdb=={DUCKDB}", f"duckdb-extension-ducklake=={DUCKDB}", *FOR_ARROW]
    python, ready = ENVIRONMENT / "bin" / "python", ENVIRONMENT / f".ready-{DELTA}-{DUCKDB}"
    if not ready.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        ready.touch()
    return str(python.absolute())


def jars(contender: str) -> str:
    """For the PySpark of that environment."""
    asked = [python_of_peers(), "-c", "import pyspark; print(pyspark.__version__)"]
    pyspark = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    spark = ".".join(pyspark.split(".")[:2])
    artifact = {
        "delta": f"io.delta:delta-spark_{spark}_2.13:{DELTA}",
        "iceberg": f"org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:{ICEBERG}",
    }[contender]
    return ",".join(map(str, class_path(Bundle(contender, (artifact,)))))


def heading(rows: int, found: dict[str, Found]) -> list[str]:
    names = {
        "delta": f"Delta Lake {DELTA}",
        "iceberg": f"Iceberg {ICEBERG}",
        "ducklake": f"DuckLake in DuckDB {DUCKDB}, compared",
    }
    versions = "; ".join(f"{names.get(name, name)} on PySpark {each['pyspark']}" for name, each in found.items())
    what = f"{rows} rows of 19 columns, local[2], {datetime.date.today().isoformat()}; seconds unless said otherwise"
    return [what, *(line.replace("   ", ": ") for line in machine_lines()), f"formats: {versions}"]


def table(found: dict[str, Found]) -> list[str]:
    lines = [f"| work | {' | '.join(found)} | goal |", f"| --- |{' --- |' * len(found)} --- |"]
    for line in LINES:
        cells = [", ".join(line.shown(each[n]) for n in line.names if n in each) or "–" for each in found.values()]
        if not any(name in each for name in line.names for each in found.values()):
            continue
        lines.append(f"| {line.work} | {' | '.join(cells)} | {_goal(line, found)} |")
    return lines


def minutes(found: dict[str, Found]) -> list[str]:
    """How a stream went on, minute by minute."""
    lines = []
    for name, each in found.items():
        told = [
            f"{count} batches, {median:.2f}, {slowest:.2f}" for count, median, slowest in each.get("stream_minutes", ())
        ]
        if told:
            lines += ["", f"{name}, {each['stream_seconds']:.0f} s, {each['stream_upkeeps']} times upkeep, "
                      f"{megabytes(each['stream_bytes'])} at the end; each minute: batches, their median, the slowest",
                      *(f"| {at} | {text} |" for at, text in enumerate(told, 1))]  # fmt: skip
    return lines


def _goal(line: Line, found: dict[str, Found]) -> str:
    ours = found.get("pyomid", {})
    if line.most is None or line.names[0] not in ours:
        return line.goal
    try:
        most = line.most(found)
    except KeyError:  # the peer was not measured
        return line.goal
    return f"{line.goal}: {'met' if ours[line.names[0]] <= most else 'MISSED'}"


if __name__ == "__main__":
    sys.exit(main())
