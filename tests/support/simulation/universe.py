"""Who moves next. One seed, or one list of choices, is one universe.

Tasks are generators that yield what they wait for. What a task yields becomes a `Call`, which lives in stages that
the scheduler moves one at a time:

    sent  →  takes effect, part by part  →  answered

so that between any two of them anything else may happen: another task's call, a lost answer, the death of the
process. A call whose process died is a zombie: its parts may still take effect, late, or never.

Every call and task draws a speed when it is made; a slow one is overtaken a hundred times. That finds more than
even odds do (compare the priorities of Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees").
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pyomid.errors import OmidError

T = TypeVar("T")

SPEEDS: Final = (1.0, 1.0, 1.0, 0.2, 0.02)
"""Most are quick, some are overtaken now and then, some nearly stand still."""


class Choices:
    """Every decision of a universe, from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]

    def number(self, low: int, high: int) -> int:
        """Both included."""
        return self._random.randint(low, high)

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        return self._random.sample(options, count)

    def weighted(self, options: Sequence[T], weights: Sequence[float]) -> T:
        return self._random.choices(options, weights)[0]


@dataclass(eq=False)
class Process:
    """What dies together. `on_death` runs when it does."""

    name: str
    alive: bool = True
    stopped: bool = False
    """SIGSTOP: its tasks do not move, its calls in flight go on."""
    on_death: Callable[[], None] | None = None


@dataclass(eq=False)
class Task:
    """One thread of control: a generator, and what it will be sent next."""

    process: Process
    name: str
    steps: Generator[Any, Any, Any]
    speed: float = 1.0
    ready: bool = True
    inbox: Any = None
    error: BaseException | None = None
    wakes_at_s: float | None = None
    call: Call | None = None
    finished: bool = False
    result: Any = None
    failure: OmidError | None = None

    def answer(self, value: Any) -> None:
        self.inbox, self.error, self.ready = value, None, True

    def fail(self, error: BaseException) -> None:
        self.inbox, self.error, self.ready = None, error, True


@dataclass(eq=False)
class Call:
    """One effect in flight. `parts` are still to take effect; `ordered` ones only from the left.

    `waits`: all parts are done, but the answer comes from somebody else (`resolve`).
    """

    number: int
    process: Process
    label: str
    effect: Any
    parts: deque[Callable[[], Any]]
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    combine: Callable[[list[Any]], Any]
    ordered: bool = False
    stepwise: bool = False
    """Each part is sent only when the one before was answered: of a zombie's only the next may still land."""
    waits: bool = False
    fallible: Callable[[], BaseException] | None = None
    """What the caller is told where the request or the answer is lost; None: cannot be lost."""
    speed: float = 1.0
    not_before_s: float = 0.0
    results: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    zombie: bool = False

    @property
    def answerable(self) -> bool:
        return self.error is not None or (not self.parts and not self.waits)

    def bury(self) -> None:
        """Nobody waits any more; what was sent may still take effect."""
        self.zombie, self.waits = True, False
        if self.stepwise:
            self.parts = deque(list(self.parts)[:1])

    def resolve(self, value: Any) -> None:
        self.waits = False
        self.results = [value]

    def reject(self, error: BaseException) -> None:
        self.waits = False
        self.error = error


@dataclass(frozen=True, slots=True)
class Sleep:
    """A task may yield this: it goes on after so much virtual time, or when it is made ready; None: only then."""

    seconds: float | None


@dataclass(slots=True)
class Faults:
    """How likely each is at a step. All zero is the liveness phase."""

    lose_answer: float = 0.0
    lose_request: float = 0.0
    kill: float = 0.0
    stop: float = 0.0


NO_FAULTS: Final = Faults()

Move = tuple[str, Any]


class Stuck(AssertionError):
    """Something should have finished and did not."""


class Universe:
    """Tasks, calls, virtual time, and the log of what happened."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.now_s = 1_000.0
        self.steps = 0
        self.tasks: list[Task] = []
        self.calls: list[Call] = []
        self.processes: list[Process] = []
        self.time_flows = True
        """Whether time passes while there is something to do; a directed schedule moves it itself."""
        self.faults = NO_FAULTS
        self.killable: Callable[[Process], bool] = lambda process: False
        self.perform: Callable[[Task, Any], Call] = _nothing_performs
        self.log: list[str] = []
        self.after_move: list[Callable[[], None]] = []
        self._numbers = 0

    # ------------------------------------------------------------ what exists

    def process(self, name: str) -> Process:
        made = Process(name)
        self.processes.append(made)
        return made

    def spawn(self, process: Process, name: str, steps: Generator[Any, Any, Any]) -> Task:
        task = Task(process, name, steps, speed=self.choices.pick(SPEEDS))
        self.tasks.append(task)
        return task

    def call(
        self,
        process: Process,
        label: str,
        effect: Any,
        parts: Sequence[Callable[[], Any]],
        *,
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        combine: Callable[[list[Any]], Any] = lambda results: results[-1] if results else None,
        **options: Any,
    ) -> Call:
        self._numbers += 1
        speed = self.choices.pick(SPEEDS)
        made = Call(self._numbers, process, label, effect, deque(parts), done, failed, combine, speed=speed, **options)
        self.calls.append(made)
        return made

    def note(self, text: str) -> None:
        self.log.append(f"{self.steps:5} {self.now_s:9.2f}  {text}")

    def kill(self, process: Process) -> None:
        """Its tasks are gone; its calls in flight become zombies."""
        if not process.alive:
            return
        process.alive = False
        self.note(f"{process.name} DIES")
        self.tasks = [task for task in self.tasks if task.process is not process]
        for call in self.calls:
            if call.process is process:
                call.bury()
        if process.on_death is not None:
            process.on_death()

    # ------------------------------------------------------------ moves

    def moves(self, allowed: Callable[[Move], bool] | None = None) -> tuple[list[Move], list[float]]:
        """Everything that may happen now, with its weight."""
        found: list[Move] = []
        weights: list[float] = []

        def add(kind: str, what: Any, weight: float) -> None:
            if weight > 0 and (allowed is None or allowed((kind, what))):
                found.append((kind, what))
                weights.append(weight)

        for task in self.tasks:
            if task.process.stopped:
                continue
            if task.ready or (task.wakes_at_s is not None and task.wakes_at_s <= self.now_s):
                add("resume", task, task.speed)
        for call in self.calls:
            self._add_call_moves(call, add)
        for process in self.processes:
            if process.stopped and process.alive:
                add("continue", process, 0.02)
        return found, weights

    def _fault(self) -> Move | None:
        """Now and then one of the enabled faults."""
        faults, chance = self.faults, self.choices.chance
        victims = [process for process in self.processes if process.alive and self.killable(process)]
        if victims and chance(faults.kill):
            leaders = [process for process in victims if process.name.startswith("O")]
            return "kill", self.choices.pick(leaders if leaders and chance(0.4) else victims)
        if victims and chance(faults.stop):
            return "stop", self.choices.pick(victims)
        losable = [call for call in self.calls if call.fallible is not None and not call.zombie]
        if losable and chance(faults.lose_request + faults.lose_answer):
            call = self.choices.pick(losable)
            return ("lose request" if call.parts else "lose answer"), call
        return None

    def _add_call_moves(self, call: Call, add: Callable[[str, Any, float], None]) -> None:
        if call.zombie:
            if call.parts and call.error is None:
                add("apply", call, 0.3 * call.speed)
            add("forget", call, 0.02)
            return
        if call.answerable:
            add("answer", call, call.speed)
        elif call.parts and call.not_before_s <= self.now_s:
            add("apply", call, call.speed)

    def step(self, allowed: Callable[[Move], bool] | None = None) -> bool:
        """One move; False where nothing can move and no time helps."""
        found, weights = self.moves(allowed)
        self.steps += 1
        if not found and not self._pass_time():
            return False
        if self.time_flows and self.choices.chance(0.03):
            self.now_s += self.choices.pick((0.01, 0.05, 0.3, 3.0))
        fault = self._fault() if allowed is None else None
        if fault is not None:
            self.make(fault)
        elif found:
            self.make(self.choices.weighted(found, weights))
        return True

    def make(self, move: Move) -> None:
        """Makes the move and runs what watches after each."""
        kind, what = move
        match kind:
            case "resume":
                self._resume(what)
            case "apply":
                self._apply(what)
            case "answer":
                self._answer(what)
            case "lose request" | "lose answer":
                self._lose(kind, what)
            case "forget":
                self.calls.remove(what)
            case "kill":
                self.kill(what)
            case "stop":
                what.stopped = True
                self.note(f"{what.name} stops")
            case "continue":
                what.stopped = False
                self.note(f"{what.name} goes on")
        for watch in self.after_move:
            watch()

    def _pass_time(self) -> bool:
        """Up to the next thing that waits for time; False where nothing does."""
        waiting = [task.wakes_at_s for task in self.tasks if task.wakes_at_s is not None]
        waiting += [call.not_before_s for call in self.calls if call.parts and not call.zombie]
        later = [at for at in waiting if at > self.now_s]
        if not later:
            return any(process.stopped and process.alive for process in self.processes)
        self.now_s = min(later)
        return True

    def _resume(self, task: Task) -> None:
        value, error = task.inbox, task.error
        task.ready, task.inbox, task.error, task.wakes_at_s, task.call = False, None, None, None, None
        try:
            effect = task.steps.throw(error) if error is not None else task.steps.send(value)
        except StopIteration as stop:
            self._finish(task, stop.value, None)
        except OmidError as failure:
            self._finish(task, None, failure)
        else:
            if isinstance(effect, Sleep):
                task.wakes_at_s = None if effect.seconds is None else self.now_s + effect.seconds
            else:
                task.call = self.perform(task, effect)
                self.note(f"{task.name} → {task.call.label}")

    def _finish(self, task: Task, result: Any, failure: OmidError | None) -> None:
        task.finished, task.result, task.failure = True, result, failure
        if task in self.tasks:
            self.tasks.remove(task)
        self.note(f"{task.name} ends{f': {failure}' if failure else ''}")

    def _apply(self, call: Call) -> None:
        place = 0 if call.ordered else self.choices.number(0, len(call.parts) - 1)
        part = call.parts[place]
        del call.parts[place]
        self.note(f"{'zombie ' if call.zombie else ''}{call.process.name}: {call.label} takes effect")
        try:
            call.results.append(part())
        except OmidError as error:
            call.error = error
        if call.zombie and not call.parts and call in self.calls:
            self.calls.remove(call)

    def _answer(self, call: Call) -> None:
        self.calls.remove(call)
        if call.error is not None:
            self.note(f"{call.process.name} ← {call.label}: {type(call.error).__name__}")
            call.failed(call.error)
            return
        result = call.combine(call.results)
        self.note(f"{call.process.name} ← {call.label}: {_short(result)}")
        call.done(result)

    def _lose(self, kind: str, call: Call) -> None:
        assert call.fallible is not None
        self.note(f"{call.process.name} × {call.label}: {kind.removeprefix('lose ')} lost")
        error = call.fallible()
        call.failed(error)
        call.bury()
        if not call.parts:
            self.calls.remove(call)

    # ------------------------------------------------------------ runs

    def run(self, steps_max: int, *, until: Callable[[], bool] | None = None) -> bool:
        """Up to so many moves; True once `until` holds."""
        for _ in range(steps_max):
            if until is not None and until():
                return True
            if not self.step():
                break
        return until is None or until()

    def story(self, last: int = 200) -> str:
        """The interleaving, readable, its end."""
        return "\n".join(self.log[-last:])


def _nothing_performs(task: Task, effect: Any) -> Call:
    raise Stuck(f"{task.name} yields {effect!r} and nobody performs it")


def _short(result: Any) -> str:
    text = "a batch" if hasattr(result, "rec_version") else repr(result)
    return text if len(text) <= 160 else text[:157] + "…"
