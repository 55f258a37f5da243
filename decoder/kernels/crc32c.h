/* CRC-32C (Castagnoli polynomial, as in RFC 3720): what stored tokens and page headers are checked with.
 *
 * By instruction where the tier has one, eight bytes in three cycles; by eight tables of 256 words elsewhere, which
 * crc32c_prepare fills once. The result is the same everywhere.
 */
#ifndef RONDEL_CRC32C_H
#define RONDEL_CRC32C_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#define CRC_EIGHT(crc, word) ((uint32_t)_mm_crc32_u64(crc, word))
#define CRC_ONE(crc, byte) _mm_crc32_u8(crc, byte)
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC_EIGHT(crc, word) __crc32cd(crc, word)
#define CRC_ONE(crc, byte) __crc32cb(crc, byte)
#else
static uint32_t crc_table[8][256];
#define CRC_ONE(crc, byte) (crc_table[0][((crc) ^ (byte)) & 255] ^ (crc) >> 8)
static inline uint32_t crc_eight(uint32_t crc, uint64_t word)
{
    uint32_t all = 0;
    word ^= crc;
    for (int i = 0; i < 8; i++)
        all ^= crc_table[7 - i][word >> 8 * i & 255];
    return all;
}
#define CRC_EIGHT(crc, word) crc_eight(crc, word)
#define CRC_TABLES
#endif

/* Before the first use, from one thread. */
static inline void crc32c_prepare(void)
{
#ifdef CRC_TABLES
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (int i = 1; i < 8; i++)
        for (int byte = 0; byte < 256; byte++)
            crc_table[i][byte] = crc_table[i - 1][byte] >> 8 ^ crc_table[0][crc_table[i - 1][byte] & 255];
#endif
}

/* Continues `crc`, which is 0 at the start. */
static inline uint32_t crc32c(uint32_t crc, const void *data, int64_t bytes)
{
    const uint8_t *at = (const uint8_t *)data;
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = CRC_EIGHT(crc, word);
    }
    for (; bytes > 0; bytes--, at++)
        crc = CRC_ONE(crc, *at);
    return ~crc;
}

#endif
