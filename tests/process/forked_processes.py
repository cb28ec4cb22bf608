"""Processes of a fork server: started fast, waited for, never left behind."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

JOIN_S_MAX = 60.0
"""Longer than anything here takes on a busy machine: a process that is still there hangs."""


@dataclass
class Processes:
    """Starts processes and leaves none behind."""

    context: ForkServerContext
    started: list[ForkServerProcess]

    def start(self, target: Any, *args: Any) -> ForkServerProcess:
        process = self.context.Process(target=target, args=args, daemon=True)
        process.start()
        self.started.append(process)
        return process

    def finish(self, process: ForkServerProcess) -> int:
        """Its exit code (negative: the signal that ended it)."""
        process.join(JOIN_S_MAX)
        assert process.exitcode is not None, "the process hangs"
        self.started.remove(process)
        return process.exitcode

    def run(self, target: Any, *args: Any) -> int:
        return self.finish(self.start(target, *args))

    def kill_all(self) -> None:
        for process in self.started:
            process.kill()
            process.join(JOIN_S_MAX)
        self.started.clear()
