"""Breadth-first search of everything that can happen, so that the first violation found is a shortest one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

World = TypeVar("World")
Step = tuple[str, World]


@dataclass(frozen=True)
class Verdict(Generic[World]):
    """How many distinct worlds were seen, and the way to the first bad one (`violation` None: there is none)."""

    worlds: int
    violation: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.worlds} worlds, all good"
        return f"{self.worlds} worlds, {self.violation}: " + " | ".join(self.trace)


def explore(
    first: World,
    steps: Callable[[World], Iterable[Step[World]]],
    violation_of: Callable[[World], str | None],
    *,
    worlds_max: int,
    has_ended: Callable[[World], bool] | None = None,
) -> Verdict[World]:
    """Visits every world reachable from `first`. More than `worlds_max` of them is an error, not a pass.

    `has_ended`: every world must be able to reach one that has ended, without another step whose label has the word
    "dies" in it."""
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    before: dict[World, list[World]] = {}
    frontier = deque([first])
    while frontier:
        world = frontier.popleft()
        violation = violation_of(world)
        if violation is not None:
            return Verdict(len(came_from), violation, _trace(came_from, world))
        for label, successor in steps(world):
            if has_ended is not None and " dies" not in label:
                before.setdefault(successor, []).append(world)
            if successor not in came_from:
                came_from[successor] = (world, label)
                frontier.append(successor)
        if len(came_from) > worlds_max:
            raise RuntimeError(f"more than {worlds_max} worlds: the bounds are too wide for this test")
    if has_ended is not None:
        stuck = _stuck(came_from, before, has_ended)
        if stuck is not None:
            return Verdict(len(came_from), "somebody waits for ever", _trace(came_from, stuck))
    return Verdict(len(came_from))


def _stuck(
    worlds: Iterable[World], before: dict[World, list[World]], has_ended: Callable[[World], bool]
) -> World | None:
    able = {world for world in worlds if has_ended(world)}
    frontier = deque(able)
    while frontier:
        for world in before.get(frontier.popleft(), ()):
            if world not in able:
                able.add(world)
                frontier.append(world)
    return next((world for world in worlds if world not in able), None)


def follow(first: World, steps: Callable[[World], Iterable[Step[World]]], labels: Iterable[str]) -> list[World]:
    """The worlds along one way, as far as it can be gone."""
    worlds = [first]
    for label in labels:
        after = [successor for name, successor in steps(worlds[-1]) if name == label]
        if not after:
            break
        worlds.extend(after)
        assert len(after) == 1, f"{label} says two things"
    return worlds


def _trace(came_from: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    labels: list[str] = []
    origin = came_from[world]
    while origin is not None:
        world, label = origin
        labels.append(label)
        origin = came_from[world]
    return tuple(reversed(labels))
