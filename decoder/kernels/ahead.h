/* Fetching what is read next, at an even pace while the arithmetic goes on.
 *
 * One core gets all that it can of memory only while some fifty lines are always under way. The processor's own
 * prefetching sees to that as long as loads follow each other; it stops in the softmax and in the merging. So
 * the next page's run is asked for all through the work on this one, so many bytes per tick, and a tick is as
 * long wherever it is counted. Bursts between the phases and fetching in some phases only were slower
 * (docs/LOG.md).
 */
#ifndef RONDEL_AHEAD_H
#define RONDEL_AHEAD_H

#include "simd.h"

#define ALWAYS static inline __attribute__((always_inline))

/* Into the second-level cache: the first is too small for a page, the third too far away. */
#define PREFETCH(p) __builtin_prefetch(p, 0, 2)

/* How long things take: LANES numbers of softmax or merging; a line of 64 stored bytes times some rows; a kilobyte
 * of them in the matrix unit, which takes all rows at once. */
#define VECTOR_TICKS 4
#define LINE_TICKS(rows) (((rows) + 1) * 16 / LANES)
#define KILOBYTE_TICKS 8

typedef struct {
    const char *at;   /* not asked for yet */
    const char *due;  /* what should be by now */
    const char *end;
    int64_t per_tick; /* bytes */
} Ahead;

static inline void ahead_begin(Ahead *ahead, const char *at, int64_t bytes, int64_t ticks)
{
    ahead->at = ahead->due = at;
    ahead->end = at + bytes;
    ahead->per_tick = (bytes + ticks - 1) / ticks;
}

ALWAYS void ahead_step(Ahead *ahead, int ticks)
{
    const char *at = ahead->at, *due = ahead->due + ticks * ahead->per_tick;
    due = due < ahead->end ? due : ahead->end;
    for (; at < due; at += 64)
        PREFETCH(at);
    ahead->at = at;
    ahead->due = due;
}

#endif
