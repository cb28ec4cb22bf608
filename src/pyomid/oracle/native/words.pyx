"""Operations on the words of the conflict map, for `conflict_map`."""

from libc.stdint cimport int64_t, uint64_t


cdef inline uint64_t buckets_of(uint64_t[::1] words) noexcept nogil:
    return words.shape[0] // BUCKET_WORDS


cdef uint64_t unsigned(cell_id) except? 0:
    """Return the 64 bits of an id, which may be signed."""
    return cell_id & 0xFFFF_FFFF_FFFF_FFFF


def last_commit(uint64_t[::1] words, cell_id):
    """Return the cell's last commit timestamp; 0 if the map has no entry for it."""
    return kept_commit(&words[0], buckets_of(words), unsigned(cell_id))


def record_commit(uint64_t[::1] words, cell_id, uint64_t commit_ts):
    """Put an entry. Return the commit timestamp of the entry evicted for it; 0 if a slot was free."""
    return keep_commit(&words[0], buckets_of(words), unsigned(cell_id), commit_ts)


def first_conflict(uint64_t[::1] words, const int64_t[::1] cell_ids, uint64_t start_ts):
    """Return the last commit of the first of these cells that was committed later than `start_ts`; 0 if none was."""
    return first_later(&words[0], buckets_of(words), &cell_ids[0], cell_ids.shape[0], start_ts)


def record_all(uint64_t[::1] words, const int64_t[::1] cell_ids, uint64_t commit_ts):
    """`record_commit` each cell. Return the greatest commit timestamp that was evicted; 0 if none was."""
    return keep_commits(&words[0], buckets_of(words), &cell_ids[0], cell_ids.shape[0], commit_ts)
