"""The two loops that drive routines: what comes up anywhere in them goes into the routine, at the effect that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from interrupts import Interrupter, every_place
from pyomid import coroutines
from pyomid.coroutines import Effect, Routine, adrive, drive
from pyomid.database import async_driver

pytestmark = pytest.mark.fast


@dataclass(frozen=True)
class Add(Effect[int]):
    """The sum so far."""

    number: int


class Adder:
    def __init__(self) -> None:
        self.sum = 0

    def __call__(self, effect: Add) -> int:
        self.sum += effect.number
        return self.sum

    async def awaited(self, effect: Effect[Any]) -> int:
        assert isinstance(effect, Add)
        await asyncio.sleep(0)
        return self(effect)


async def add(count: int, told: list[BaseException]) -> int:
    total = 0
    try:
        for number in range(count):
            total = await Add(number)
    except BaseException as error:
        told.append(error)
        raise
    return total


def blocking(steps: Routine[Any], handle: Callable[[Any], Any]) -> Any:
    return drive(steps, {Add: handle})


def awaiting(steps: Routine[Any], handle: Callable[[Any], Any]) -> Any:
    async def perform(effect: Effect[Any]) -> Any:
        return handle(effect)

    return asyncio.run(adrive(steps, perform))


BOTH = pytest.mark.parametrize("run", [blocking, awaiting])


@BOTH
def test_steps_are_sent_results_and_their_value_returned(run: Callable[..., Any]) -> None:
    assert run(add(5, []), Adder()) == 10


@BOTH
def test_an_error_that_steps_answer_ends_nothing(run: Callable[..., Any]) -> None:
    async def steps() -> str:
        try:
            await Add(1)
        except ZeroDivisionError:
            return str(await Add(2))
        return "not told"

    def handle(effect: Add) -> str:
        if effect.number == 1:
            raise ZeroDivisionError
        return "told"

    assert run(steps(), handle) == "told"


@BOTH
@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, RuntimeError, GeneratorExit])
def test_an_error_goes_into_the_steps_and_comes_out(run: Callable[..., Any], error: type[BaseException]) -> None:
    def handle(effect: Add) -> None:
        raise error

    told: list[BaseException] = []
    with pytest.raises(error):
        run(add(5, told), handle)
    assert [type(each) for each in told] == [error]


def test_the_end_of_an_iterator_comes_out_as_itself() -> None:
    """`next` of an empty scan in a program's own function, say; Python makes it another error in a coroutine."""

    def handle(effect: Add) -> Any:
        return next(iter(()))

    told: list[BaseException] = []
    with pytest.raises(StopIteration):
        blocking(add(5, told), handle)
    assert [type(each.__cause__) for each in told] == [StopIteration]


def test_an_interrupt_between_two_effects_goes_into_the_steps(error: type[BaseException]) -> None:
    """A routine that is only closed cannot say or undo anything that waits. Before the first and behind the last effect
    there is nothing to tell."""

    def scene(interrupter: Interrupter) -> None:
        told: list[BaseException] = []
        adder = Adder()
        result, raised = interrupter.outcome(lambda: blocking(add(4, told), adder))
        if raised is None:
            assert result == 6
        elif told:
            assert told == [interrupter.error]
        else:
            assert adder.sum in (0, 6)

    assert every_place((coroutines, async_driver), error, scene) > 5
