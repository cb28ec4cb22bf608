"""Health checks: /health, /ready, and readiness of a standby."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from pyomid.omid.tso.metrics import _response
from pyomid.omid.tso.startup import Watched

pytestmark = pytest.mark.fast


def status(watched: Watched, path: str) -> int:
    line = f"GET {path} HTTP/1.1\r\n".encode()
    return int(_response(line, watched, CollectorRegistry()).split(b" ")[1])


def statuses(watched: Watched) -> tuple[int, int, int]:
    return status(watched, "/health"), status(watched, "/ready"), status(watched, "/ready?standby=yes")


def test_a_standby_is_ready_once_it_could_lead() -> None:
    watched, is_loaded = Watched(), False
    assert statuses(watched) == (200, 503, 503), "it starts"
    watched.is_prepared = lambda: is_loaded
    assert statuses(watched) == (200, 503, 503), "its code is not loaded yet"
    is_loaded = True
    assert statuses(watched) == (200, 503, 200)
    watched.service = SimpleNamespace(is_serving=True)  # type: ignore[assignment]
    assert statuses(watched) == (200, 200, 200)
    watched.service = SimpleNamespace(is_serving=False)  # type: ignore[assignment]
    assert statuses(watched) == (503, 503, 503)
    assert status(watched, "/ready?other=yes") == 503
    assert status(watched, "/other") == 404
