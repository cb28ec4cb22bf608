"""Group commit: the first thread that gets the lock writes for several, and makes their writes durable together.

A thread that writes for others may be interrupted anywhere (Ctrl-C, no memory) without an effect on the others
(decision 0039): a member stays in the queue until its outcome is known. The next thread that gets the lock (perhaps the
interrupted one, on its way out) ends the present group before it begins its own. A member whose own caller was
interrupted is not begun any more.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

from pyomid.errors import OmidError


class Group:
    """Members that share one write, and its outcome, which any thread may read at any time."""

    __slots__ = ("error", "is_committed")

    def __init__(self) -> None:
        self.error: OmidError | None = None
        """The error of the write: no member may be written again."""
        self.is_committed = False
        """The members' writes are durable, and every process sees them."""


G = TypeVar("G", bound=Group)


class Member(Generic[G]):
    """One thread's write; later its outcome. `weight`: its share of a group's limit."""

    __slots__ = ("error", "group", "is_abandoned", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.error: BaseException | None = None
        """The error of this member alone."""
        self.group: G | None = None
        self.is_abandoned = False
        """Its caller was interrupted."""

    @property
    def is_done(self) -> bool:
        group = self.group
        return self.error is not None or (group is not None and (group.is_committed or group.error is not None))

    def raise_error(self) -> None:
        error = self.error or (self.group.error if self.group is not None else None)
        if error is not None:
            raise error


M = TypeVar("M", bound=Member[Any])


def next_members(queue: deque[M], weight_max: int) -> list[M]:
    """Return the members of the next group, which stay in the queue: the first that waits, and later ones that fit."""
    while queue and (queue[0].is_done or queue[0].is_abandoned):
        queue.popleft()
    members: list[M] = []
    weight = 0
    for member in list(queue):
        if members and weight + member.weight > weight_max:
            break
        if not member.is_done and not member.is_abandoned:
            members.append(member)
            weight += member.weight
    return members
