/* What the native tests share: counting faults, drawing numbers, buffers at awkward addresses. */
#ifndef RONDEL_CHECKS_H
#define RONDEL_CHECKS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tiles.h"

#if defined(__AVX512BW__) || (defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__)
#define FUSED 1
#else
#define FUSED 0
#endif

static int faults;
static long checks;

static void expect(int good, const char *what, double got, double want)
{
    static const char *last;
    checks++;
    if (good)
        return;
    faults++;
    if (what != last)
        fprintf(stderr, "FAULT %s: got %.9g, expected %.9g\n", what, got, want);
    last = what;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline void expect_bits(float got, float want, const char *what)
{
    expect(bits_of(got) == bits_of(want) || (got != got && want != want), what, got, want);
}

static int report(void)
{
    printf("%d lanes, %s multiply-add: %ld checks, %d faults\n", LANES, FUSED ? "fused" : "separate", checks,
           faults);
    return faults != 0;
}

static uint32_t draw(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static inline int between(int low, int high) { return low + (int)(draw() % (uint32_t)(high - low + 1)); }

/* A finite float of any magnitude whose products and sums stay finite; zeros of both signs among them. */
static float number(void)
{
    switch (draw() % 16) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return float_of(draw() & 0x807fffffu); /* denormal */
    default: return float_of((draw() & 0x807fffffu) | ((uint32_t)between(127 - 40, 127 + 40) << 23));
    }
}

/* a · b + c as the tier rounds it. Nothing fuses by itself: -ffp-contract=off. */
static inline float fused(float a, float b, float c) { return FUSED ? fmaf(a, b, c) : a * b + c; }

#define GUARD 0x55

#endif
