"""The memory that Python and compiled code share; `memory.py` and `oracle/records.py` have the same records and explain
them."""

from libc.stdint cimport int64_t, uint64_t


cdef extern from "conflict_map.h" nogil:
    enum:
        BUCKET_WORDS
    uint64_t kept_commit(uint64_t *words, uint64_t buckets, uint64_t cell_id)
    uint64_t keep_commit(uint64_t *words, uint64_t buckets, uint64_t cell_id, uint64_t commit_ts)
    uint64_t first_later(uint64_t *words, uint64_t buckets, const int64_t *cell_ids, int64_t count, uint64_t start_ts)
    uint64_t keep_commits(uint64_t *words, uint64_t buckets, const int64_t *cell_ids, int64_t count, uint64_t commit_ts)
    void prefetch_tags(uint64_t *words, uint64_t buckets, uint64_t cell_id)
    void prefetch_commits(uint64_t *words, uint64_t buckets, uint64_t cell_id)


cdef struct Numbers:
    int64_t next_ts
    int64_t ceiling
    int64_t low_watermark
    int64_t newest_start
    int64_t fenced_ts


cdef struct Window:
    int64_t next_start
    int64_t window_end
    int64_t row_count


cdef struct Chunk:
    int64_t epoch
    int64_t window_span
    int64_t write_set_ids_max
    int64_t may_widen
    int64_t begins_fast
    int64_t row_count_max
    int64_t reported_ts
    int64_t begin
    int64_t end
    int64_t extended
    int64_t ops_max
    int64_t consumed
    int64_t now_bytes
    int64_t later_bytes
    int64_t begins
    int64_t aborts
    int64_t aborts_low_watermark
    int64_t aborts_fence


cdef struct Op:
    int64_t kind
    int64_t ts
    int64_t tag
    int64_t cell_begin
    int64_t cell_end
    int64_t table_begin
    int64_t table_end
    int64_t frame_at


cdef struct Table:
    int64_t table_id
    int64_t is_used
    int64_t is_known
    int64_t fence_ts
    int64_t commit_ts
    int64_t conflicts
