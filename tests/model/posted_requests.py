"""How processes commit by posted requests in a folder, small enough to visit whole: folder.md's "Turn and areas".

Each process posts one request in its area of a shared file, and tries for the turn. Whoever has the turn takes what is
posted, copies it, performs it in one atomic write of the database, and marks it done. A process may be killed between
any two steps, and a new process may take over its area; an owner may withdraw after a timeout; the turn may be lost, so
that two processes hold it; the file may be torn, so that a state is zero or says "done"; and it may be deleted, so that
later processes use another file, with a turn and areas of its own, over the same database.

    owner    register ─ content ─ post ─┬─ done ─ look into the database ─ end
                                        ├─ withdraw ─ end
                                        └─ turn ─ take ─ copy ─ … ─ write ─ mark ─ … ─ end

What must hold: a request is performed at most once; who is told "committed" finds it performed, and who is told
"withdrawn" never does; a request whose owner was dead when a holder looked is not performed; nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from search import Step

RULES = (
    "outcome_written",
    "outcome_looked_up",
    "owner_looks_too",
    "outcome_of_file",
    "unique_number",
    "number_in_content",
    "owner_lives",
    "withdraw_posted",
    "done_is_a_hint",
)

EMPTY, POSTED, TAKEN, DONE = "empty", "posted", "taken", "done"
NOBODY = -1


@dataclass(frozen=True)
class Area:
    owner: int = NOBODY
    state: str = EMPTY
    number: str = ""
    """One word with the state."""
    content: str = ""
    """The number in the content that was written last."""
    writer: int = NOBODY


@dataclass(frozen=True)
class Process:
    file: int
    area: int
    step: str = "unborn"
    number: str = ""
    at: int = 0
    """The next area to look at, as a holder."""
    batch: tuple[tuple[int, str, bool, int], ...] = ()
    """(area, number, whether its owner was dead, whose content) of what it performs."""
    told: str = ""
    is_dead: bool = False


@dataclass(frozen=True)
class World:
    files: tuple[tuple[frozenset[int], tuple[Area, ...]], ...]
    """The holders of the turn, and the areas, of each file."""
    processes: tuple[Process, ...]
    performed: tuple[int, ...] = ()
    """Owners of the requests that were performed, in order."""
    outcomes: tuple[str, ...] = ()
    """The number that was performed last, for each place of each file."""
    kills: int = 0
    lost: int = 0
    tears: int = 0


@dataclass(frozen=True)
class Model:
    """Bounds, who takes part, and rules; a rule set to False is a mutant. `places`: (file, area) of each process."""

    places: tuple[tuple[int, int], ...]
    kills_max: int = 1
    lost_max: int = 0
    tears_max: int = 0
    withdraws: bool = False
    outcome_written: bool = True
    outcome_looked_up: bool = True
    owner_looks_too: bool = True
    outcome_of_file: bool = True
    unique_number: bool = True
    number_in_content: bool = True
    owner_lives: bool = True
    withdraw_posted: bool = True
    done_is_a_hint: bool = True

    @property
    def areas(self) -> int:
        return 1 + max(area for _, area in self.places)

    def first(self) -> World:
        files = 1 + max(file for file, _ in self.places)
        empty = tuple(Area() for _ in range(self.areas))
        return World(
            tuple((frozenset[int](), empty) for _ in range(files)),
            tuple(Process(file, area) for file, area in self.places),
            outcomes=("",) * (files * self.areas),
        )

    def has_ended(self, world: World) -> bool:
        return all(each.is_dead or each.step in ("end", "unborn") for each in world.processes)

    def steps(self, world: World) -> Iterator[Step[World]]:
        for me, process in enumerate(world.processes):
            if not process.is_dead:
                yield from self._steps_of(world, me, process)
            if process.step == "wait" and world.tears < self.tears_max:
                torn, area = replace(world, tears=world.tears + 1), world.files[process.file][1][process.area]
                for state in (EMPTY, DONE):
                    label = f"the state of {me} is torn: {state}"
                    yield label, _area(torn, process, process.area, replace(area, state=state))

    def _steps_of(self, world: World, me: int, process: Process) -> Iterator[Step[World]]:
        holders, areas = world.files[process.file]
        area = areas[process.area]
        if process.step == "unborn":
            if area.owner == NOBODY or world.processes[area.owner].is_dead:
                taken = _area(world, process, process.area, replace(area, owner=me, state=EMPTY))
                yield f"{me} registers", _process(taken, me, replace(process, step="content"))
            return
        if world.kills < self.kills_max and process.step != "end":
            dead = _process(world, me, replace(process, is_dead=True))
            yield f"{me} dies", _holders(replace(dead, kills=world.kills + 1), process, holders - {me})
        if process.step == "content":
            number = self._number(me)
            written = _area(world, process, process.area, replace(area, content=number, writer=me))
            yield f"{me} writes {number}", _process(written, me, replace(process, step="post", number=number))
        elif process.step == "post":
            posted = _area(world, process, process.area, replace(area, state=POSTED, number=process.number))
            yield f"{me} posts {process.number}", _process(posted, me, replace(process, step="wait"))
        elif process.step == "wait":
            yield from self._waiting(world, me, process, holders, area)
        else:
            yield from self._holding(world, me, process, areas)

    def _number(self, me: int) -> str:
        return f"n{me}" if self.unique_number else "first"

    def _place(self, process: Process, area: int) -> int:
        return (process.file if self.outcome_of_file else 0) * self.areas + area

    def _waiting(
        self, world: World, me: int, process: Process, holders: frozenset[int], area: Area
    ) -> Iterator[Step[World]]:
        if area.state == DONE and area.number == process.number:
            is_known = world.outcomes[self._place(process, process.area)] == process.number
            if is_known or not self.done_is_a_hint:
                yield f"{me} is told committed", _ended(world, me, process, "committed")
        if not holders or (world.lost < self.lost_max and me not in holders):
            lost = world.lost + bool(holders)
            holding = _holders(replace(world, lost=lost), process, holders | {me})
            yield f"{me} takes the turn", _process(holding, me, replace(process, step="take", at=0))
        is_posted = area.state == POSTED and area.number == process.number
        if self.withdraws and (is_posted or not self.withdraw_posted):
            yield f"{me} withdraws", _ended(world, me, process, "withdrawn")

    def _holding(self, world: World, me: int, process: Process, areas: tuple[Area, ...]) -> Iterator[Step[World]]:
        if process.step == "take":
            if process.at == len(areas):
                yield f"{me} has looked", _process(world, me, replace(process, step="write"))
            elif process.at == process.area:
                batch = (*process.batch, (process.at, process.number, False, me))
                yield f"{me} adds its own", _process(world, me, replace(process, at=process.at + 1, batch=batch))
            else:
                yield from self._takes(world, me, process, areas[process.at])
        elif process.step == "copy":
            area = areas[process.at]
            copied = replace(process, step="take", at=process.at + 1)
            taken, was_dead = process.batch[-1][1:3]
            batch = process.batch[:-1]
            if area.content == taken or not self.number_in_content:
                batch = (*batch, (process.at, taken, was_dead, area.writer))
            yield f"{me} copies {area.content}", _process(world, me, replace(copied, batch=batch))
        elif process.step == "write":
            yield f"{me} writes", _process(self._written(world, process), me, replace(process, step="mark", at=0))
        elif process.step == "mark":
            if process.at < len(process.batch):
                at, number, *_ = process.batch[process.at]
                area = areas[at]
                marked = world
                if (area.state, area.number) == (TAKEN, number):
                    marked = _area(world, process, at, replace(area, state=DONE))
                yield f"{me} marks {number}", _process(marked, me, replace(process, at=process.at + 1))
            else:
                released = _holders(world, process, world.files[process.file][0] - {me})
                yield f"{me} releases", _ended(released, me, process, "committed")

    def _takes(self, world: World, me: int, process: Process, area: Area) -> Iterator[Step[World]]:
        is_dead = area.owner != NOBODY and world.processes[area.owner].is_dead
        if area.state != POSTED or (is_dead and self.owner_lives):
            yield f"{me} passes {process.at}", _process(world, me, replace(process, at=process.at + 1))
            return
        batch = (*process.batch, (process.at, area.number, is_dead, area.writer))
        taken = _area(world, process, process.at, replace(area, state=TAKEN))
        yield f"{me} takes {area.number}", _process(taken, me, replace(process, step="copy", batch=batch))

    def _written(self, world: World, process: Process) -> World:
        performed, outcomes = list(world.performed), list(world.outcomes)
        for at, number, was_dead, writer in process.batch:
            place = self._place(process, at)
            looks = self.outcome_looked_up if at != process.area else self.owner_looks_too
            if looks and outcomes[place] == number:
                continue
            performed.append(writer)
            if was_dead:
                performed.append(NOBODY)
            if self.outcome_written:
                outcomes[place] = number
        return replace(world, performed=tuple(performed), outcomes=tuple(outcomes))

    def violation_of(self, world: World) -> str | None:
        """What must never be."""
        if NOBODY in world.performed:
            return "a request was performed though its owner was dead when the holder looked"
        if len(set(world.performed)) < len(world.performed):
            return "a request was performed twice"
        for me, process in enumerate(world.processes):
            if process.told == "committed" and me not in world.performed:
                return f"{me} was told committed, and its request was never performed"
            if process.told == "withdrawn" and me in world.performed:
                return f"{me} was told withdrawn, and its request was performed"
        return None


def _ended(world: World, me: int, process: Process, told: str) -> World:
    area = world.files[process.file][1][process.area]
    emptied = _area(world, process, process.area, replace(area, state=EMPTY))
    return _process(emptied, me, replace(process, step="end", told=told, batch=(), at=0))


def _process(world: World, me: int, process: Process) -> World:
    return replace(world, processes=(*world.processes[:me], process, *world.processes[me + 1 :]))


def _area(world: World, process: Process, at: int, area: Area) -> World:
    holders, areas = world.files[process.file]
    return _file(world, process.file, (holders, (*areas[:at], area, *areas[at + 1 :])))


def _holders(world: World, process: Process, holders: frozenset[int]) -> World:
    return _file(world, process.file, (holders, world.files[process.file][1]))


def _file(world: World, at: int, file: tuple[frozenset[int], tuple[Area, ...]]) -> World:
    return replace(world, files=(*world.files[:at], file, *world.files[at + 1 :]))
