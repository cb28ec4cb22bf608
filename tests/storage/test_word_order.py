"""The shared index on processors that reorder loads and stores: what its kernels become there."""

from __future__ import annotations

import re
from pathlib import Path

import llvmlite.binding as llvm
import numba
import pytest

from pyomid.kernels.compiled import Kernel
from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.storage.embedded.commit_log import index, index_kernels, memory_order
from pyomid.storage.embedded.commit_log.index_kernels import SLOTS
from pyomid.types import NOT_FOUND, SEALED

pytestmark = pytest.mark.fast

ARM = "aarch64-unknown-linux-gnu"


def instructions_on_arm(kernel: Kernel[..., object]) -> list[str]:
    """Of the compiled function itself, without what calls it from Python."""
    compiled = numba.njit(kernel.signature, nogil=True, _nrt=False)(kernel._linked())
    (code,) = compiled.inspect_llvm().values()
    code = re.sub(r'target (triple|datalayout) = "[^"]*"', "", code)
    code = re.sub(r'"target-(cpu|features)"="[^"]*"', "", code)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(ARM).create_target_machine(opt=3)
    module = llvm.parse_assembly(code)
    module.triple = ARM
    body = machine.emit_assembly(module).split(".Lfunc_end0:")[0]
    return re.findall(r"^\t([a-z][a-z0-9.]*)\s", body, re.MULTILINE)


def test_a_reader_on_arm_loads_key_and_slot_by_acquire() -> None:
    """Else it may see the key of a commit that was acknowledged, and the slot before it: below its own snapshot a
    commit is missed, and an update is lost."""
    assert instructions_on_arm(index_kernels.find_record).count("ldar") >= 1
    found = instructions_on_arm(index_kernels.find)
    # LLVM puts `find_record` into it or calls it, as the processor of this machine makes it reckon.
    assert found.count("ldar") + found.count("bl") >= 3, "the key where it is sought, the key again, the slot"
    assert found.count("ldar") >= 2, "the key again, the slot"


def test_the_writer_on_arm_stores_slot_and_key_by_release() -> None:
    assert instructions_on_arm(index_kernels.place).count("stlr") == 2
    assert instructions_on_arm(index_kernels.clear).count("stlr") == 1


def test_a_fence_on_arm_is_a_barrier() -> None:
    assert "dmb" in instructions_on_arm(memory_order.compiled_fence)


def test_on_weaker_processors_python_leaves_slots_to_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's loads and stores have no order there."""

    def refused(*_: object) -> None:
        raise AssertionError("a slot was touched without order")

    monkeypatch.setattr(memory_order, "IS_STRONG", False)
    monkeypatch.setattr(index, "FEW", 0)
    monkeypatch.setattr(index, "FEW_UNLOADED", 0)
    for few in ("place_few", "find_few", "clear_few"):
        monkeypatch.setattr(index_kernels, few, refused)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    rows = [(50 * number, 50 * number + 1) for number in range(1, 3 * SLOTS)]
    writer.put(rows)
    assert reader.lookup([start for start, _ in rows]) == [commit for _, commit in rows]
    writer.seal(50_000)
    writer.delete([50])
    assert reader.lookup([50, 100, 50_000]) == [NOT_FOUND, 101, SEALED]
    writer.close()
    assert reader.lookup([50, 100, 50_000]) == [NOT_FOUND, 101, SEALED]
    reader.close()
