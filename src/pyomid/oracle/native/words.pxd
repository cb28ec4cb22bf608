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
