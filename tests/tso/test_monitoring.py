"""The rules for Prometheus and the dashboard for Grafana in deploy/monitoring are PromQL over existing metrics."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pyomid.omid.tso.metrics import COUNTERS, GAUGES, PREFIX
from pyomid.types import AbortReason

pytestmark = pytest.mark.fast

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
TOLD = {
    "up",
    f"{PREFIX}leads",
    f"{PREFIX}aborts_total",
    f"{PREFIX}flush_seconds_bucket",
    *(f"{PREFIX}{name}_total" for name in COUNTERS),
    *(PREFIX + name for name in GAUGES),
}


def check_promql(text: str) -> None:
    """What is left of the language without its own words is an expression of Python."""
    assert {*re.findall(r'reason=~?"([^"]*)"', text)} <= {reason.value for reason in AbortReason}
    plain = re.sub(r'\{\w+(=~|!=|=)"[^"]*"\}', "", text)
    plain = re.sub(r"\b(by|on) *\(\w+(, *\w+)*\)", "", plain)
    plain = re.sub(r"\b(rate|increase|changes)\((\w+)\[(\d+[smh]|\$__rate_interval)\]\)", r"\2", plain)
    names = {node.id for node in ast.walk(ast.parse(f"({plain})", mode="eval")) if isinstance(node, ast.Name)}
    assert names <= TOLD | {"sum", "histogram_quantile"}


def rules() -> Iterator[dict[str, object]]:
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        assert set(group) == {"name", "rules"}
        yield from group["rules"]


def panels() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((FOLDER / "grafana-tso.json").read_text())["panels"]
    return found


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: str(rule["alert"]))
def test_a_rule_is_promql_over_existing_metrics(rule: dict[str, object]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smh]", str(rule.get("for", "1m")))
    assert set(rule["annotations"]) == {"summary", "action"}  # type: ignore[call-overload]
    check_promql(str(rule["expr"]))


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_a_panel_is_promql_over_existing_metrics(panel: dict[str, object]) -> None:
    for target in panel["targets"]:  # type: ignore[attr-defined]
        check_promql(target["expr"])


def test_no_two_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at: dict[str, int] = panel["gridPos"]  # type: ignore[assignment]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not covered & taken
        taken |= covered


@pytest.mark.parametrize(
    "wrong", ["sum(pyomid_tso_leeds)", "rate(pyomid_tso_commits_total)", "sum(pyomid_tso_leads", "pyomid_tso_leads ="]
)
def test_invalid_expressions_are_found(wrong: str) -> None:
    with pytest.raises((AssertionError, SyntaxError)):
        check_promql(wrong)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here (Debian's package prometheus)")
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    command = ["promtool", "check", "rules", "--lint-fatal", str(FOLDER / "alerts.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
