"""Who holds W back in a folder, small enough to visit whole: folder.md's "Snapshots and W".

Transactions of two processes, and of one without a place in the shared file, begin and read one row twice. A writer
commits new versions of the row. A cleaner reads the clock and the processes' slots, raises W, and removes versions. A
process may be killed between any two steps, and slots may become too old to count. Everything may happen between any
two steps.

    begin    note in the slot ─ read the clock ─ reads, each with W ─ end
    clean    read the clock ─ read slot 0 ─ read slot 1 ─ raise W ─ remove

What must hold: a read returns what its snapshot saw, or fails as too old; W passes a living process's open snapshot
only by age; and a dead process holds W back for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from search import Step

T = TypeVar("T")

RULES = (
    "noted_before_clock",
    "clock_before_slots",
    "slot_is_oldest",
    "noted_is_low",
    "checked_in_read",
    "raised_before_removal",
    "dead_do_not_hold",
    "old_do_not_hold",
)

WITHOUT_A_PLACE = -1


@dataclass(frozen=True)
class Reader:
    process: int
    step: str = "new"
    start: int = 0
    reads: int = 0
    wrong: str = ""
    noted: int = 0
    """What it wrote into the slot, or would have: at or below its start."""


@dataclass(frozen=True)
class Cleaner:
    step: str = "idle"
    bound: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class World:
    readers: tuple[Reader, ...]
    slots: tuple[int, int] = (0, 0)
    """The oldest open snapshot of each process, or less; 0: none."""
    alive: tuple[bool, bool] = (True, True)
    clock: int = 2
    kept: frozenset[int] = frozenset({2})
    """Commits of which the row still has the version."""
    commits: tuple[int, ...] = (2,)
    watermark: int = 0
    cleaner: Cleaner = Cleaner()
    has_aged: bool = False
    """Slots do not count any more."""


@dataclass(frozen=True)
class Model:
    """Bounds, who takes part, and rules; a rule set to False is a mutant. `processes`: of each reader."""

    processes: tuple[int, ...] = (0, 0)
    commits_max: int = 3
    rounds_max: int = 2
    kills: bool = False
    ages: bool = False
    noted_before_clock: bool = True
    clock_before_slots: bool = True
    slot_is_oldest: bool = True
    noted_is_low: bool = True
    checked_in_read: bool = True
    raised_before_removal: bool = True
    dead_do_not_hold: bool = True
    old_do_not_hold: bool = True

    def first(self) -> World:
        return World(tuple(Reader(process) for process in self.processes))

    def steps(self, world: World) -> Iterator[Step[World]]:
        for me, reader in enumerate(world.readers):
            if reader.process == WITHOUT_A_PLACE or world.alive[reader.process]:
                yield from self._reader_steps(world, me, reader)
        if len(world.commits) < self.commits_max:
            commit = world.clock + 2
            commits = (*world.commits, commit)
            yield f"commit {commit}", replace(world, clock=commit, commits=commits, kept=world.kept | {commit})
        yield from self._cleaner_steps(world, world.cleaner)
        for process in (0, 1):
            if self.kills and world.alive[process] and process in self.processes:
                yield f"process {process} dies", replace(world, alive=_put2(world.alive, process, False))
        if self.ages and not world.has_aged:
            yield "slots are old", replace(world, has_aged=True)

    def _reader_steps(self, world: World, me: int, reader: Reader) -> Iterator[Step[World]]:
        note, begin = ("new", "noted") if self.noted_before_clock else ("begun", "new")
        after_note, after_begin = ("noted", "open") if self.noted_before_clock else ("open", "begun")
        if reader.step == note:
            low = self._low(world, reader)
            noted = self._noted(world, reader.process, low)
            yield f"{me} notes {low}", _reader(noted, me, replace(reader, step=after_note, noted=low))
        elif reader.step == begin:
            start = world.clock + 1
            yield f"{me} begins at {start}", _reader(world, me, replace(reader, step=after_begin, start=start))
        elif reader.step == "open":
            if reader.reads < 2:
                yield f"{me} reads", _reader(world, me, self._read(world, reader))
            ended = _reader(world, me, replace(reader, step="ended"))
            yield f"{me} ends", self._slot_after(ended, reader.process)

    def _low(self, world: World, reader: Reader) -> int:
        """What it notes before it knows its start: the newest start that its process knows."""
        if reader.start:
            return reader.start
        if not self.noted_is_low:
            return world.clock + 2
        return max([1, *(each.start for each in world.readers if each.process == reader.process)])

    def _noted(self, world: World, process: int, start: int) -> World:
        if process == WITHOUT_A_PLACE:
            return world
        slot = world.slots[process]
        if self.slot_is_oldest and 0 < slot <= start:
            return world
        return replace(world, slots=_put2(world.slots, process, start))

    def _slot_after(self, world: World, process: int) -> World:
        """When one ends, the slot shows the oldest of those that are left."""
        if process == WITHOUT_A_PLACE:
            return world
        left = [r.start or r.noted for r in world.readers if r.process == process and r.step in ("noted", "open")]
        return replace(world, slots=_put2(world.slots, process, min(left, default=0)))

    def _read(self, world: World, reader: Reader) -> Reader:
        if self.checked_in_read and reader.start <= world.watermark:
            lawful = reader.process == WITHOUT_A_PLACE or world.has_aged
            wrong = "" if lawful else f"a registered snapshot at {reader.start} is too old"
            return replace(reader, step="too old", wrong=wrong)
        seen = max((commit for commit in world.kept if commit < reader.start), default=0)
        expected = max(commit for commit in _known_at(world, reader) if commit < reader.start)
        wrong = "" if seen == expected else f"the snapshot at {reader.start} reads {seen}, not {expected}"
        return replace(reader, reads=reader.reads + 1, wrong=wrong)

    def _cleaner_steps(self, world: World, cleaner: Cleaner) -> Iterator[Step[World]]:
        order = ("clock", "slot 0", "slot 1") if self.clock_before_slots else ("slot 0", "slot 1", "clock")
        if cleaner.step == "idle":
            if cleaner.rounds < self.rounds_max:
                begun = Cleaner(order[0], bound=1 << 30, rounds=cleaner.rounds + 1)
                yield "cleaner begins", replace(world, cleaner=begun)
        elif cleaner.step in order:
            at = order.index(cleaner.step)
            bound = min(cleaner.bound, self._bound(world, cleaner.step))
            follows = order[at + 1] if at + 1 < len(order) else ("raise" if self.raised_before_removal else "remove")
            yield f"cleaner reads {cleaner.step}", replace(world, cleaner=replace(cleaner, step=follows, bound=bound))
        elif cleaner.step == "raise":
            raised = max(world.watermark, cleaner.bound)
            follows = "remove" if self.raised_before_removal else "idle"
            yield f"W {raised}", replace(world, watermark=raised, cleaner=replace(cleaner, step=follows))
        elif cleaner.step == "remove":
            bound = max(cleaner.bound, world.watermark)
            newest = max((commit for commit in world.kept if commit <= bound), default=0)
            kept = frozenset(commit for commit in world.kept if commit >= newest)
            follows = "idle" if self.raised_before_removal else "raise"
            yield f"removes below {newest}", replace(world, kept=kept, cleaner=replace(cleaner, step=follows))

    def _bound(self, world: World, step: str) -> int:
        if step == "clock":
            return world.clock
        process = int(step[-1])
        slot = world.slots[process]
        holds = slot and (world.alive[process] or not self.dead_do_not_hold)
        if world.has_aged and self.old_do_not_hold:
            holds = False
        return slot - 1 if holds else 1 << 30

    def violation_of(self, world: World) -> str | None:
        """What must never be."""
        for reader in world.readers:
            if reader.wrong:
                return reader.wrong
        for process in (0, 1):
            if not world.alive[process] and world.slots[process] and self._bound(world, f"slot {process}") < 1 << 30:
                return "a dead process holds W back"
        if world.has_aged and any(self._bound(world, f"slot {process}") < 1 << 30 for process in (0, 1)):
            return "an old snapshot holds W back"
        return None


def _known_at(world: World, reader: Reader) -> tuple[int, ...]:
    """All commits below its snapshot were there when it began: a later one lies above it."""
    return tuple(commit for commit in world.commits if commit < reader.start) or (0,)


def _reader(world: World, me: int, reader: Reader) -> World:
    return replace(world, readers=(*world.readers[:me], reader, *world.readers[me + 1 :]))


def _put2(pair: tuple[T, T], at: int, item: T) -> tuple[T, T]:
    return (item, pair[1]) if at == 0 else (pair[0], item)
