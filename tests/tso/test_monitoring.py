"""The rules for Prometheus and the dashboard for Grafana in deploy/monitoring are PromQL over existing metrics."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pyomid.server.metrics import COUNTERS, GAUGES, PREFIX
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
OF_RANGES = {"rate", "increase", "changes"}
FUNCTIONS = OF_RANGES | {"histogram_quantile", "sum"}
_TOKEN = re.compile(r'\s*(?:("[^"]*")|([\w:$]+(?:\.\d+)?)|(=~|!=|==|>=|<=|[{}()\[\],=<>+*/-]))')


class PromQl:
    """Reads the part of the language that the files here use; any other text is an error."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            assert found, f"no token at {text[at:]!r}"
            self.tokens.append(found[0].strip())
            at = found.end()
        self.expression()
        assert not self.tokens, f"{text!r}: left over {self.tokens}"

    def take(self, *wanted: str) -> str:
        token = self.tokens.pop(0) if self.tokens else "the end"
        assert not wanted or token in wanted, f"{self.text!r}: {wanted} wanted, and {token} is there"
        return token

    def next_is(self, *tokens: str) -> bool:
        return bool(self.tokens) and self.tokens[0] in tokens

    def expression(self) -> None:
        self.operand()
        while self.next_is("+", "-", "*", "/", "==", ">", "<", ">=", "<=", "and"):
            if self.take() == "and" and self.next_is("on"):
                self.take()
                self.names()
            self.operand()

    def operand(self) -> None:
        word = self.take()
        if word == "(":
            self.expression()
            self.take(")")
        elif word in FUNCTIONS:
            if self.next_is("by"):
                self.take()
                self.names()
            self.take("(")
            is_range = self.expressions()
            assert is_range == (word in OF_RANGES), f"{self.text!r}: {word} of a range, or of none"
        elif not re.fullmatch(r"[\d.]+", word):
            assert word in TOLD, f"no TSO tells {word}"
            self.is_range = self.selector()

    def expressions(self) -> bool:
        self.is_range = False
        self.expression()
        while self.next_is(","):
            self.take()
            self.expression()
        self.take(")")
        is_range, self.is_range = self.is_range, False
        return is_range

    def selector(self) -> bool:
        if self.next_is("{"):
            self.take()
            label, _, value = self.take(), self.take("=", "=~", "!="), self.take()
            if label == "reason":
                assert value.strip('"') in {reason.value for reason in AbortReason}
            self.take("}")
        if not self.next_is("["):
            return False
        self.take()
        assert re.fullmatch(r"\d+[smh]|\$__rate_interval", span := self.take()), span
        self.take("]")
        return True

    def names(self) -> None:
        self.take("(")
        self.take()
        while self.take(",", ")") == ",":
            self.take()


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
    PromQl(str(rule["expr"]))


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_a_panel_is_promql_over_existing_metrics(panel: dict[str, object]) -> None:
    for target in panel["targets"]:  # type: ignore[attr-defined]
        PromQl(target["expr"])


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
def test_the_promql_parser_refuses_invalid_expressions(wrong: str) -> None:
    with pytest.raises(AssertionError):
        PromQl(wrong)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here (Debian's package prometheus)")
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    command = ["promtool", "check", "rules", "--lint-fatal", str(FOLDER / "alerts.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
