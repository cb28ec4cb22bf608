"""The product itself in the simulation: its modules, its compiled kernels, the TSO's decisions made by its fast path.

A build of `build` runs the core's source uncompiled, so that a rule can be taken out of it. This one has nothing taken
out; what it adds is the other half of the TSO: begins and commits go as frames through the kernel, their answers come
back as bytes, exactly as in a service, and only what the kernel hands back goes to the plain machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Iterator
from typing import Any, Final

import numpy as np

from pyomid.omid.oracle.chunk_oracle import RARE_FRAME, ChunkOracle
from pyomid.omid.oracle.instructions import EncodedReplies
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.tso.service import switch_to_native
from pyomid.omid.wire.codec import decode_answer, encode_request
from pyomid.omid.wire.frames import HEADER_BYTES
from pyomid.omid.wire.messages import Answer, Begin, Request
from pyomid.types import CommitRequest
from simulation.build import Build
from simulation.mirror import MirrorOracle

CHUNK_BYTES_MAX: Final = 1 << 12


class CompiledBuild(Build):
    """`build.reading`, `build.machine` …: the product's own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.decided = 0
        """Requests that kernels of this build took; a run in which none did says nothing about them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return importlib.import_module(self.place_of(name))

    def place_of(self, name: str) -> str:
        return super().place_of(name).replace(self.namespace, "pyomid")

    def fast_path(self, machine: TsoMachine) -> Kernel:
        return Kernel(self, machine)


class Kernel:
    """The fast path of one machine, request by request."""

    def __init__(self, build: CompiledBuild, machine: TsoMachine) -> None:
        self._build = build
        self._machine = machine
        self.fast = self._switch(machine)
        self._asked: dict[int, tuple[Hashable, int]] = {}

    @staticmethod
    def _switch(machine: TsoMachine) -> ChunkOracle:
        return switch_to_native(machine, chunk_bytes_max=CHUNK_BYTES_MAX, wait_for_memory=True)

    def take(self, peer: Hashable, tag: int, request: Request) -> list[tuple[Hashable, int, Answer]] | None:
        """What is answered at once; None where the machine has to take the request."""
        if not isinstance(request, Begin | CommitRequest) or not self._machine.may_decide_fast:
            return None
        number = len(self._asked) + 1
        self._asked[number] = (peer, tag)
        data = encode_request(request, request_id=number)
        if len(data) > CHUNK_BYTES_MAX:
            return None
        chunk = np.frombuffer(bytearray(data), dtype=np.uint8)
        decided = self.fast.decide(chunk, 0, len(data), peer=peer, extended=True)
        if decided.status == RARE_FRAME:
            return None
        assert decided.consumed == len(data)
        self._build.decided += 1
        return list(self._answers(decided.now))

    def released(self, replies: EncodedReplies) -> list[tuple[Hashable, int, Answer]]:
        """The answers of commits whose batch was released."""
        return list(self._answers(replies.data))

    def _answers(self, data: bytes) -> Iterator[tuple[Hashable, int, Answer]]:
        at = 0
        while at < len(data):
            end = at + HEADER_BYTES + int.from_bytes(data[at : at + HEADER_BYTES], "big")
            outgoing = decode_answer(data[at + HEADER_BYTES : end])
            peer, tag = self._asked[outgoing.request_id]
            yield peer, tag, outgoing.body  # type: ignore[misc]
            at = end


class MirrorBuild(CompiledBuild):
    """Each TSO of the universe decides twice: what compiled code decides is compared with its reference, request by
    request, and what the machine does with the rest of it. A difference ends the run."""

    def fast_path(self, machine: TsoMachine) -> Kernel:
        return MirrorKernel(self, machine)


class MirrorKernel(Kernel):
    @staticmethod
    def _switch(machine: TsoMachine) -> ChunkOracle:
        mirror = MirrorOracle(machine, is_extended=lambda peer: True)
        machine.handle = mirror.handle_by_both  # type: ignore[assignment,method-assign]
        return mirror
