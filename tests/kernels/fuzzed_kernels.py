"""Kernels that read what others wrote, on hostile bytes, every array between guard pages: a process of its own.

    python fuzzed_kernels.py SEED ROUNDS [WHAT …]

Prints each round before it begins, so that the last line of a process that died says how to do it again.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from zlib import crc32

import guarded
import numpy as np

from pyomid.errors import Corruption

INT64 = np.iinfo(np.int64)
EDGES = (
    0, 1, 2, 7, 8, 9, 15, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
    (1 << 47) - 1, (1 << 48) - 1, (1 << 51) - 1, 1 << 51, (1 << 51) + 1, 1 << 52, (1 << 62) - 1, 1 << 62,
    (1 << 63) - 17, (1 << 63) - 8, (1 << 63) - 1, 1 << 63, (1 << 64) - 16, (1 << 64) - 1,
)  # fmt: skip
"""Where sums and products wrap."""


def hostile_number(rng: random.Random) -> int:
    if rng.random() < 0.5:
        return rng.choice(EDGES)
    return rng.getrandbits(rng.randrange(1, 65))


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def array(data: bytes, dtype: type = np.uint8) -> np.ndarray:
    return np.frombuffer(bytearray(data), dtype=dtype)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, a number put over others, cut short: or not."""
    out = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        number = hostile_number(rng)
        piece = rng.choice((
            rng.randbytes(1), varint(number), struct.pack(">Q", number), struct.pack("<Q", number),
            struct.pack(">I", number & 0xFFFF_FFFF), struct.pack("<H", number & 0xFFFF),
        ))  # fmt: skip
        out[at : at + (len(piece) if rng.random() < 0.7 else 0)] = piece
    return bytes(out[: rng.randrange(len(out) + 1)] if rng.random() < 0.2 else out)


def message(rng: random.Random, depth: int) -> bytes:
    """Protobuf of few fields, nested, mostly well-formed; lengths lie now and then."""
    out = b""
    for _ in range(rng.randrange(4)):
        field = rng.choice((1, 1, 1, 2, 3, 4, 64, 65, 68))
        if depth and rng.random() < 0.7:
            inner = message(rng, depth - 1)
            length = len(inner) if rng.random() < 0.8 else hostile_number(rng)
            out += varint(field << 3 | 2) + varint(length) + inner
        else:
            out += varint(field << 3 | rng.choice((0, 0, 0, 1, 5))) + varint(hostile_number(rng))
    return out


# What region servers send


def hbase_replies(rng: random.Random) -> None:
    from pyomid.omid.hbase.codec.native.commits import read_commit_gets
    from pyomid.omid.hbase.codec.native.encode import all_succeeded

    answer = array(damaged(rng, message(rng, 3)))
    all_succeeded(answer)
    starts = np.array([50 * rng.randrange(1, 9) for _ in range(rng.randrange(4))], dtype=np.int64)
    block = array(damaged(rng, b"".join(commit_cell(rng, int(start)) for start in starts)))
    results = b""
    for index in range(len(starts) + 1):
        count = rng.choice((0, 1, 1, 2, hostile_number(rng)))
        result = b"\x10" + varint(count)
        one = b"\x08" + varint(index) + b"\x12" + varint(len(result)) + result
        results += b"\x0a" + varint(len(one)) + one
    answer = array(damaged(rng, b"\x0a" + varint(len(results)) + results))
    found, last = np.empty(len(starts), dtype=np.int64), np.empty(2, dtype=np.int64)
    read_commit_gets(answer, block, starts, found, last)


def commit_cell(rng: random.Random, start: int) -> bytes:
    row = bytes([start & 15]) + struct.pack(">Q", start)
    return key_value(rng, row, b"F", rng.choice((b"C", b"IT")), start, varint(rng.getrandbits(40)))


def key_value(rng: random.Random, row: bytes, family: bytes, qualifier: bytes, version: int, value: bytes) -> bytes:
    key = struct.pack(">H", len(row)) + row + bytes([len(family)]) + family + qualifier
    key += struct.pack(">Q", version) + b"\x04"
    out = bytearray(struct.pack(">III", 8 + len(key) + len(value), len(key), len(value)) + key + value)
    if rng.random() < 0.1:
        struct.pack_into(">I", out, rng.choice((0, 4, 8)), hostile_number(rng) & 0xFFFF_FFFF)
    return bytes(out)


def cell_blocks(rng: random.Random) -> None:
    from pyomid.omid.hbase.codec.batches import BatchDecoder, ScanBlock
    from pyomid.omid.hbase.codec.native.decode import last_cell

    decoder = BatchDecoder()
    for _ in range(3):
        cells = [
            key_value(
                rng,
                rng.choice((b"", b"r", b"row", b"row1", b"a long row of a table")),
                rng.choice((b"", b"f", b"fam")),
                rng.choice((b"", b"q", b"\x00\xc2\x80q\xc2\x80", b"q\xc2\x80", b"\xc2\x80", rng.randbytes(300))),
                50 * rng.randrange(3),
                rng.choice((b"", b"v", struct.pack(">Q", 100), rng.randbytes(40))),
            )
            for _ in range(rng.randrange(8))
        ]
        data = damaged(rng, b"".join(cells))
        last_cell(array(data))
        try:
            decoder.decode(ScanBlock(memoryview(bytearray(data)), len(cells), rng.random() < 0.3, rng.random() < 0.2))
        except Corruption:
            decoder = BatchDecoder()


# What lies in a folder


def sealed(key: bytes, behind: bytes) -> bytes:
    """A record whose checksum is right, whatever else is wrong with it."""
    return struct.pack("<I", crc32(behind, crc32(key))) + behind


def records(rng: random.Random) -> None:
    from pyomid.folder.native.records import change_records, decode_records

    items = []
    for index in range(rng.randrange(1, 6)):
        row = b"%c" % (65 + index) + rng.choice((b"", b"b\x00\xffc", b"\x00\xff", b"\x00"))
        key = b"\x00\x00\x00\x01" + row + b"\x00" + struct.pack(">Q", (1 << 63) - 1 - 50 * rng.randrange(4))
        if rng.random() < 0.1:
            key = rng.choice((damaged(rng, key), key[: rng.randrange(15)]))
        cells = [(rng.choice((1, 2, 3)), rng.randbytes(rng.randrange(4))) for _ in range(3)]
        body = varint(3 if rng.random() < 0.9 else hostile_number(rng))
        for number, value in cells:
            length = len(value) + 1 if rng.random() < 0.9 else hostile_number(rng)
            body += varint(number if rng.random() < 0.95 else hostile_number(rng)) + varint(length) + value
        if rng.random() < 0.3:
            codes = bytes(rng.choice((0x22, 0x12, 0x20, 0x3F, 0x00)) for _ in range(rng.randrange(3)))
            greatest = len(codes) * 2 - rng.randrange(2) if rng.random() < 0.9 else rng.randrange(256)
            body = b"\x00" + bytes([max(greatest, 0)]) + codes + rng.randbytes(rng.randrange(20))
        value = sealed(key, rng.randbytes(8) + (damaged(rng, body) if rng.random() < 0.2 else body))
        items += [key, value[: rng.randrange(len(value) + 1)] if rng.random() < 0.05 else value]
    data, lens = array(b"".join(items)), np.array([len(item) for item in items], dtype=np.int64)
    count = len(lens) // 2
    borders = np.arange(count + 1, dtype=np.int64) * rng.randrange(2)
    change_records(data.copy(), lens, np.full(count, 100), np.full(count, 2), borders, np.full(count, 1), borders)
    decode_records(data, lens, np.array([-1, 0, 1, -1], dtype=np.int32))


def page(rng: random.Random, number: int, pages: int, versions: int) -> bytes:
    """A page of LMDB, nearly all of it as it should be; the first of several is the branch above the others.
    `versions`: of each row."""
    out, upper = bytearray(4096), 4096
    is_branch = number == 0 and pages > 1
    nodes = pages - 1 if is_branch else rng.randrange(1, 6)
    for index in range(nodes):
        first = index + 1 if is_branch else 8 * number + index
        key = b"\x00\x00\x00\x01%c\x00" % (32 + first // versions) + struct.pack(">Q", (1 << 62) + first)
        if is_branch:
            child = first if rng.random() < 0.97 else hostile_number(rng) & 0xFFFF_FFFF_FFFF
            node = struct.pack("<HHHH", child & 0xFFFF, child >> 16 & 0xFFFF, child >> 32, len(key)) + key
        elif rng.random() < 0.4:
            size = rng.choice((100, 4070, 4080, 5000, hostile_number(rng) & 0xFFFF_FFFF))
            child = rng.choice((0, pages - 1, hostile_number(rng), (1 << 51) - 1))
            node = struct.pack("<HHHH", size & 0xFFFF, size >> 16, 1, len(key)) + key + struct.pack("<Q", child)
        else:
            commit_ts = rng.choice((0, 7, hostile_number(rng) & 0xFFFF_FFFF_FFFF_FFFF))
            greatest, codes = rng.choice((1, 2, 3, 4, 12, 13, 127, 255)), rng.choice((b"\x22", b"\x01\xf0", b"\xff"))
            known = b"\x01\x01\x05abcd", b"\x02\x01\x00\x02\x00", rng.randbytes(8), b"\xff" * 8
            cells = rng.choice((*known, b"\x00" + bytes([greatest]) + codes)).ljust(8)
            node = struct.pack("<HHHH", 20, 0, 0, len(key)) + key + struct.pack("<IQ", 0, commit_ts) + cells
        upper -= len(node)
        out[upper : upper + len(node)] = node
        struct.pack_into("<H", out, 16 + 2 * index, upper)
    struct.pack_into("<QHHHH", out, 0, number, 0, 1 if is_branch else 2, 16 + 2 * nodes, upper)
    if rng.random() < 0.1:
        at = rng.choice((10, 12, 14, 16, 18, upper, upper + 2, upper + 4, upper + 6, 4094))
        struct.pack_into("<H", out, at, hostile_number(rng) & 0xFFFF)
    return bytes(out)


def lmdb_pages(rng: random.Random) -> None:
    from pyomid.folder.native.pages import MORE, WHOLE, walk

    pages, versions = rng.randrange(1, 5), rng.choice((1, 4, 100))
    content = b"".join(page(rng, number, pages, versions) for number in range(pages))
    content = content[: len(content) - rng.choice((0, 0, 0, 0, 1, 16, 4000))]
    root = 0 if rng.random() < 0.9 else hostile_number(rng) & 0xFFFF_FFFF_FFFF
    start, stop = array(rng.choice((b"", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01*"))), array(b"\x00\x00\x00\x02")
    columns = array(rng.choice((b"", b"\0\1", b"\0\1\1")))
    needed = rng.choice((100, 1 << 62)), rng.choice((0, 100, (1 << 63) - 1)), columns, rng.choice((0, 0, 100, 1 << 62))
    asked = array(content), 4096, root, start, stop, (8, rng.choice((1, 3, 100)), 1 << 20, *needed)
    how, count, size, *_ = walk(*asked, array(b""), np.empty(0, dtype=np.int64))
    if how in (WHOLE, MORE) and count and size < 1 << 20:
        short = rng.choice((0, 0, 0, 1, size // 2))
        walk(*asked, np.empty(max(size - short, 1), dtype=np.uint8), np.empty(2 * count, dtype=np.int64))


# What clients send


def requests(rng: random.Random) -> None:
    from pyomid.omid.oracle.native.decide import parse_frames
    from pyomid.omid.oracle.native.memory import Op

    chunk = b""
    for _ in range(rng.randrange(6)):
        body = rng.choice((client_request(rng), message(rng, 3)))
        body = damaged(rng, body) if rng.random() < 0.4 else body
        chunk += struct.pack(">I", len(body) if rng.random() < 0.9 else hostile_number(rng) & 0xFFFF_FFFF) + body
    data = array(chunk[: rng.randrange(len(chunk) + 1)] if rng.random() < 0.3 else chunk)
    ids = np.empty(len(data), dtype=np.int64), np.empty(len(data), dtype=np.int64)
    parse_frames(data, 0, len(data), 4, (Op.array(4), *ids))


def client_request(rng: random.Random) -> bytes:
    packed = b"".join(varint(hostile_number(rng)) for _ in range(rng.randrange(5)))
    ids = b"\x1a" + varint(rng.choice((len(packed), len(packed), hostile_number(rng)))) + packed
    commit = b"\x08" + varint(hostile_number(rng)) + ids + b"\x18" + varint(hostile_number(rng)) + b"\x22\x01\x05"
    kind, body = rng.choice(((0x0A, b""), (0x12, commit)))
    return bytes([kind]) + varint(rng.choice((len(body), len(body), hostile_number(rng)))) + body


# What tables hold that others may have written


def row_keys(rng: random.Random) -> None:
    from pyomid.rows.native.columns import gather_decimals
    from pyomid.rows.native.row_keys import take_blocks, unescape

    keys = [
        damaged(rng, rng.choice((b"text\x00\x01", b"a\x00\xffb\x00\x01x", rng.randbytes(6), b""))) for _ in range(5)
    ]
    ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    data, first = array(b"".join(keys)), np.array([0, *ends[:-1]], dtype=np.int64)
    inversion = np.uint8(rng.choice((0, 255)))
    places, offsets = first.copy(), np.zeros(len(keys) + 1, dtype=np.int32)
    if unescape(data, places, ends, inversion, np.empty(len(data), dtype=np.uint8), offsets) < 0:
        take_blocks(data, places, ends, np.empty((len(keys), rng.choice((1, 2, 8, 1000))), dtype=np.uint8))
    take_blocks(data, first.copy(), ends, np.empty((len(keys), rng.choice((0, 1, 4))), dtype=np.uint8))
    lengths = (ends - first).astype(np.int32)
    gather_decimals(data, first, lengths, np.arange(len(keys)), 0, np.empty((len(keys), 16), dtype=np.uint8))


def known(_: random.Random) -> None:
    """What once ended the process."""
    from pyomid.folder.native.pages import OUTSIDE, walk
    from pyomid.folder.native.records import BAD_KEY, decode_records
    from pyomid.omid.hbase.codec.native.encode import all_succeeded

    assert not all_succeeded(array(b"\x0a" + varint((1 << 63) - 1)))
    key = b"\x00\x00\x00\x01"
    value = sealed(key, bytes(8) + b"\x01\x01\x01")
    lens = np.array([len(key), len(value)], dtype=np.int64)
    *_, status, bad_record = decode_records(array(key + value), lens, np.array([-1, 0], dtype=np.int32))
    assert (status, bad_record) == (BAD_KEY, 0)
    leaf, name = bytearray(4096), b"\x00\x00\x00\x01a\x00" + bytes(8)
    node = struct.pack("<HHHH", 5000, 0, 1, len(name)) + name + struct.pack("<Q", (1 << 51) - 1)
    struct.pack_into("<QHHHHH", leaf, 0, 0, 0, 2, 18, 4096 - len(node), 4096 - len(node))
    leaf[-len(node) :] = node
    for out in (array(b""), array(bytes(6000))):
        limits = 8, 10, 1 << 20, 1 << 62, 0, array(b""), 0
        asked = array(leaf), 4096, 0, array(b""), array(b"\xff"), limits
        assert walk(*asked, out, np.zeros(2, dtype=np.int64))[0] == OUTSIDE


WHAT: dict[str, Callable[[random.Random], None]] = {
    each.__name__: each for each in (known, hbase_replies, cell_blocks, records, lmdb_pages, requests, row_keys)
}


def main(seed: int, rounds: int, *chosen: str) -> None:
    for what in chosen or WHAT:
        for number in range(seed, seed + rounds):
            print(what, number, flush=True)
            WHAT[what](random.Random(number))


if __name__ == "__main__":
    guarded.install()
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
