/* A load generator for a TSO that speaks Apache Omid's wire: pyomid's, or the Java original.
 *
 *   load --connect host:port | --unix path   [options]          one thread, epoll, results as one JSON object
 *
 * Each connection carries M transactions at once: begin, then a commit of 2-10 cells, then the next.
 * Closed loop: a transaction begins as soon as the one before it ended. Open loop (--rate): at fixed times, and
 * latencies count from the time at which it should have begun, so that a slow server cannot hide its queue.
 *
 * It sleeps only after --spin-us of silence: on a virtual machine the server's core pays for waking one that sleeps,
 * some 50 us a send, which no client on another machine would cost it.
 *
 * Every reply is checked: it answers something asked; start timestamps are unique, ascend within a connection and lie
 * above every commit acknowledged before the begin was sent; commit > start; commit timestamps are unique; no two
 * committed transactions that overlap wrote a common cell. One violation ends the run with exit code 2.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <math.h>
#ifdef __BMI2__
#include <immintrin.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { IDLE, BEGUN_ASKED, THINKING, COMMIT_ASKED };
enum { CELLS_MAX = 64, IN_BYTES = 1 << 18, STEP = 50, REPLIES = 1 << 12, TX_AHEAD = 16, CHECKS_AHEAD = 6 };

typedef struct {
    int state, cells, retries;
    uint64_t start, floor, acked_before;
    int64_t asked_ns, due_ns;
    uint64_t cell[CELLS_MAX];
} Tx;

typedef struct {
    int fd, in_len, begin_head, begin_tail, table_mask;
    int *begin_queue;              /* transactions waiting for a begin, in order: begins are answered in order */
    int *by_start;                 /* open addressing: start -> transaction */
    uint8_t in[IN_BYTES];
    uint8_t *out;
    int out_len, out_sent, out_cap, wants_out, greeted;
    uint64_t last_start;
    Tx *tx;
} Conn;

/* cell -> last acknowledged commit, to see overlapping winners: direct-mapped, keyed exactly; a replaced cell is
   forgotten (counted, so that a report says how much was checked). */
typedef struct { uint64_t cell, start, commit; } Seen;

typedef struct { uint64_t kind, tag, start, commit, cause; int aborted; char reason; } Reply;

static struct {
    const char *host, *path, *json_tag;
    int port, conns, outstanding, cells_min, cells_max, extended, not_before, retry_hot;
    double seconds, warmup, rate, zipf, long_share, long_ms, spin_us;
    uint64_t keys, seed;
    int tables; uint64_t table[64];
} opt = {.host = "127.0.0.1", .conns = 8, .outstanding = 16, .cells_min = 2, .cells_max = 10, .seconds = 5,
         .warmup = 1, .keys = 1ull << 40, .seed = 1, .long_ms = 100, .spin_us = 200};

/* What each acknowledged commit wrote, by its timestamp, and the aborts not yet judged: an abort names the commit that
   caused it, whose own answer may come later. True: that commit wrote one of the cells. */
typedef struct { uint64_t commit; int cells; uint64_t cell[CELLS_MAX]; } Wrote;
typedef struct { uint64_t cause; int cells; uint64_t cell[CELLS_MAX]; } Judged;
enum { WROTE = 1 << 18, JUDGED = 1 << 13 };
static Wrote *wrote;
static Judged *judged;
static uint64_t judged_in, judged_out, conflict_false, conflict_unknown;

static uint64_t rng;
static Seen *seen;
static uint64_t seen_mask;
static uint64_t acked_max, committed, begun, aborted, conflict_true, violations, tries, forgotten;
static uint64_t reason_conflict, reason_lwm, reason_fence, reason_other;
static int64_t t_measure, t_end;
static uint32_t *hist_begin, *hist_commit;
#define HIST 40000

static int64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ll + t.tv_nsec; }
static uint64_t rnd(void) { rng ^= rng << 13; rng ^= rng >> 7; rng ^= rng << 17; return rng; }
static uint64_t mix(uint64_t x) { x ^= x >> 33; x *= 0xff51afd7ed558ccdull; x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ull; return x ^ (x >> 33); }

static void die(const char *what) { fprintf(stderr, "load: %s: %s\n", what, strerror(errno)); exit(1); }
static void wrong(const char *what, uint64_t a, uint64_t b) {
    if (violations++ < 10) fprintf(stderr, "VIOLATION %s: %llu %llu\n", what, (unsigned long long)a, (unsigned long long)b);
}

/* microseconds: exact to 10 ms, then by hundredths */
static void note(uint32_t *h, int64_t ns) {
    int64_t us = ns / 1000;
    int64_t i = us < 10000 ? us : us < 1000000 ? 10000 + (us - 10000) / 100 : HIST - 1;
    h[i < HIST ? (i < 0 ? 0 : i) : HIST - 1]++;
}
static double quantile(uint32_t *h, double q) {
    uint64_t n = 0, k = 0;
    for (int i = 0; i < HIST; i++) n += h[i];
    for (int i = 0; i < HIST; i++) { k += h[i]; if (n && k >= q * n) return i < 10000 ? i : 10000 + (i - 10000) * 100.0; }
    return 0;
}

/* Zipf by rejection (Hoermann and Derflinger's way is longer; this table is enough for benchmarks) */
static double *zipf_cdf; static uint64_t zipf_n;
static uint64_t pick(void) {
    if (!zipf_cdf) return (opt.keys & (opt.keys - 1)) ? rnd() % opt.keys : rnd() & (opt.keys - 1);
    double u = (rnd() >> 11) * (1.0 / 9007199254740992.0) * zipf_cdf[zipf_n - 1];
    uint64_t lo = 0, hi = zipf_n - 1;
    while (lo < hi) { uint64_t m = (lo + hi) / 2; if (zipf_cdf[m] < u) lo = m + 1; else hi = m; }
    return lo;
}

static int varlen(uint64_t v) { return (70 - __builtin_clzll(v | 1)) / 7; }
/* Zeros, in large pages where the system has them. */
static void *large(size_t bytes) {
    size_t page = 1 << 21;
    bytes = (bytes + page - 1) / page * page;
    void *p = aligned_alloc(page, bytes);
    if (!p) die("memory");
    madvise(p, bytes, MADV_HUGEPAGE);
    return memset(p, 0, bytes);
}

static uint8_t *varint(uint8_t *p, uint64_t v) {
#ifdef __BMI2__ /* the lower 56 bits at once; whoever calls has room for 10 bytes */
    if (v >= 1ull << 14) {
        uint64_t low = _pdep_u64(v, 0x7f7f7f7f7f7f7f7full) | 0x8080808080808080ull;
        int n = varlen(v);
        memcpy(p, &low, 8);
        if (n > 8) { p[8] = v >> 56 | 128; p[9] = v >> 63; }
        p[n - 1] &= 127;
        return p + n;
    }
#endif
    while (v >= 128) { *p++ = v | 128; v >>= 7; }
    *p++ = v;
    return p;
}

static uint8_t *room(Conn *c, int need) {
    if (c->out_sent == c->out_len) c->out_sent = c->out_len = 0;
    if (c->out_len + need > c->out_cap) {
        c->out_cap = 2 * (c->out_len + need);
        if (!(c->out = realloc(c->out, c->out_cap))) die("memory");
    }
    return c->out + c->out_len;
}
static void framed(Conn *c, uint8_t *frame, uint8_t *end) {
    uint32_t n = htonl((uint32_t)(end - frame - 4));
    memcpy(frame, &n, 4);
    c->out_len += (int)(end - frame);
}

static void ask_begin(Conn *c, int i, int64_t now) {
    Tx *t = &c->tx[i];
    t->state = BEGUN_ASKED; t->asked_ns = now; t->acked_before = acked_max;
    uint8_t *f = room(c, 40), *p = f + 4;
    if (opt.not_before && t->floor) {
        *p++ = 1 << 3 | 2; *p++ = 2 + varlen(t->floor); *p++ = 0x80; *p++ = 0x04; p = varint(p, t->floor);
    } else { *p++ = 1 << 3 | 2; *p++ = 0; }
    if (opt.extended) { *p++ = 0x80; *p++ = 0x04; p = varint(p, i + 1); }
    framed(c, f, p);
    c->begin_queue[c->begin_tail++ % opt.outstanding] = i;
}

static void ask_commit(Conn *c, int i, int64_t now) {
    Tx *t = &c->tx[i];
    if (!t->retries || !opt.retry_hot) {
        t->cells = opt.cells_min + rnd() % (opt.cells_max - opt.cells_min + 1);
        for (int k = 0; k < t->cells; k++) {
            uint64_t key = pick();
            t->cell[k] = opt.keys == ~0ull ? rnd() : mix(key + 0x9e3779b97f4a7c15ull);
        }
    }
    t->state = COMMIT_ASKED; t->asked_ns = now;
    int ids = 0, n = 0;
    for (int k = 0; k < t->cells; k++) ids += varlen(t->cell[k]);
    n = 1 + varlen(t->start) + 2 + 1 + varlen(ids) + ids;
    uint64_t table = opt.tables ? opt.table[rnd() % opt.tables] : 0;
    if (opt.tables) n += 1 + varlen(table);
    uint8_t *f = room(c, n + 64), *p = f + 4;
    *p++ = 2 << 3 | 2; p = varint(p, n);
    *p++ = 1 << 3; p = varint(p, t->start);
    *p++ = 2 << 3; *p++ = 0;
    *p++ = 3 << 3 | 2; p = varint(p, ids);
    for (int k = 0; k < t->cells; k++) p = varint(p, t->cell[k]);
    if (opt.tables) { *p++ = 4 << 3; p = varint(p, table); }
    if (opt.extended) { *p++ = 0x80; *p++ = 0x04; p = varint(p, i + 1); }
    framed(c, f, p);
    if (opt.extended) return;
    int h = mix(t->start) & c->table_mask;
    while (c->by_start[h] >= 0) h = (h + 1) & c->table_mask;
    c->by_start[h] = i;
}

static int take_by_start(Conn *c, uint64_t start) {
    int h = mix(start) & c->table_mask, i;
    for (;; h = (h + 1) & c->table_mask) {
        i = c->by_start[h];
        if (i == -1) return -1;
        if (i >= 0 && c->tx[i].start == start && c->tx[i].state == COMMIT_ASKED) break;
    }
    c->by_start[h] = -1;
    for (int k = (h + 1) & c->table_mask; c->by_start[k] >= 0; k = (k + 1) & c->table_mask) { /* close the gap */
        int m = c->by_start[k]; c->by_start[k] = -1;
        int g = mix(c->tx[m].start) & c->table_mask;
        while (c->by_start[g] >= 0) g = (g + 1) & c->table_mask;
        c->by_start[g] = m;
    }
    return i;
}

static void again(Conn *c, int i, int64_t now) {
    Tx *t = &c->tx[i];
    if (opt.rate > 0) {
        t->due_ns += (int64_t)(1e9 * opt.conns * opt.outstanding / opt.rate);
        if (t->due_ns > now) { t->state = IDLE; return; }
    }
    ask_begin(c, i, now);
    if (opt.rate > 0) t->asked_ns = t->due_ns;
}

static void on_begin(Conn *c, uint64_t start, uint64_t tag, int64_t now) {
    int i;
    if (opt.extended && tag) i = (int)tag - 1;
    else i = c->begin_queue[c->begin_head % opt.outstanding];
    c->begin_head++;
    if (i < 0 || i >= opt.outstanding || c->tx[i].state != BEGUN_ASKED) { wrong("a begin nobody asked for", start, tag); return; }
    Tx *t = &c->tx[i];
    if (start <= t->acked_before) wrong("start not above an acknowledged commit", start, t->acked_before);
    if (start == c->last_start || (!opt.not_before && start < c->last_start)) wrong("start not ascending", start, c->last_start);
    if (opt.not_before && t->floor && start <= t->floor) wrong("start not above not_before", start, t->floor);
    c->last_start = start; t->start = start;
    if (now >= t_measure) { begun++; note(hist_begin, now - t->asked_ns); }
    if (opt.long_share > 0 && (rnd() >> 11) * (1.0 / 9007199254740992.0) < opt.long_share) {
        t->state = THINKING; t->due_ns = now + (int64_t)(opt.long_ms * 1e6); return;
    }
    ask_commit(c, i, now);
}

static void judge_one(void) {
    Judged *j = &judged[judged_out++ % JUDGED];
    Wrote *w = &wrote[j->cause / STEP % WROTE];
    if (w->commit != j->cause) { conflict_unknown++; return; }
    for (int k = 0; k < j->cells; k++) for (int m = 0; m < w->cells; m++) if (j->cell[k] == w->cell[m]) { conflict_true++; return; }
    conflict_false++;
}

static void judge_later(Tx *t, uint64_t cause) {
    Judged *j = &judged[judged_in++ % JUDGED];
    j->cause = cause; j->cells = t->cells; memcpy(j->cell, t->cell, t->cells * sizeof *t->cell);
    if (judged_in - judged_out == JUDGED) judge_one();
}

static int answers(Conn *c, int i, uint64_t start) {
    return i >= 0 && i < opt.outstanding && c->tx[i].start == start && c->tx[i].state == COMMIT_ASKED;
}

static void on_commit(Conn *c, const Reply *r, int64_t now) {
    int was_aborted = r->aborted;
    uint64_t start = r->start, commit = r->commit, cause = r->cause;
    char reason = r->reason;
    int i = opt.extended ? (int)r->tag - 1 : take_by_start(c, start);
    if (!answers(c, i, start)) { wrong("a commit nobody asked for", start, commit); return; }
    Tx *t = &c->tx[i];
    if (now >= t_measure) note(hist_commit, now - t->asked_ns), tries++;
    if (was_aborted) {
        if (now >= t_measure) {
            aborted++;
            if (reason == 'c') reason_conflict++; else if (reason == 'l') reason_lwm++; else if (reason == 'f') reason_fence++; else reason_other++;
            if (reason == 'c' && cause) judge_later(t, cause);
        }
        t->floor = cause; t->retries++;
    } else {
        if (commit <= start) wrong("commit not above start", commit, start);
        for (int k = 0; k < t->cells; k++) {
            Seen *s = &seen[mix(t->cell[k]) & seen_mask];
            if (s->cell == t->cell[k]) {
                if (s->start == start && s->commit == commit) continue; /* it names this cell twice */
                /* another winner of this cell: one of the two must have committed before the other began */
                if (s->commit == commit) wrong("commit timestamp twice", commit, start);
                if (s->commit > start && s->commit < commit) wrong("overlapping winners", s->commit, start);
                if (s->commit > commit && s->start < commit) wrong("overlapping winners", commit, s->start);
                if (commit > s->commit) s->start = start, s->commit = commit;
            } else { if (s->commit) forgotten++; *s = (Seen){t->cell[k], start, commit}; }
        }
        Wrote *w = &wrote[commit / STEP % WROTE];
        w->commit = commit; w->cells = t->cells; memcpy(w->cell, t->cell, t->cells * sizeof *t->cell);
        if (commit > acked_max) acked_max = commit;
        if (now >= t_measure) committed++;
        t->floor = 0; t->retries = 0;
    }
    again(c, i, now);
}

static const uint8_t *get(const uint8_t *p, const uint8_t *e, uint64_t *v) {
    *v = 0;
    for (int s = 0; p < e && s < 70; s += 7) { uint8_t b = *p++; *v |= (uint64_t)(b & 127) << s; if (b < 128) return p; }
    wrong("a reply that is no protobuf", 0, 0); exit(2);
}

static Reply parse(const uint8_t *p, const uint8_t *e) {
    uint64_t key, v;
    Reply r = {.reason = 'c'};
    const uint8_t *q = 0, *qe = 0;
    while (p < e) {
        p = get(p, e, &key);
        if ((key & 7) == 2) { p = get(p, e, &v); if (key >> 3 < 64 || key >> 3 == 65) { r.kind = key >> 3; q = p; qe = p + v; } p += v; }
        else { p = get(p, e, &v); if (key >> 3 == 64) r.tag = v; }
    }
    while (q < qe) {
        q = get(q, qe, &key);
        if ((key & 7) == 2) { q = get(q, qe, &v); if (key >> 3 == 64 && v) r.reason = (char)q[0]; q += v; continue; }
        q = get(q, qe, &v);
        if (r.kind == 1) { if (key >> 3 == 1) r.start = v; }
        else if (key >> 3 == 1) r.aborted = (int)v; else if (key >> 3 == 2) r.start = v; else if (key >> 3 == 3) r.commit = v; else if (key >> 3 == 65) r.cause = v;
    }
    return r;
}

static void on_greeting(Conn *c, int64_t now) {
    c->greeted = 1;
    for (int i = 0; i < opt.outstanding; i++) {
        if (opt.rate > 0) c->tx[i].due_ns = now + (int64_t)(rnd() % 1000 * 1e6 * opt.conns * opt.outstanding / opt.rate);
        else ask_begin(c, i, now);
    }
}

/* What a reply will be checked against lies all over the memory: asked for some replies ahead. */
static void expect_tx(Conn *c, const Reply *r) {
    if (!opt.extended || r->tag - 1 >= (uint64_t)opt.outstanding) return;
    const char *t = (const char *)&c->tx[r->tag - 1];
    for (int line = 0; line < 3; line++) __builtin_prefetch(t + 64 * line, 1);
}
static void expect_checks(Conn *c, const Reply *r) {
    if (r->kind != 2 || r->aborted || !opt.extended || r->tag - 1 >= (uint64_t)opt.outstanding) return;
    const Tx *t = &c->tx[r->tag - 1];
    for (int k = 0; k < t->cells; k++) __builtin_prefetch(&seen[mix(t->cell[k]) & seen_mask], 1);
    const char *w = (const char *)&wrote[r->commit / STEP % WROTE];
    for (int line = 0; line < 2; line++) __builtin_prefetch(w + 64 * line, 1);
}

static void on_replies(Conn *c, const Reply *replies, int count, int64_t now) {
    for (int i = 0; i < count && i < TX_AHEAD; i++) expect_tx(c, &replies[i]);
    for (int i = 0; i < count && i < CHECKS_AHEAD; i++) expect_checks(c, &replies[i]);
    for (int i = 0; i < count; i++) {
        const Reply *r = &replies[i];
        if (i + TX_AHEAD < count) expect_tx(c, r + TX_AHEAD);
        if (i + CHECKS_AHEAD < count) expect_checks(c, r + CHECKS_AHEAD);
        if (r->kind == 1) on_begin(c, r->start, r->tag, now);
        else if (r->kind == 2) on_commit(c, r, now);
        else if (r->kind == 3) on_greeting(c, now);
        else wrong("an answer of unknown kind (an error?)", r->kind, r->tag);
    }
}

/* Every whole frame of what came. */
static void on_bytes(Conn *c, int64_t now) {
    static Reply replies[REPLIES];
    int at = 0, count = 0;
    while (c->in_len - at >= 4) {
        uint32_t len; memcpy(&len, c->in + at, 4); len = ntohl(len);
        if ((int)len > c->in_len - at - 4) break;
        replies[count++] = parse(c->in + at + 4, c->in + at + 4 + len);
        at += 4 + (int)len;
        if (count == REPLIES) { on_replies(c, replies, count, now); count = 0; }
    }
    on_replies(c, replies, count, now);
    memmove(c->in, c->in + at, c->in_len - at); c->in_len -= at;
}

static void flush_out(Conn *c, int ep) {
    while (c->out_sent < c->out_len) {
        ssize_t n = write(c->fd, c->out + c->out_sent, c->out_len - c->out_sent);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) die("write");
        c->out_sent += (int)n;
    }
    int want = c->out_sent < c->out_len;
    if (want != c->wants_out) {
        struct epoll_event ev = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &ev); c->wants_out = want;
    }
}

static void open_conn(Conn *c, int ep) {
    if (opt.path) {
        struct sockaddr_un a = {.sun_family = AF_UNIX}; strncpy(a.sun_path, opt.path, sizeof a.sun_path - 1);
        if ((c->fd = socket(AF_UNIX, SOCK_STREAM, 0)) < 0 || connect(c->fd, (void *)&a, sizeof a)) die("connect");
    } else {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(opt.port)}; inet_pton(AF_INET, opt.host, &a.sin_addr);
        int one = 1;
        if ((c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(c->fd, (void *)&a, sizeof a)) die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &ev);
    c->tx = calloc(opt.outstanding, sizeof(Tx)); c->begin_queue = calloc(opt.outstanding, sizeof(int));
    c->table_mask = 1; while (c->table_mask < 4 * opt.outstanding) c->table_mask <<= 1;
    c->by_start = malloc(c->table_mask * sizeof(int)); memset(c->by_start, 0xff, c->table_mask * sizeof(int)); c->table_mask--;
    uint8_t *f = room(c, 64), *p = f + 4;
    if (opt.extended) { *p++ = 3 << 3 | 2; *p++ = 7; *p++ = 1 << 3 | 2; *p++ = 5; *p++ = 0x82; *p++ = 0x04; *p++ = 2; *p++ = 1 << 3; *p++ = 1; }
    else { *p++ = 3 << 3 | 2; *p++ = 2; *p++ = 1 << 3 | 2; *p++ = 0; }
    framed(c, f, p); flush_out(c, ep);
}

static void due(Conn *c, int64_t now) {
    for (int i = 0; i < opt.outstanding; i++) {
        Tx *t = &c->tx[i];
        if (t->state == THINKING && t->due_ns <= now) ask_commit(c, i, now);
        else if (t->state == IDLE && c->greeted && t->due_ns <= now) { int64_t d = t->due_ns; ask_begin(c, i, now); if (opt.rate > 0) t->asked_ns = d; }
    }
}

static double num(int *i, char **v) { return atof(v[++*i]); }
int main(int n, char **v) {
    for (int i = 1; i < n; i++) {
        if (i + 1 >= n && strcmp(v[i], "--extended") && strcmp(v[i], "--not-before") && strcmp(v[i], "--retry")) { fprintf(stderr, "load: %s needs a value\n", v[i]); return 1; }
        if (!strcmp(v[i], "--connect")) { char *s = strdup(v[++i]), *d = strrchr(s, ':'); if (!d) return 1; *d = 0; opt.host = s; opt.port = atoi(d + 1); }
        else if (!strcmp(v[i], "--unix")) opt.path = v[++i];
        else if (!strcmp(v[i], "--connections")) opt.conns = (int)num(&i, v);
        else if (!strcmp(v[i], "--outstanding")) opt.outstanding = (int)num(&i, v);
        else if (!strcmp(v[i], "--seconds")) opt.seconds = num(&i, v);
        else if (!strcmp(v[i], "--warmup")) opt.warmup = num(&i, v);
        else if (!strcmp(v[i], "--rate")) opt.rate = num(&i, v);
        else if (!strcmp(v[i], "--keys")) opt.keys = (uint64_t)num(&i, v);
        else if (!strcmp(v[i], "--zipf")) opt.zipf = num(&i, v);
        else if (!strcmp(v[i], "--cells-min")) opt.cells_min = (int)num(&i, v);
        else if (!strcmp(v[i], "--cells-max")) opt.cells_max = (int)num(&i, v);
        else if (!strcmp(v[i], "--long-share")) opt.long_share = num(&i, v);
        else if (!strcmp(v[i], "--long-ms")) opt.long_ms = num(&i, v);
        else if (!strcmp(v[i], "--spin-us")) opt.spin_us = num(&i, v);
        else if (!strcmp(v[i], "--table-ids")) for (char *s = strtok(v[++i], ","); s && opt.tables < 64; s = strtok(NULL, ",")) opt.table[opt.tables++] = (uint64_t)strtoll(s, NULL, 10);
        else if (!strcmp(v[i], "--seed")) opt.seed = (uint64_t)num(&i, v);
        else if (!strcmp(v[i], "--extended")) opt.extended = 1;
        else if (!strcmp(v[i], "--not-before")) opt.not_before = opt.extended = 1;
        else if (!strcmp(v[i], "--retry")) opt.retry_hot = 1;
        else { fprintf(stderr, "load: what is %s?\n", v[i]); return 1; }
    }
    if (opt.cells_max > CELLS_MAX || opt.cells_min > opt.cells_max || opt.cells_min < 1) { fprintf(stderr, "load: 1 to %d cells\n", CELLS_MAX); return 1; }
    rng = mix(opt.seed) | 1;
    if (opt.zipf > 0) {
        zipf_n = opt.keys < 10000000 ? opt.keys : 10000000;
        zipf_cdf = malloc(zipf_n * sizeof(double));
        double sum = 0; for (uint64_t k = 0; k < zipf_n; k++) zipf_cdf[k] = sum += 1 / pow((double)(k + 1), opt.zipf);
    }
    seen_mask = (1ull << 20) - 1; seen = large((seen_mask + 1) * sizeof *seen);
    wrote = large(WROTE * sizeof *wrote); judged = calloc(JUDGED, sizeof *judged);
    hist_begin = calloc(HIST, 4); hist_commit = calloc(HIST, 4);
    int ep = epoll_create1(0);
    Conn *cs = calloc(opt.conns, sizeof *cs);
    int64_t t0 = now_ns(); t_measure = t0 + (int64_t)(opt.warmup * 1e9); t_end = t_measure + (int64_t)(opt.seconds * 1e9);
    for (int i = 0; i < opt.conns; i++) open_conn(&cs[i], ep);
    struct epoll_event evs[256]; struct rusage u0 = {0}, u1; int measuring = 0;
    int timed = opt.rate > 0 || opt.long_share > 0;
    int64_t spins_until_ns = 0;
    for (;;) {
        int is_spinning = timed || now_ns() < spins_until_ns;
        int k = epoll_wait(ep, evs, 256, is_spinning ? 0 : 100);
        int64_t now = now_ns();
        if (k > 0) spins_until_ns = now + (int64_t)(1e3 * opt.spin_us);
        if (!measuring && now >= t_measure) { measuring = 1; getrusage(RUSAGE_SELF, &u0); }
        if (now >= t_end) break;
        for (int j = 0; j < k; j++) {
            Conn *c = evs[j].data.ptr;
            if (evs[j].events & (EPOLLIN | EPOLLHUP)) {
                ssize_t got = read(c->fd, c->in + c->in_len, IN_BYTES - c->in_len);
                if (got == 0) { fprintf(stderr, "load: the server closed a connection\n"); return 2; }
                if (got < 0) { if (errno == EAGAIN) continue; die("read"); }
                c->in_len += (int)got;
                on_bytes(c, now);
            }
            flush_out(c, ep);
        }
        if (timed) for (int i = 0; i < opt.conns; i++) { due(&cs[i], now); flush_out(&cs[i], ep); }
    }
    getrusage(RUSAGE_SELF, &u1);
    while (judged_out < judged_in) judge_one();
    double cpu = (u1.ru_utime.tv_sec - u0.ru_utime.tv_sec) + (u1.ru_stime.tv_sec - u0.ru_stime.tv_sec) + (u1.ru_utime.tv_usec - u0.ru_utime.tv_usec + u1.ru_stime.tv_usec - u0.ru_stime.tv_usec) / 1e6;
    printf("{\"tx_per_s\": %.1f, \"committed\": %llu, \"aborted\": %llu, \"true_conflicts\": %llu, \"false_conflicts\": %llu, \"unknown_conflicts\": %llu, \"aborts_conflict\": %llu, \"aborts_lwm\": %llu, "
           "\"aborts_fence\": %llu, \"aborts_other\": %llu, \"begin_p50_us\": %.0f, \"begin_p99_us\": %.0f, \"commit_p50_us\": %.0f, \"commit_p99_us\": %.0f, "
           "\"tries\": %llu, \"own_cpu_s\": %.3f, \"seconds\": %.3f, \"violations\": %llu, \"cells_forgotten\": %llu}\n",
           committed / opt.seconds, (unsigned long long)committed, (unsigned long long)aborted, (unsigned long long)conflict_true, (unsigned long long)conflict_false, (unsigned long long)conflict_unknown,
           (unsigned long long)reason_conflict, (unsigned long long)reason_lwm, (unsigned long long)reason_fence, (unsigned long long)reason_other,
           quantile(hist_begin, .5), quantile(hist_begin, .99), quantile(hist_commit, .5), quantile(hist_commit, .99),
           (unsigned long long)tries, cpu, opt.seconds, (unsigned long long)violations, (unsigned long long)forgotten);
    return violations ? 2 : 0;
}
