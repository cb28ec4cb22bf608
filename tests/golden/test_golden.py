"""Every golden script on every store, through the public client, and judged by the history checker besides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from golden_scripts import Script, ScriptFailed, Stage, load_scripts, parse, run
from pyomid.database.tables.table import Table
from pyomid.errors import Misuse
from pyomid.testing.checker import Violation
from stages import UrlStage, embedded_stage, memory_stage

SCRIPTS = load_scripts(Path(__file__).parent / "scripts")
WITHOUT_A_CLOCK = [script for script in SCRIPTS if not script.needs_clock]


def named(scripts: list[Script]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("script", scripts, ids=[script.name for script in scripts])


OF_A_TSO = {
    "death_after_the_answer_then_cleaning": "a small commit in a folder has no entry",
    "death_between_shadow_cells_and_completion": "a small commit in a folder has nothing to complete",
    "k5_sanitize_without_compaction_removes_nothing": "a small commit in a folder has no entry",
    "old_transaction_cannot_commit": "a folder decides by records, whatever the age",
}


@pytest.fixture(params=["memory", "embedded"])
def stage(request: pytest.FixtureRequest, script: Script, tmp_path: Path) -> Stage:
    if request.param == "memory":
        return memory_stage()
    if script.name in OF_A_TSO:
        pytest.skip(OF_A_TSO[script.name])
    return embedded_stage(tmp_path / "db")


@pytest.mark.fast
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a client that dies, on purpose
@named(SCRIPTS)
def test_script(script: Script, stage: Stage) -> None:
    run(script, stage)


@pytest.fixture(scope="session")
def folder_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One folder for all scripts."""
    import pyomid

    url = f"omid://{tmp_path_factory.mktemp('golden')}/db"
    with pyomid.connect(url):
        yield url


@pytest.mark.process
@named(WITHOUT_A_CLOCK)
def test_script_in_one_folder(script: Script, folder_url: str) -> None:
    run(script, UrlStage(folder_url))


@pytest.mark.fast
def test_every_script_has_a_title_and_expects_something() -> None:
    for script in SCRIPTS:
        assert script.title, script.name
        assert any(statement.expected for statement in script.statements), script.name


@pytest.mark.fast
def test_a_wrong_expectation_fails_and_shows_the_line() -> None:
    script = parse("wrong", "title t\ntable test\nT begin\nT get test 1 -> f:v = 1\n")
    with pytest.raises(ScriptFailed, match=r"4 T get test 1\n\s+expected: f:v = 1\n\s+actual:\s+nothing"):
        run(script, memory_stage())


@pytest.mark.fast
def test_an_unexpected_success_fails() -> None:
    script = parse("wrong", "title t\ntable test\nT begin\nT put test 1 f:v = 1\nT commit -> conflict\n")
    with pytest.raises(ScriptFailed, match="expected: conflict"):
        run(script, memory_stage())


@pytest.mark.fast
def test_a_script_cannot_agree_with_an_anomaly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the client shows a dirty read and the script expects it, the judge still objects."""
    monkeypatch.setattr(Table, "get", lambda *_: {b"f:v": b"1~T1.1"})
    text = "title t\ntable test\nT1 begin\nT1 put test 1 f:v = 1\nT2 begin\nT2 get test 1 -> f:v = 1\nT1 commit\n"
    with pytest.raises(Violation, match="dirty read"):
        run(parse("dirty", text), memory_stage())


@pytest.mark.fast
def test_a_line_nobody_can_say_is_refused() -> None:
    with pytest.raises(Misuse, match="line 2: 'T fly'"):
        parse("wrong", "title t\nT fly\n")
