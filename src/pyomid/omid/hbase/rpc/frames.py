"""HBase's RPC frames: converts calls to bytes and bytes to replies, without a socket.

    connection   "HBas", version 0, authentication (80: simple; 81: Kerberos, 82: a token, `handshake`); length,
                 ConnectionHeader; the server sends no reply
    request      length | delimited RequestHeader | delimited parameter | cell block
    reply        length | delimited ResponseHeader | delimited result   | cell block

Lengths are 4 bytes, big-endian; a "delimited" message comes after its length as a varint. Calls are pipelined. The
server answers them in any order, and a reply has the call's id. (RPC.proto of hbase-protocol-shaded 2.6.1.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from pyomid.errors import Corruption
from pyomid.omid.hbase.rpc.failures import RemoteFailure
from pyomid.omid.hbase.rpc.hbase_pb2 import ConnectionHeader, RequestHeader, ResponseHeader
from pyomid.omid.wire.frames import varint

CLIENT: Final = "ClientService"
ADMIN: Final = "AdminService"
MASTER: Final = "MasterService"

SIMPLE: Final = 80
KERBEROS: Final = 81
TOKEN: Final = 82
"""The authentication methods (SaslAuthMethod)."""

_CODEC: Final = "org.apache.hadoop.hbase.codec.KeyValueCodec"
_LENGTH: Final = struct.Struct(">I")

REFUSED_CALL_ID: Final = 0xFFFFFFFF
"""The call id in a reply that refuses a connection before any call: -1 in an unsigned field."""

REPLY_BYTES_MAX: Final = 1 << 30
"""A longer frame counts as malformed. HBase itself limits a scan's reply to 100 MiB plus one row."""

_JOIN_BYTES_MAX: Final = 64 << 10
"""A cell block up to this size is sent in one piece with the head of its frame."""

_BUFFER_BYTES: Final = 64 << 10
"""The maximum number of bytes of one read, which may hold many small replies. A frame larger than half of this gets its
own buffer."""


class Address(NamedTuple):
    """The address of a region server or master."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `parameter` is the serialized message; `cells` is the cell block, or empty."""

    service: str
    method: str
    parameter: bytes
    cells: bytes | bytearray | memoryview = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply. `message` and `cells` are views of the frame, which is not shared."""

    call_id: int
    failure: RemoteFailure | None
    message: memoryview
    cells: memoryview


def opening(authentication: int) -> bytes:
    """Return the first bytes that a client sends on a connection."""
    return b"HBas" + bytes([0, authentication])


def connection_header(service: str, user: str | None = None) -> bytes:
    """Return the header that follows authentication, preceded by its length. If `user` is None, calls run as the
    authenticated user."""
    header = ConnectionHeader(service_name=service, cell_block_codec_class=_CODEC)
    if user is not None:
        header.user_info.effective_user = user
    encoded = header.SerializeToString()
    return _LENGTH.pack(len(encoded)) + encoded


def preamble(service: str, user: str) -> bytes:
    """Return the bytes that open a connection with simple authentication."""
    return opening(SIMPLE) + connection_header(service, user)


def encode_call(call_id: int, call: Call, timeout_ms: int) -> tuple[bytes, bytes | bytearray | memoryview]:
    """Return the frame as its head and its cell block, or all of it as the head if the block is small. It costs less to
    copy a small block than to make a second system call, and a single send cannot be interrupted halfway. The server
    drops a call that has waited longer than `timeout_ms`."""
    header = RequestHeader(call_id=call_id, method_name=call.method, request_param=True, timeout=timeout_ms)
    if call.cells:
        header.cell_block_meta.length = len(call.cells)
    encoded = header.SerializeToString()
    head = delimited(encoded) + delimited(call.parameter)
    head = _LENGTH.pack(len(head) + len(call.cells)) + head
    return (head, call.cells) if len(call.cells) > _JOIN_BYTES_MAX else (b"".join((head, call.cells)), b"")


def decode_reply(frame: memoryview) -> Reply:
    """Return the reply in `frame`, which is given without its length. Raises `Corruption` if it is malformed."""
    try:
        encoded, rest = _split_delimited(frame)
        header = ResponseHeader.FromString(encoded)  # type: ignore[arg-type]
        cells_bytes = header.cell_block_meta.length
        if cells_bytes > len(rest):
            raise Corruption(f"a reply announces {cells_bytes} bytes of cells but holds only {len(rest)}")
        cells = rest[len(rest) - cells_bytes :]
        if header.HasField("exception"):
            return Reply(header.call_id, RemoteFailure.of(header.exception), rest[:0], cells)
        message, extra = (
            _split_delimited(rest[: len(rest) - cells_bytes]) if len(rest) > cells_bytes else (rest[:0], b"")
        )
    except (DecodeError, IndexError) as error:
        raise Corruption(f"a reply of {len(frame)} bytes is malformed: {error}") from error
    if len(extra):
        raise Corruption(f"a reply holds {len(extra)} bytes after its message")
    return Reply(header.call_id, None, message, cells)


class FrameAssembler:
    """Splits a stream into frames. Receive bytes into `space()`, pass their count to `filled()`, and take the frames.

    Small frames are copied out of a shared buffer; a large frame is received into its own buffer.
    """

    def __init__(self) -> None:
        self._shared = bytearray(_BUFFER_BYTES)
        self._begin = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_filled = 0

    def space(self) -> memoryview:
        """Return the buffer for the next bytes of the stream. It is never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        return memoryview(self._shared)[self._end :]

    def filled(self, count: int) -> Iterator[memoryview]:
        """Yield the frames that `count` more bytes complete, without their lengths. The caller must take all of
        them."""
        if self._large is not None:
            self._large_filled += count
            if self._large_filled == len(self._large):
                frame, self._large = memoryview(self._large), None
                yield frame
            return
        self._end += count
        yield from self._cut_shared()

    def _cut_shared(self) -> Iterator[memoryview]:
        while self._end - self._begin >= 4:
            (length,) = _LENGTH.unpack_from(self._shared, self._begin)
            if length > REPLY_BYTES_MAX:
                raise Corruption(f"a reply of {length} bytes exceeds the maximum of {REPLY_BYTES_MAX}")
            body = self._begin + 4
            if body + length > self._end:
                if length + 4 > _BUFFER_BYTES // 2:
                    self._begin_large(body, length)
                break
            yield memoryview(self._shared[body : body + length])
            self._begin = body + length
        self._compact()

    def _begin_large(self, body: int, length: int) -> None:
        self._large = bytearray(length)
        self._large_filled = self._end - body
        self._large[: self._large_filled] = self._shared[body : self._end]
        self._begin = self._end

    def _compact(self) -> None:
        rest = self._end - self._begin
        if self._begin and rest:
            self._shared[:rest] = self._shared[self._begin : self._end]
        self._begin, self._end = 0, rest


class WrappedFrameAssembler(FrameAssembler):
    """A `FrameAssembler` for a stream with a security layer. The stream consists of tokens, each preceded by its
    length; their contents are the stream of frames. `unwrap` gets the tokens in order."""

    def __init__(self, unwrap: Callable[[memoryview], bytes]) -> None:
        super().__init__()
        self._unwrap = unwrap
        self._inner = FrameAssembler()

    def filled(self, count: int) -> Iterator[memoryview]:
        for token in super().filled(count):
            rest = memoryview(self._unwrap(token))
            while rest:
                space = self._inner.space()
                taken = min(len(space), len(rest))
                space[:taken], rest = rest[:taken], rest[taken:]
                yield from self._inner.filled(taken)


def delimited(message: bytes) -> bytes:
    """Return a message preceded by its length."""
    return varint(len(message)) + message


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it. Raises IndexError if the data end inside the
    number."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _split_delimited(data: memoryview) -> tuple[memoryview, memoryview]:
    length, begin = read_varint(data, 0)
    if begin + length > len(data):
        raise IndexError("a message reaches beyond its frame")
    return data[begin : begin + length], data[begin + length :]
