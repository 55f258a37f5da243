/* Read loops: the bytes that attention reads, read and nothing else done with them.
 *
 * They are the yardstick of the benchmarks: no kernel can pass the fastest of them by much. All return the
 * exclusive or of the 64-bit words, so that none can be optimised away and each can be checked. Which one is
 * fastest depends on the machine; the benchmarks run them all.
 */
#ifndef RONDEL_BANDWIDTH_H
#define RONDEL_BANDWIDTH_H

#include "simd.h"

/* Every run of a ring page is a multiple of this, and no shorter than READ_AHEAD. */
#define READ_STEP 512
#define READ_AHEAD 2048
#define READ_VARIANTS 6

#define READ_INLINE static inline __attribute__((always_inline))

READ_INLINE uint64_t fold_words(vi x)
{
    int32_t lanes[LANES];
    uint64_t words[LANES / 2], all = 0;
    vi_store(lanes, x);
    memcpy(words, lanes, sizeof words);
    for (int i = 0; i < LANES / 2; i++)
        all ^= words[i];
    return all;
}

READ_INLINE void fetch_lines(const char *at, int bytes)
{
#pragma GCC unroll 8
    for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch(at + i, 0, 2);
}

/* `sums` accumulators, at most eight, so that no load waits for the one before. */
READ_INLINE uint64_t read_vectors(const char *at, int64_t bytes, const char *ahead, int sums, int prefetch)
{
    const int width = 4 * LANES;
    vi sum[8];
#pragma GCC unroll 8
    for (int j = 0; j < sums; j++)
        sum[j] = vi_zero();
    for (int64_t i = 0; i < bytes; i += sums * width) {
        if (prefetch)
            fetch_lines(ahead + i, sums * width);
#pragma GCC unroll 8
        for (int j = 0; j < sums; j++)
            sum[j] = vi_xor(sum[j], vi_load((const int32_t *)(at + i + j * width)));
    }
#pragma GCC unroll 8
    for (int j = 1; j < sums; j++)
        sum[0] = vi_xor(sum[0], sum[j]);
    return fold_words(sum[0]);
}

/* Plain words, as the compiler likes it. */
READ_INLINE uint64_t read_words(const char *at, int64_t bytes, const char *ahead, int prefetch)
{
    uint64_t sum[8] = {0}, word;
    for (int64_t i = 0; i < bytes; i += 64) {
        if (prefetch)
            fetch_lines(ahead + i, 64);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            memcpy(&word, at + i + 8 * j, 8);
            sum[j] ^= word;
        }
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

/* One run; variants 3 to 5 are 0 to 2 with software prefetch, at last into the run that is read next. */
static uint64_t read_run(const char *at, int64_t bytes, const char *next, int variant)
{
    const int64_t most = bytes - READ_AHEAD;
    switch (variant) {
    case 0:
        return read_vectors(at, bytes, at, 4, 0);
    case 1:
        return read_vectors(at, bytes, at, 8, 0);
    case 2:
        return read_words(at, bytes, at, 0);
    case 3:
        return read_vectors(at, most, at + READ_AHEAD, 4, 1) ^ read_vectors(at + most, READ_AHEAD, next, 4, 1);
    case 4:
        return read_vectors(at, most, at + READ_AHEAD, 8, 1) ^ read_vectors(at + most, READ_AHEAD, next, 8, 1);
    default:
        return read_words(at, most, at + READ_AHEAD, 1) ^ read_words(at + most, READ_AHEAD, next, 1);
    }
}

#endif
