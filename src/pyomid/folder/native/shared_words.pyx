"""Words of 8 bytes in a file that processes map together: atomic, with a wait for a change.

On Linux a wait is a futex on the word's low half, so whoever changes it wakes the waiting processes. Elsewhere, and if
the system has no futexes, `wait` sleeps for a millisecond at most: the caller polls.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

cdef extern from "<sys/mman.h>":
    void *mmap(void *at, size_t size, int protection, int flags, int file, long offset)
    int munmap(void *at, size_t size)
    int PROT_READ, PROT_WRITE, MAP_SHARED
    void *MAP_FAILED

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <time.h>
    #include <unistd.h>
    #if defined(__linux__)
    #include <linux/futex.h>
    #include <sys/syscall.h>
    #endif
    static int64_t words_load(int64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static void words_store(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
    static int64_t words_add(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
    static int words_swap(int64_t *p, int64_t old, int64_t v) {
        return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    static void words_wait(int64_t *p, uint32_t seen, int64_t ns) {
        struct timespec t;
    #if defined(SYS_futex)
        t.tv_sec = ns / 1000000000; t.tv_nsec = ns % 1000000000;
        if (syscall(SYS_futex, (uint32_t *) p, FUTEX_WAIT, seen, &t, NULL, 0) != -1 || errno != ENOSYS) return;
    #endif
        if ((uint32_t) words_load(p) != seen) return;
        t.tv_sec = 0; t.tv_nsec = ns < 1000000 ? ns : 1000000;
        nanosleep(&t, NULL);
    }
    static void words_wake(int64_t *p) {
    #if defined(SYS_futex)
        syscall(SYS_futex, (uint32_t *) p, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
    #endif
    }
    """
    int64_t words_load(int64_t *p)
    void words_store(int64_t *p, int64_t value)
    int64_t words_add(int64_t *p, int64_t value)
    int words_swap(int64_t *p, int64_t old, int64_t value)
    void words_wait(int64_t *p, uint32_t seen, int64_t ns) nogil
    void words_wake(int64_t *p)


cdef class Words:
    """The first `size` bytes of a file, mapped: words by number, bytes by place."""

    cdef int64_t *first
    cdef Py_ssize_t count
    cdef Py_ssize_t size
    cdef int waiting

    def __cinit__(self, int file, Py_ssize_t size):
        cdef void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
        if found == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.first, self.count, self.size = <int64_t *> found, size // 8, size

    def __dealloc__(self):
        self.unmap()

    cdef void unmap(self):
        if self.first != NULL:
            munmap(self.first, self.size)
            self.first = NULL

    def close(self):
        """End the mapping; from now on every use is a ValueError."""
        self.count = 0
        if not self.waiting:
            self.unmap()

    cdef char *bytes_at(self, Py_ssize_t at, Py_ssize_t size) except NULL:
        if not self.count:
            raise ValueError("the file is not mapped any more")
        if not 0 <= at <= at + size <= self.size:
            raise IndexError(f"bytes {at} … {at + size} of {self.size}")
        return <char *> self.first + at

    def get(self, Py_ssize_t at, Py_ssize_t size):
        """Return a copy of bytes."""
        return PyBytes_FromStringAndSize(self.bytes_at(at, size), size)

    def put(self, Py_ssize_t at, bytes content):
        """Overwrite bytes."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(content)
        memcpy(self.bytes_at(at, size), PyBytes_AS_STRING(content), size)

    cdef int64_t *at(self, Py_ssize_t number) except NULL:
        return <int64_t *> self.bytes_at(8 * number, 8)

    def load(self, Py_ssize_t number):
        return words_load(self.at(number))

    def store(self, Py_ssize_t number, int64_t value):
        words_store(self.at(number), value)

    def add(self, Py_ssize_t number, int64_t value):
        """Add to the word. Return the new value."""
        return words_add(self.at(number), value)

    def swap(self, Py_ssize_t number, int64_t old, int64_t value):
        """Set the word to `value` if it is `old`. Return whether it was."""
        return bool(words_swap(self.at(number), old, value))

    def wait(self, Py_ssize_t number, int64_t seen, double seconds):
        """Wait until the word is no longer `seen`, at most this long; it may return earlier."""
        cdef int64_t *word = self.at(number)
        cdef int64_t ns = <int64_t> (seconds * 1e9)
        self.waiting += 1
        with nogil:
            words_wait(word, <uint32_t> seen, ns)
        self.waiting -= 1
        if not self.count and not self.waiting:
            self.unmap()

    def wake(self, Py_ssize_t number):
        """Wake every process that waits for this word."""
        words_wake(self.at(number))
