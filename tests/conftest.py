"""What all tests share: no deadlines for Hypothesis, fewer examples in `make test`, and a line on what a run left out.

No test asserts a time, and no example of Hypothesis does: on a busy machine each may take long.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

import watched_descriptors
from portions import examples

watched_descriptors.watch()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control began this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):  # the smoke tests of other Pythons do without it
    from hypothesis import settings

    settings.register_profile("without deadlines", deadline=None, max_examples=examples(100))
    settings.load_profile("without deadlines")

TARGETS = {
    "soak": "make soak",
    "long": "make test-long",
    "hbase": "make test-hbase",
    "spark": "make test-spark",
    "process": "make test-process",
    "fast": "make test-fast",
}
"""The target that runs the tests of each marker. A test with several markers belongs to the first."""

_left_out: Counter[str] = Counter()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on an event loop of its own, or by its fixture `on_loop`."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters}
    pyfuncitem.funcargs.get("on_loop", asyncio.run)(pyfuncitem.function(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail the test in or after which a lock of a folder is lost, or a file of one is open where it must not be."""
    found = watched_descriptors.faults(getattr(item, "funcargs", {}).get("tmp_path"))
    yield
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def pytest_deselected(items: list[pytest.Item]) -> None:
    _left_out.update(next((name for name in TARGETS if item.get_closest_marker(name)), "fast") for item in items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """End the output with one line: how many tests of which markers the run's -m left out, and what runs them."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left out"] = dict(_left_out)
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    asked = session.config.option
    if output is None and reporter is not None and asked.markexpr and not asked.keyword and _left_out:
        parts = [f"{_left_out[name]} {name} ({target})" for name, target in TARGETS.items() if _left_out[name]]
        reporter.write_line(f"left out: {', '.join(parts)}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take the counts of one worker of pytest-xdist: all workers deselect the same tests."""
    if not _left_out:
        _left_out.update(getattr(node, "workeroutput", {}).get("left out", {}))
