"""Search in ascending numbers; `search.pxd` has the binary search."""

from libc.stdint cimport int64_t


def first_common(const int64_t[::1] one, const int64_t[::1] other):
    """Return the least number that is in both, or None. Both ascend. Each number of the shorter is searched in the
    longer from the last place on, by steps that double."""
    if one.shape[0] > other.shape[0]:
        one, other = other, one
    cdef int64_t index, at = 0, step, sought, count = other.shape[0]
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
