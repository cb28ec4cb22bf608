/* Operations on the conflict map's words; `memory.py` has their layout. In C, so that a processor with AVX2 runs
   a version of its own (`VERSIONS`): the loops wait for memory, and the shorter their code is, the more cells' words
   the processor can load ahead. */

#include <stdint.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define VERSIONS __attribute__((target_clones("avx2", "default")))
#else
#define VERSIONS
#endif

#define SLOTS 28
#define BUCKET_WORDS 64
#define IDS_AT 8
#define COMMITS_AT 36
#define ENTRIES_AT 7

/* floor(id × buckets ÷ 2⁶⁴) for fewer than 2³² buckets, in unsigned words throughout (T10). */
static inline __attribute__((always_inline)) uint64_t *bucket_of(uint64_t *words, uint64_t buckets, uint64_t cell_id) {
    const uint64_t low = (cell_id & 0xFFFFFFFF) * buckets >> 32;
    return words + BUCKET_WORDS * (((cell_id >> 32) * buckets + low) >> 32);
}

/* Return a mask: bit i is set if slot i has the id's tag. */
static inline __attribute__((always_inline)) uint32_t matching_tags(const uint64_t *bucket, uint64_t cell_id) {
#if defined(__SSE2__)
    const __m128i *tags = (const __m128i *) bucket;
    const __m128i wanted = _mm_set1_epi16((short) cell_id);
    __m128i found[4];
    for (int part = 0; part < 4; part++) found[part] = _mm_cmpeq_epi16(_mm_loadu_si128(tags + part), wanted);
    const uint32_t matches = (uint32_t) _mm_movemask_epi8(_mm_packs_epi16(found[0], found[1]))
                           | (uint32_t) _mm_movemask_epi8(_mm_packs_epi16(found[2], found[3])) << 16;
#else
    uint32_t matches = 0;
    for (int slot = 0; slot < SLOTS; slot++)
        matches |= (uint32_t) ((uint16_t) (bucket[slot >> 2] >> 16 * (slot & 3)) == (uint16_t) cell_id) << slot;
#endif
    return matches & ((1u << SLOTS) - 1);
}

/* Return the id's slot in the bucket, or -1. */
static inline __attribute__((always_inline)) int find_slot(const uint64_t *bucket, uint64_t cell_id) {
    for (uint32_t matches = matching_tags(bucket, cell_id); matches; matches &= matches - 1) {
        const int slot = __builtin_ctz(matches);
        if (bucket[IDS_AT + slot] == cell_id && bucket[COMMITS_AT + slot]) return slot;
    }
    return -1;
}

/* Return the first slot with the least commit; an empty slot has commit 0. Commits are below 2⁶³. */
static inline __attribute__((always_inline)) int oldest_slot(const uint64_t *bucket) {
    const int64_t *commits = (const int64_t *) bucket + COMMITS_AT;
    int64_t least = commits[0];
    uint32_t matches = 0;
    for (int slot = 1; slot < SLOTS; slot++) least = commits[slot] < least ? commits[slot] : least;
    for (int slot = 0; slot < SLOTS; slot++) matches |= (uint32_t) (commits[slot] == least) << slot;
    return __builtin_ctz(matches);
}

/* Put an entry. Return the commit timestamp of the entry evicted for it; 0 if a slot was free. */
static inline __attribute__((always_inline)) uint64_t
keep_commit(uint64_t *words, uint64_t buckets, uint64_t cell_id, uint64_t commit_ts) {
    uint64_t *bucket = bucket_of(words, buckets, cell_id), evicted = 0;
    int slot = find_slot(bucket, cell_id);
    if (slot < 0) {
        slot = oldest_slot(bucket);
        evicted = bucket[COMMITS_AT + slot];
        words[ENTRIES_AT] += evicted == 0;
        const int shift = 16 * (slot & 3);
        bucket[slot >> 2] = (bucket[slot >> 2] & ~((uint64_t) 0xFFFF << shift)) | (cell_id & 0xFFFF) << shift;
        bucket[IDS_AT + slot] = cell_id;
    }
    bucket[COMMITS_AT + slot] = commit_ts;
    return evicted;
}

/* Return the cell's last commit timestamp; 0 if there is no entry for it. */
static inline __attribute__((always_inline)) uint64_t
kept_commit(uint64_t *words, uint64_t buckets, uint64_t cell_id) {
    const uint64_t *bucket = bucket_of(words, buckets, cell_id);
    const int slot = find_slot(bucket, cell_id);
    return slot < 0 ? 0 : bucket[COMMITS_AT + slot];
}

/* Return the last commit of the first of these cells that was committed later; 0 if none was. */
VERSIONS static uint64_t
first_later(uint64_t *words, uint64_t buckets, const int64_t *cell_ids, int64_t count, uint64_t start_ts) {
    for (int64_t index = 0; index < count; index++) {
        const uint64_t found = kept_commit(words, buckets, (uint64_t) cell_ids[index]);
        if (found > start_ts) return found;
    }
    return 0;
}

/* `keep_commit` each cell. Return the greatest commit timestamp that was evicted; 0 if none was. */
VERSIONS static uint64_t
keep_commits(uint64_t *words, uint64_t buckets, const int64_t *cell_ids, int64_t count, uint64_t commit_ts) {
    uint64_t evicted = 0;
    for (int64_t index = 0; index < count; index++) {
        const uint64_t each = keep_commit(words, buckets, (uint64_t) cell_ids[index], commit_ts);
        evicted = each > evicted ? each : evicted;
    }
    return evicted;
}

/* Prefetch the cache line of a bucket's tags, or those of its commits. */
static inline void prefetch_tags(uint64_t *words, uint64_t buckets, uint64_t cell_id) {
    __builtin_prefetch(bucket_of(words, buckets, cell_id), 0, 3);
}

static inline void prefetch_commits(uint64_t *words, uint64_t buckets, uint64_t cell_id) {
    const uint64_t *bucket = bucket_of(words, buckets, cell_id);
    for (int line = 4; line < 8; line++) __builtin_prefetch(bucket + 8 * line, 0, 3);
}
