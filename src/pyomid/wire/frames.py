"""A stream of bytes cut into frames: 4-byte big-endian length of what follows, then one protobuf message.

Sans IO: bytes in, whole payloads out. A frame over the limit is refused by its header alone, before its bytes
are kept.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from google.protobuf.message import DecodeError

from pyomid.errors import Misuse

HEADER_BYTES: Final = 4

FRAME_BYTES_MAX: Final = 10 * 1024 * 1024
"""What Apache Omid's server accepts (interop.md, Wire)."""


class ProtocolError(Misuse):
    """The peer broke the rules of the wire: its connection is closed, nobody else notices (T11)."""

    code = "OMID-PROTOCOL"


class FrameTooLong(ProtocolError):
    """A frame over the limit; the message names the limit and the way to a table-level commit."""

    code = "OMID-FRAME-TOO-LONG"

    @classmethod
    def of(cls, frame_bytes: int, frame_bytes_max: int) -> FrameTooLong:
        return cls(
            f"a frame of {frame_bytes} bytes is over the limit of {frame_bytes_max}: "
            "send the write set in parts, or commit it at table level",
            frame_bytes=frame_bytes,
            frame_bytes_max=frame_bytes_max,
        )


def frame(payload: bytes) -> bytes:
    """`payload` with its length before it."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameCutter:
    """Keeps the unfinished end of a stream between two chunks."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._rest = bytearray()

    @property
    def unfinished_bytes(self) -> int:
        """How much of a frame is held back until the rest of it comes."""
        return len(self._rest)

    @property
    def holds_frame(self) -> bool:
        """Whether `feed` would yield something, or raise, without another byte: the caller left off."""
        if len(self._rest) < HEADER_BYTES:
            return False
        length = int.from_bytes(self._rest[:HEADER_BYTES], "big")
        return length > self.frame_bytes_max or len(self._rest) >= HEADER_BYTES + length

    def feed(self, chunk: bytes | bytearray | memoryview) -> Generator[bytes, None, None]:
        """Every frame that `chunk` completes, in order. Raises `FrameTooLong` at the header that says so.

        The frames before a bad header are yielded first; after the error the stream is of no more use. Who leaves off
        before the end, and closes what this gave, goes on later with `feed(b"")`.
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
    """The protobuf message of class `kind` in `payload`, or `ProtocolError`."""
    message = kind()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise ProtocolError(f"a frame of {len(payload)} bytes is not a {kind.__name__}: {error}") from error
    return message
