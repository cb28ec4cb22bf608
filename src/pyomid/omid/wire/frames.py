"""Split a byte stream into frames: a 4-byte big-endian length, then one protobuf message of that length.

This module does no I/O: it takes bytes and yields complete payloads. It refuses a frame over the limit at its header,
before it buffers the frame's bytes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from google.protobuf.message import DecodeError

from pyomid.errors import Misuse

HEADER_BYTES: Final = 4

FRAME_BYTES_MAX: Final = 10 * 1024 * 1024
"""The longest frame that Apache Omid's server accepts (interop.md, Wire)."""


class ProtocolError(Misuse):
    """The peer violated the wire protocol. Its connection is closed; no other peer is affected (T11)."""

    code = "OMID-PROTOCOL"


class FrameTooLong(ProtocolError):
    """A frame is over the limit. The message says what the limit is and what to do."""

    code = "OMID-FRAME-TOO-LONG"

    @classmethod
    def of(cls, frame_bytes: int, frame_bytes_max: int) -> FrameTooLong:
        return cls(
            f"a frame of {frame_bytes} bytes is over the limit of {frame_bytes_max}: "
            "commit smaller transactions, or send the write set in parts",
            frame_bytes=frame_bytes,
            frame_bytes_max=frame_bytes_max,
        )


def frame(payload: bytes) -> bytes:
    """Return `payload` with its length in front."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameCutter:
    """Splits a byte stream into frames. Between two chunks it buffers an incomplete frame."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._rest = bytearray()

    @property
    def unfinished_bytes(self) -> int:
        """The number of buffered bytes."""
        return len(self._rest)

    @property
    def holds_frame(self) -> bool:
        """Whether `feed(b"")` would yield a frame or raise, because the last caller of `feed` stopped early."""
        if len(self._rest) < HEADER_BYTES:
            return False
        length = int.from_bytes(self._rest[:HEADER_BYTES], "big")
        return length > self.frame_bytes_max or len(self._rest) >= HEADER_BYTES + length

    def feed(self, chunk: bytes | bytearray | memoryview) -> Generator[bytes, None, None]:
        """Yield every frame that `chunk` completes, in order. Raises `FrameTooLong` at the header of a frame over the
        limit.

        The frames before a bad header are yielded first; after the error the stream cannot be used. A caller that stops
        early must close this generator. It continues later with `feed(b"")`.
        """
        self._rest += chunk
        at = 0
        try:
            while len(self._rest) - at >= HEADER_BYTES:
                length = int.from_bytes(self._rest[at : at + HEADER_BYTES], "big")
                if length > self.frame_bytes_max:
                    raise FrameTooLong.of(length, self.frame_bytes_max)
                end = at + HEADER_BYTES + length
                if len(self._rest) < end:
                    break
                payload = bytes(self._rest[at + HEADER_BYTES : end])
                at = end
                yield payload
        finally:
            del self._rest[:at]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(unfinished_bytes={self.unfinished_bytes})"


def parsed(kind: Any, payload: bytes) -> Any:
    """Return the protobuf message of class `kind` in `payload`, or raise `ProtocolError`."""
    message = kind()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise ProtocolError(f"a frame of {len(payload)} bytes is not a {kind.__name__}: {error}") from error
    return message


def varint(value: int) -> bytes:
    """Return an unsigned number encoded as a protobuf varint."""
    if value <= 0x7F:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
