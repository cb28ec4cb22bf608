"""By what tasks reach a database: its URL, and beside it what stands for the program's user where they have no ticket.

    driver, planner       plan.url = conn.task_url ── pickled with the newest delegation token ──→ task
    task                  connection(plan.url)         shows the newest one that this process was sent

Each job that is sent brings a token with nine tenths of its life before it: so an application goes on for longer than a
token lives. What a token stands for is its user, so a process that works for several keeps them apart.

A token is a part of pickled plans, and of nothing that is shown: no option, no text of a plan, no `repr`.
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
"""The newest by URL and user, in a process that was sent some."""


class TaskUrl(str):
    """The URL, for a plan. Where it is pickled, the newest token of `source` goes along; `user`: whose token this
    process was sent with it, empty where none was."""

    user: str
    _source: TokenSource
    _last: TaskToken | None

    def __new__(cls, url: str, source: TokenSource, user: str = "") -> TaskUrl:
        """Asks the source: its error is raised here, and not amid a pickle."""
        made = super().__new__(cls, url)
        made.user, made._source, made._last = user, source, source()
        return made

    def __reduce__(self) -> Any:
        try:
            self._last = self._source()
        except OmidError as error:
            log.warning("no new delegation token for the tasks: the last one is sent again: %s", error)
        return _received, (str(self), self._last)


def _received(url: str, token: TaskToken | None) -> TaskUrl:
    if token is None:
        return TaskUrl(url, _none)
    key = (url, token.user)
    if key not in _sent or _sent[key].expires_ms < token.expires_ms:
        _sent[key] = token
    return TaskUrl(url, lambda: _sent[key], token.user)


def user_of(url: str) -> str:
    """Whose token was sent with this URL; empty where none was."""
    return url.user if isinstance(url, TaskUrl) else ""


def sent_token(url: str) -> TokenSource | None:
    """For a database that is opened by this URL: the newest token that was sent with it; None where none was."""
    key = (str(url), user_of(url))
    return (lambda: _sent[key]) if key[1] else None


def _none() -> None:
    return None
