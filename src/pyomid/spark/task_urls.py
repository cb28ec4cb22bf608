"""How tasks reach a database: its URL, with a delegation token of the program's user if tasks have no Kerberos ticket.

    driver, planner       plan.url = conn.task_url ── pickled with the newest delegation token ──→ task
    task                  connection(plan.url)         presents the newest token that this process received

Each job carries a token with at least nine tenths of its life left, so an application may outlive a token. A process
that works for several users keeps their tokens apart.

A token is part of pickled plans only, and appears in no option, no printed plan and no `repr`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from pyomid.errors import OmidError
from pyomid.types import TaskToken

log = logging.getLogger(__name__)

TokenSource = Callable[[], TaskToken | None]

_sent: Final[dict[tuple[str, str], TaskToken]] = {}
"""The newest token received, by URL and user."""


class TaskUrl(str):
    """The URL of a database, for a plan. Pickling it adds the newest token of `source`. `user`: the user of the token
    that this process received with it; empty if none."""

    user: str
    _source: TokenSource
    _last: TaskToken | None

    def __new__(cls, url: str, source: TokenSource, user: str = "") -> TaskUrl:
        """Fetch a first token, so that the source's error is raised here and not during pickling."""
        made = super().__new__(cls, url)
        made.user, made._source, made._last = user, source, source()
        return made

    def __reduce__(self) -> Any:
        try:
            self._last = self._source()
        except OmidError as error:
            log.warning("cannot get a new delegation token; sending the previous one to the tasks: %s", error)
        return _received, (str(self), self._last)


def _received(url: str, token: TaskToken | None) -> TaskUrl:
    if token is None:
        return TaskUrl(url, _none)
    key = (url, token.user)
    if key not in _sent or _sent[key].expires_ms < token.expires_ms:
        _sent[key] = token
    return TaskUrl(url, lambda: _sent[key], token.user)


def user_of(url: str) -> str:
    """Return the user whose token came with this URL; empty if none."""
    return url.user if isinstance(url, TaskUrl) else ""


def sent_token(url: str) -> TokenSource | None:
    """Return a source of the newest token received with this URL; None if no token came with it."""
    key = (str(url), user_of(url))
    return (lambda: _sent[key]) if key[1] else None


def _none() -> None:
    return None
