"""Routines: coroutines that await effects, which are the I/O that a driver performs for them. This module uses no
threads, sockets or clocks.

    async def check_horizon(start_ts):                   # a routine, written once for all drivers
        watermark, horizon = await ReadWatermarks()      # an effect, which describes a request and performs nothing
        return start_ts >= horizon

A driver sends each effect's result back, or throws the effect's error in at the `await`. There are three drivers: the
blocking front end performs effects in the calling thread (`drive`), the asyncio front end awaits them
(`database.async_driver`), and the simulation may crash, delay or reorder at each effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from pyomid.native import awaited

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Routine = Coroutine["Effect[Any]", Any, T]


class Effect(awaited.Awaited, Generic[T_co]):
    """A request that a routine awaits; its result has type `T_co`."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Self, Any, T_co]: ...


NOTHING: Final[Awaitable[None]] = awaited.Nothing()
"""An awaitable that does nothing, and is cheaper than a coroutine."""


@dataclass(frozen=True, slots=True)
class Pause(Effect[None]):
    """Wait for `pause_s`."""

    pause_s: float


@dataclass(slots=True)  # not frozen: frozen instances take three times as long to create
class Blocking(Effect[T]):
    """Run `call`, which may wait for a disk, a socket or another thread, and return its result."""

    call: Callable[[], T]


Handler = Callable[[Any], Any]
"""Performs an effect of the class that it is registered for, and returns the result."""


def drop(routine: Routine[Any]) -> None:
    """Close a routine. If it never began, also close the coroutines among its arguments, because Python warns of each
    coroutine that was never awaited."""
    frame = routine.cr_frame  # type: ignore[attr-defined]  # typing knows none of it
    if frame is not None and not routine.cr_running and routine.cr_await is None:  # type: ignore[attr-defined]
        for given in frame.f_locals.values():
            if isinstance(given, CoroutineType):
                drop(given)
    routine.close()


def drive(routine: Routine[T], handlers: Mapping[type[Effect[Any]], Handler]) -> T:
    """Return the routine's result. Effects are performed in the calling thread; their errors are raised unless the
    routine catches them."""
    resume: Callable[[Any], Effect[Any]] = routine.send
    value: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            try:
                while True:
                    effect = resume(value)
                    resume, value = routine.send, handlers[type(effect)](effect)
            except BaseException as error:
                if routine.cr_frame is not None:  # type: ignore[attr-defined]  # typing knows none of it
                    resume, value, thrown = routine.throw, error, error
                elif error.__class__ is StopIteration:  # no call here: an interrupt could lose it
                    return error.value  # type: ignore[no-any-return]
                elif isinstance(thrown, StopIteration) and error.__cause__ is thrown:
                    raise thrown from None  # a coroutine must not raise StopIteration: Python replaced it
                else:
                    raise
    finally:
        del value, thrown  # break the reference cycle of error, traceback and this frame
        if routine.cr_frame is not None:  # type: ignore[attr-defined]
            drop(routine)


async def adrive(routine: Routine[T], perform: Callable[[Effect[Any]], Awaitable[Any]]) -> T:
    """Return the routine's result, like `drive`, in a task of an event loop. A cancellation is thrown into the
    routine."""
    resume: Callable[[Any], Effect[Any]] = routine.send
    value: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            try:
                while True:
                    effect = resume(value)
                    resume, value = routine.send, await perform(effect)
            except BaseException as error:
                if routine.cr_frame is not None:  # type: ignore[attr-defined]  # typing knows none of it
                    resume, value, thrown = routine.throw, error, error
                elif error.__class__ is StopIteration:  # no call here: an interrupt could lose it
                    return error.value  # type: ignore[no-any-return]
                elif isinstance(thrown, StopIteration) and error.__cause__ is thrown:
                    raise thrown from None  # a coroutine must not raise StopIteration: Python replaced it
                else:
                    raise
    finally:
        del value, thrown
        if routine.cr_frame is not None:  # type: ignore[attr-defined]
            drop(routine)
