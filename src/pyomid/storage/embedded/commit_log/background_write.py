"""A disk write in the background: it begins now, and a descriptor that an event loop watches tells its end.

It uses Linux's asynchronous I/O (io_submit(2)) on a file opened with O_DIRECT and O_DSYNC. When it has ended it is as
durable as `pwrite` is on return. To give the write to a thread would cost two changes of thread, each of which takes
longer than the processor needs for the write. Where the system has no such I/O, `open_writer` returns None, and the
caller writes by `pwrite`.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import select
import struct
from contextlib import suppress
from typing import Any, Final

from pyomid.platforms import IS_LINUX

log = logging.getLogger(__name__)

_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of io_setup, io_destroy, io_getevents and io_submit, for which the C library has no functions."""
_PWRITE: Final = 1
_TELLS_EVENTFD: Final = 1
_REQUEST: Final = struct.Struct("<QIiHhIQQqQII")
"""struct iocb: data, key, flags, operation, priority, file, buffer, bytes, offset, reserved, flags, eventfd."""
_EVENT: Final = struct.Struct("<QQqq")
"""struct io_event: data, request, result, second result."""
_NOTHING: Final = 0


def open_writer() -> BackgroundWriter | None:
    """None if this system has no such writes."""
    numbers = _CALLS.get(platform.machine())
    if numbers is None or not IS_LINUX:
        return None
    try:
        return BackgroundWriter(*numbers)
    except OSError as error:
        log.info("no writes in the background: %s", error)
        return None


class BackgroundWriter:
    """At most one write at a time. Not thread-safe; `fileno` becomes readable when the write has ended."""

    def __init__(self, setup: int, destroy: int, events: int, submit: int) -> None:
        library = ctypes.PyDLL(None, use_errno=True)
        """No call here blocks: to release the interpreter lock for one would cost more than the call."""
        self._call: Any = library.syscall
        self._setup_number, self._destroy_number = setup, destroy
        self._context = ctypes.c_ulong(0)
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._check(self._call(ctypes.c_long(setup), ctypes.c_uint(1), ctypes.byref(self._context)))
        except OSError:
            os.close(self._eventfd)
            raise
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._submit_arguments = (
            ctypes.c_long(submit), self._context, ctypes.c_long(1), ctypes.byref(self._pointer)
        )  # fmt: skip
        self._events_arguments = (
            ctypes.c_long(events), self._context, ctypes.c_long(0), ctypes.c_long(1), ctypes.byref(self._event), None
        )  # fmt: skip
        self._is_busy = False

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    def fileno(self) -> int:
        return self._eventfd

    def begin(self, file: int, address: int, count: int, offset: int) -> bool:
        """Begins to write `count` bytes at `address`, which must not change until the end. False: nothing was begun;
        this disk may not support it."""
        assert not self._is_busy, "one write at a time"
        _REQUEST.pack_into(
            self._request, 0, 0, 0, 0, _PWRITE, 0, file, address, count, offset, 0, _TELLS_EVENTFD, self._eventfd
        )  # fmt: skip
        self._is_busy = True  # first: an interrupt after the call loses its result, not what it began
        self._is_busy = bool(self._call(*self._submit_arguments) == 1)
        return self._is_busy

    def end(self) -> int | None:
        """The result of the ended write: a number of bytes, or a negative errno. None: it has not ended."""
        assert self._is_busy, "no write was begun"
        with suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        while (count := self._call(*self._events_arguments)) == -1 and ctypes.get_errno() == errno.EINTR:
            continue  # not "later": the descriptor tells only once
        if self._check(count) == _NOTHING:
            return None
        self._is_busy = False
        result: int = _EVENT.unpack(self._event)[2]
        return result

    def wait(self) -> int:
        """Waits for the end, and returns as `end` does."""
        poll = select.poll()
        poll.register(self._eventfd, select.POLLIN)
        while (result := self.end()) is None:
            poll.poll(1000)
        return result

    def reset(self) -> None:
        """After an interrupt in `begin` or `end`, when it is not known whether a write was begun: waits until none is
        under way. Its result is lost."""
        self._is_busy = True  # if this fails no further write is begun
        self._call(ctypes.c_long(self._destroy_number), self._context)
        self._context.value = 0
        self._check(self._call(ctypes.c_long(self._setup_number), ctypes.c_uint(1), ctypes.byref(self._context)))
        with suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        self._is_busy = False

    def close(self) -> None:
        """Waits for the write under way."""
        self._call(ctypes.c_long(self._destroy_number), self._context)
        os.close(self._eventfd)

    @staticmethod
    def _check(result: int) -> int:
        if result == -1:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
