"""Search in ascending numbers; `search.pxd` has the binary search."""

from libc.stdint cimport int64_t


cdef enum:
    MUCH_SHORTER = 32


def first_common(const int64_t[::1] one, const int64_t[::1] other):
    """Return the least number that is in both ascending arrays, or None. If one array is much shorter, each of its
    numbers is searched in the other from the last place on, by steps that double."""
    if one.shape[0] > other.shape[0]:
        one, other = other, one
    cdef int64_t index = 0, at = 0, step, sought, found, count = other.shape[0]
    if one.shape[0] > count // MUCH_SHORTER:
        while index < one.shape[0] and at < count:
            sought, found = one[index], other[at]
            if sought == found:
                return sought
            index += sought < found
            at += found < sought
        return None
    for index in range(one.shape[0]):
        sought, step = one[index], 1
        while at + step < count and other[at + step] < sought:
            at += step
            step *= 2
        at += lower_bound(&other[at], min(step + 1, count - at), sought)
        if at == count:
            return None
        if other[at] == sought:
            return sought
    return None
