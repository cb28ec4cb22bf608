"""Memory of replies: used again when nobody looks at it, never before."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pyomid.storage.hbase.buffers import Buffers

MIB = 1 << 20


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


def test_a_buffer_comes_again_once_its_last_view_is_gone() -> None:
    buffers = Buffers()
    first = buffers.take(MIB)
    where, part = address(first), np.frombuffer(first[100:200], dtype=np.uint8)
    del first
    assert address(buffers.take(MIB)) != where, "a part of it is still looked at"
    del part
    views = [buffers.take(MIB) for _ in range(2)]
    assert where in [address(view) for view in views]


def test_what_is_kept_is_bounded_and_what_is_lent_is_not() -> None:
    buffers = Buffers(bytes_max=4 * MIB)
    views = [buffers.take(MIB) for _ in range(20)]
    assert len({address(view) for view in views}) == 20
    del views
    assert sum(map(len, buffers._kept)) <= 4 * MIB
    large = buffers.take(64 * MIB)
    assert len(large) == 64 * MIB
    assert sum(map(len, buffers._kept)) <= 4 * MIB


def test_free_buffers_make_room_for_another_size() -> None:
    buffers = Buffers(bytes_max=4 * MIB)
    for size in (MIB, 3 * MIB, MIB // 4):
        buffers.take(size)
    large = buffers.take(4 * MIB)
    where = address(large)
    del large
    assert address(buffers.take(4 * MIB)) == where


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_nobody_s_bytes_change_while_they_are_looked_at(chance: random.Random) -> None:
    buffers = Buffers(bytes_max=2 * MIB)
    lent: list[tuple[memoryview, int]] = []
    for number in range(60):
        view = buffers.take(chance.randrange(1, 700_000))
        view[0], view[-1] = number, number
        lent.append((view, number))
        if chance.random() < 0.6:
            lent.pop(chance.randrange(len(lent)))
        assert all((view[0], view[-1]) == (mark, mark) for view, mark in lent)
