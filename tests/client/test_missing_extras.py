"""Without an extra, each door to it raises one sentence with the command that installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyomid.errors import ExtraMissing
from pyomid.spark import spark_extra

pytestmark = pytest.mark.fast

SPARK = ["pyspark", "pyarrow", "pandas", "py4j"]
TABLE = """
import pyomid
db = pyomid.connect("omid-memory:extras")
db.create_table("t", ["f"])
tx = db.begin()
"""
OF_A_PROGRAM = {
    "connect": (SPARK, "spark", "import pyomid.spark; pyomid.spark.connect"),
    "from pyomid.spark": (SPARK, "spark", "from pyomid.spark import SparkDatabase"),
    "Spark without Arrow": (["pyarrow"], "spark", "from pyomid.spark import connect"),
    "format omid": (["pyarrow"], "spark", "import pyspark_omid; pyspark_omid.DefaultSource({})"),
    "to_arrow": (["pyarrow"], "arrow", f"{TABLE}tx.table('t').to_arrow()"),
    "write_arrow": (["pyarrow"], "arrow", f"{TABLE}tx.table('t').write_arrow([])"),
    "export_parquet": (["pyarrow"], "arrow", f"{TABLE}db.export_parquet('exported')"),
    "import_parquet": (["pyarrow"], "arrow", f"{TABLE}open('u.parquet', 'w'); db.import_parquet('.')"),
    "Metrics": (["prometheus_client"], "metrics", "import pyomid.observe; pyomid.observe.Metrics()"),
    "Spans": (["opentelemetry"], "tracing", "import pyomid.observe; pyomid.observe.Spans()"),
    "HBase": (["kazoo"], "hbase", "import pyomid; pyomid.connect('omid+hbase://127.0.0.1:1/hbase')"),
}
OF_THE_COMMAND_LINE = {
    "status": (["kazoo"], "hbase", ["status", "omid+hbase://127.0.0.1:1/hbase"]),
    "export": (["pyarrow"], "arrow", ["export", "{url}", "exported"]),
    "adopt": (SPARK, "spark", ["adopt", "--spark", "local[1]", "omid+hbase://127.0.0.1:1/hbase", "t", "f"]),
    "tso": (["yaml"], "server", ["tso", "--config", "options.yaml"]),
}


@pytest.mark.parametrize(("lacking", "extra", "program"), OF_A_PROGRAM.values(), ids=OF_A_PROGRAM)
def test_a_program_without_an_extra_learns_its_name(
    lacking: list[str], extra: str, program: str, tmp_path: Path
) -> None:
    done = run_without(lacking, program, tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("pyomid.errors.ExtraMissing: "), done.stderr
    assert last.endswith(f"which is not installed: pip install 'pyomid[{extra}]'")
    assert "needs the package" in last


@pytest.mark.parametrize(("lacking", "extra", "arguments"), OF_THE_COMMAND_LINE.values(), ids=OF_THE_COMMAND_LINE)
def test_a_command_without_an_extra_prints_one_sentence(
    lacking: list[str], extra: str, arguments: list[str], tmp_path: Path
) -> None:
    url = f"omid://{tmp_path}/db"
    given = [argument.format(url=url) for argument in arguments]
    program = (
        f"import sys, pyomid; db = pyomid.connect({url!r}); db.create_table('t', ['f']); db.close()\n"
        f"from pyomid.cli import main; sys.exit(main({given!r}))"
    )
    done = run_without(lacking, program, tmp_path)
    assert done.returncode in (1, 2)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"pip install 'pyomid[{extra}]'" in done.stderr


def test_it_is_the_import_error_that_programs_expect() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, spark_extra():
        raise ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")
    assert isinstance(caught.value, ExtraMissing)
    assert caught.value.values == {"extra": "spark"}


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"'pyomid\.nothing'") as caught, spark_extra():
        import pyomid.nothing  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, ExtraMissing)


def run_without(packages: list[str], program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    hidden = f"import sys\nfor name in {packages!r}: sys.modules[name] = None\n"
    command = [sys.executable, "-c", hidden + program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
