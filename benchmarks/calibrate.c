/* What one core does in a cycle. calibrate.py compiles and runs it: calibrate L1_BYTES L2_BYTES FAR_BYTES.

   A line is a name and a number, all of whole vectors: FMAs that start in a cycle; bf16 dot-product instructions that
   start in the time of one FMA, where the CPU has them; cycles from one FMA to the next that adds to its sum; and bytes
   that are read in a cycle from buffers of these sizes. A cycle is the time of an addition that waits for the one
   before. The shortest of several runs counts, and the median of reads. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

typedef float vector __attribute__((vector_size(4 * LANES)));
enum { SUMS = LANES == 16 ? 20 : 12, RUNS = 9, BLOCK = 8 * 4 * LANES, PART = 4 << 20, TIMES = 1000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

static void keep(vector value) {
    static volatile float kept;
    kept = value[0];
}

/* Seconds of one cycle. */
static double cycle(void) {
    const long steps = 4000000;
    double best = 1;
    for (int run = 0; run < RUNS; run++) {
        uint64_t sum = 0, one = 1;
        double begin = now();
        for (long i = 0; i < steps; i += 8)
            for (int j = 0; j < 8; j++) {
#if defined(__x86_64__)
                __asm__ volatile("add %1, %0" : "+r"(sum) : "r"(one));
#else
                __asm__ volatile("add %0, %0, %1" : "+r"(sum) : "r"(one));
#endif
            }
        double seconds = (now() - begin) / steps;
        best = seconds < best ? seconds : best;
    }
    return best;
}

/* Seconds of an FMA, or of a bf16 dot-product instruction, of so many sums in turn. */
#define FMAS(NAME, COUNT, ADD)                                                     \
    static double NAME(void) {                                                     \
        const long steps = 400000;                                                 \
        double best = 1;                                                           \
        for (int run = 0; run < RUNS; run++) {                                     \
            vector sums[COUNT], by = {0}, plus = {0};                              \
            memset(sums, 0, sizeof sums);                                          \
            __asm__ volatile("" : "+m"(by), "+m"(plus));                           \
            double begin = now();                                                  \
            for (long i = 0; i < steps; i++) {                                     \
                _Pragma("GCC unroll 32") for (int j = 0; j < COUNT; j++)           \
                    ADD(sums[j]);                                                  \
            }                                                                      \
            double seconds = (now() - begin) / steps / COUNT;                      \
            for (int j = 0; j < COUNT; j++) keep(sums[j]);                         \
            best = seconds < best ? seconds : best;                                \
        }                                                                          \
        return best;                                                               \
    }
#define FMA(SUM) SUM = SUM * by + plus
FMAS(chained, 1, FMA)
FMAS(in_turn, SUMS, FMA)
#ifdef __AVX512BF16__
#define DOT(SUM) SUM = (vector)_mm512_dpbf16_ps((__m512)SUM, (__m512bh)by, (__m512bh)plus)
FMAS(dots, SUMS, DOT)
#endif

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Seconds to read a byte of a buffer again and again: the median over parts of it that take less than a time slice. */
static double reading(size_t bytes) {
    size_t part = bytes < PART ? bytes / BLOCK * BLOCK : PART, parts = bytes / part, passes = 1 + TIMES / parts, n = 0;
    char *data = aligned_alloc(64, parts * part);
    double *times = malloc(passes * parts * sizeof(double));
    vector sums[8];
    if (!data || !times) exit(1);
    memset(data, 0, parts * part);
    memset(sums, 0, sizeof sums);
    for (size_t pass = 0; pass < passes; pass++)
        for (char *at = data; at < data + parts * part; at += part) {
            double begin = now();
            for (const vector *v = (const vector *)at; (const char *)v < at + part; v += 8)
                _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) sums[j] += v[j];
            __asm__ volatile("" : : : "memory");
            times[n++] = now() - begin;
        }
    for (int j = 0; j < 8; j++) keep(sums[j]);
    qsort(times, n, sizeof(double), ascending);
    double median = times[n / 2] / part;
    free(data);
    free(times);
    return median;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    double unit = cycle();
    printf("fma_units %.3f\n", unit / in_turn());
#ifdef __AVX512BF16__
    printf("dots_per_fma %.2f\n", in_turn() / dots());
#endif
    printf("fma_latency %.3f\n", chained() / unit);
    printf("l1_bytes_per_cycle %.2f\n", unit / reading(strtoull(words[1], 0, 10)));
    printf("l2_bytes_per_cycle %.2f\n", unit / reading(strtoull(words[2], 0, 10)));
    printf("memory_bytes_per_cycle %.3f\n", unit / reading(strtoull(words[3], 0, 10)));
    return 0;
}
