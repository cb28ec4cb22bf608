"""Binary search in ascending numbers."""

from libc.stdint cimport int64_t


cdef inline int64_t lower_bound(const int64_t *numbers, int64_t count, int64_t sought) noexcept nogil:
    """Return how many numbers are smaller than `sought`."""
    cdef int64_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < sought:
            low = middle + 1
        else:
            high = middle
    return low
