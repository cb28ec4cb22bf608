"""The check of the numbers of hazards finds each way in which they can be wrong."""

from __future__ import annotations

import hazard_numbers
import pytest
from hazard_numbers import faults, named_in

pytestmark = pytest.mark.fast

DOCUMENT = ("docs/laws", "- **Q1** A rule. *Otherwise:* harm.\n- **Q12** Another one, beside Q1.\n")
SOURCE = ("src/pyomid/code.py", '"""Keeps what it wrote (Q1; law 8, Q12)."""\n')
TESTS = ("tests/test_code.py", "def test_q1_it_holds() -> None: ...\n    # Q12: and this\n")


def test_each_number_of_this_repository_is_defined_kept_and_tested(capsys: pytest.CaptureFixture[str]) -> None:
    assert hazard_numbers.main() == 0, capsys.readouterr().out


def test_numbers_that_are_defined_kept_and_tested_are_no_fault() -> None:
    assert faults([DOCUMENT], [SOURCE], [TESTS]) == []


@pytest.mark.parametrize(
    ("documents", "source", "tests", "fault"),
    [
        (
            [DOCUMENT],
            [(SOURCE[0], "# Q1: kept here")],
            [TESTS],
            "Q12 is defined in docs/laws, but no file of src",
        ),
        ([DOCUMENT], [SOURCE], [(TESTS[0], "# Q12: met here")], "Q1 is defined in docs/laws, but no file of tests"),
        (
            [DOCUMENT],
            [SOURCE, ("src/pyomid/b.py", '"""(Q3)"""')],
            [TESTS],
            "Q3 is named in src/pyomid/b.py, but no",
        ),
        ([DOCUMENT], [SOURCE], [TESTS, ("tests/b.py", "def test_q3_x")], "Q3 is named in tests/b.py, but no document"),
        ([DOCUMENT, ("docs/b", "- **Q1** x")], [SOURCE], [TESTS], "Q1 is defined in docs/laws and in docs/b"),
    ],
)
def test_each_fault_is_one_sentence(
    documents: list[tuple[str, str]], source: list[tuple[str, str]], tests: list[tuple[str, str]], fault: str
) -> None:
    [found] = faults(documents, source, tests)
    assert found.startswith(fault)
    assert found.endswith(".")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ('"""Q4: below H nothing counts."""', {"Q4"}),
        ("    the table lives in it (Q7,\n    Q10). So", {"Q7", "Q10"}),
        ("(protocol.md; hazards Q1–Q3)", {"Q1", "Q3"}),
        ('_m(\n        "Q6e",\n        "without"', {"Q6"}),
        ("    def test_q15_it_rises(self) -> None:", {"Q15"}),
        ("    T1 read what T2 then overwrote        B1 < C2      rw   (else T1 would have seen T2)", set()),
        ('s.client("T1"), x.T1, T0, T123:, `T1`', set()),
    ],
)
def test_what_names_a_number(text: str, numbers: set[str]) -> None:
    assert named_in(text) == numbers
