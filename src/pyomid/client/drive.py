"""Drivers of the protocol's steps over real parts: one that blocks, one for asyncio.

Both perform the same table of effects (`client.effect_handlers`); heals and orphan deletes go to the background where
there is one, so that a reader waits for its reading alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from pyomid.client.background import Background
from pyomid.client.deployment import Deployment
from pyomid.client.effect_handlers import Perform, port_performers
from pyomid.protocol import effects
from pyomid.protocol.effects import Effect, Steps

T = TypeVar("T")


class Driver:
    """Runs steps in the calling thread. Without a background, heals and orphan deletes are performed at once."""

    def __init__(self, parts: Deployment, background: Background | None = None) -> None:
        self._performers: dict[type[Effect], Perform] = port_performers(parts)
        if background is not None:
            self._performers[effects.Heal] = background.offer
            self._performers[effects.DeleteOrphans] = background.offer

    def perform(self, effect: Effect) -> Any:
        return self._performers[type(effect)](effect)

    def run(self, steps: Steps[T]) -> T:
        """What the steps return; their errors, and those of effects they do not catch.

        An interrupt goes into the steps like any other error, at the effect it came in: what they must say or undo
        then is theirs to know. On return they are over, whatever keeps the traceback.
        """
        performers = self._performers
        try:
            effect = steps.send(None)
            while True:
                try:
                    result = performers[type(effect)](effect)
                except BaseException as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            steps.close()


AsyncPerform = Callable[[Any], Awaitable[Any]]


class AsyncDriver:
    """Runs steps in the event loop. Effects that `awaited` knows are awaited; the rest, which block on a disk or a
    socket, run in `executor`, one at a time for one transaction.
    """

    def __init__(
        self,
        parts: Deployment,
        awaited: Mapping[type[Effect], AsyncPerform],
        background: Background,
        executor: Executor,
    ) -> None:
        self._awaited = dict(awaited)
        self._blocking = port_performers(parts)
        self._background = background
        self._executor = executor

    async def perform(self, effect: Effect) -> Any:
        if isinstance(effect, effects.Heal | effects.DeleteOrphans):
            return self._background.offer(effect)
        awaited = self._awaited.get(type(effect))
        if awaited is not None:
            return await awaited(effect)
        return await self.in_thread(partial(self._blocking[type(effect)], effect))

    async def in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def run(self, steps: Steps[T]) -> T:
        """As `Driver.run`; a cancellation is an interrupt."""
        try:
            effect = steps.send(None)
            while True:
                try:
                    result = await self.perform(effect)
                except BaseException as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            steps.close()
