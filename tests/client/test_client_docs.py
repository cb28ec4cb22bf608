"""docs/client.md runs as it stands; docs/options.md is the settings' own text."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import pyomid
from pyomid.config import CommonSettings, Settings, camel_case

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]


def run_script(path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guide_runs_from_its_first_block_to_its_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (REPOSITORY / "docs" / "client.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) > 5
    script = tmp_path / "guide.py"
    script.write_text("\n".join(blocks))
    monkeypatch.setenv("HOME", str(tmp_path))
    out, found = run_script(script), 0
    for shown in re.findall(r"```text\n(.*?)```", guide, re.DOTALL):
        assert shown in out[found:], shown
        found = out.index(shown, found) + len(shown)


def test_the_list_of_options_is_that_of_the_settings() -> None:
    """Headings stand for the words with which a setting's docstring begins: "HBase:", "Embedded:", "`kerberos`:"."""
    shown = (REPOSITORY / "docs" / "options.md").read_text().splitlines()
    body = []
    for kind in (CommonSettings, Settings):
        (settings,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(settings, ast.ClassDef)
        body += settings.body
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text, ast.Expr)
            assert isinstance(text.value, ast.Constant)
            default = Settings.__dataclass_fields__[field.target.id].default
            value = f"{default:.10g}" if type(default) in (int, float) else str(default)
            said = re.sub("^(HBase|Embedded|`kerberos`): ", "", " ".join(str(text.value.value).split()))
            value = f" ({value.lower() if isinstance(default, bool) else value})" if default != "" else ""
            assert f"- `{camel_case(field.target.id)}`{value}: {said[0].upper()}{said[1:]}" in shown


def test_a_program_that_ends_without_close_completes_what_it_committed(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    program = tmp_path / "program.py"
    program.write_text(
        "import pyomid, sys\n"
        "db = pyomid.connect(sys.argv[1], completion_linger_ms=60_000, flush_bytes=1)\n"
        "db.create_table('t', families=['f'])\n"
        "with db.begin() as tx:\n"
        "    tx.table('t').put(b'k', {b'f:x': b'1'})\n"
        "    tx.flush()\n"
    )
    run_script(program, url)
    with pyomid.connect(url) as db:
        ((cell,),) = db._core.deployment.store.read_rows("t", [b"k"])
        assert cell.commit_ts > cell.version


def test_importing_pyomid_brings_in_nothing_heavy() -> None:
    heavy = "{'numpy', 'lmdb', 'pyarrow', 'pyspark', 'asyncio', 'uvloop'}"
    code = f"import sys, pyomid; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_folder_is_opened_read_and_written_without_numpy_and_asyncio(tmp_path: Path) -> None:
    code = f"""
import sys, pyomid
with pyomid.connect("omid://{tmp_path}/db", upkeep_share=0) as db:
    db.create_table("t", families=["f"])
    with db.begin() as tx:
        tx.table("t").put(b"a", {{b"f:a": b"x"}})
    with db.begin() as tx:
        assert tx.table("t").get(b"a") == {{b"f:a": b"x"}}
    unused = {{"numpy", "asyncio", "ssl", "pyomid.omid.oracle.machine", "pyomid.omid.wire.messages"}}
    print(sorted(unused & set(sys.modules)))
    with db.begin() as tx:
        assert list(tx.table("t").scan()) == [(b"a", {{b"f:a": b"x"}})]
    print("numpy" in sys.modules)
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == ["[]", "True"]
