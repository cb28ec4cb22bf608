"""Protobuf's bytes by hand: what no library would write."""

from __future__ import annotations


def varint(value: int, padding: int = 0) -> bytes:
    """`padding` more bytes than needed: allowed up to ten in all, nonsense beyond."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    if not padding:
        return bytes([*out, value])
    return bytes([*out, value | 0x80, *[0x80] * (padding - 1), 0])


def field_of(number: int, wire_type: int, body: bytes) -> bytes:
    return varint(number << 3 | wire_type) + body


def block(body: bytes) -> bytes:
    return varint(len(body)) + body
