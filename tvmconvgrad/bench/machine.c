/* What a machine can do at most: FMAs in registers, and a sum of streams from memory.
 *
 *     machine THREADS        prints GFLOP/s and GB/s, the best of several runs
 *
 * The vectors are as wide as the CPU's that the compiler was told to compile for.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__AVX512F__)
#define BYTES 64
#define CHAINS 16       /* of 32 registers */
#elif defined(__AVX__)
#define BYTES 32
#define CHAINS 12       /* of 16 registers */
#elif defined(__aarch64__)
#define BYTES 16
#define CHAINS 24       /* of 32 registers; four units and a latency of four need 16 */
#else
#define BYTES 16
#define CHAINS 12
#endif

#define STEPS 4000000L
#define LANES (BYTES / 4)
#define STREAM (256L << 20)      /* bytes of the three arrays of all threads: more than caches hold */
#define FMA_RUNS 60             /* half a second: some of them undisturbed */
#define STREAM_RUNS 10

typedef float Vector __attribute__((vector_size(BYTES)));

static int threads;
static long elements;           /* of one array of one thread */
static float **arrays;          /* three for each thread */
static pthread_barrier_t barrier;
static volatile float factor = 0.999f, summand = 0.001f;
static volatile float sink;
static double best_rate, best_bandwidth;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void multiply_and_add(void) {
    Vector sums[CHAINS], a = {0}, b = {0};
    a += factor;
    b += summand;
    for (int i = 0; i < CHAINS; i++)
        sums[i] = b + (float)i;
    for (long step = 0; step < STEPS; step++)
#pragma GCC unroll 32
        for (int i = 0; i < CHAINS; i++)
            sums[i] = sums[i] * a + b;
    for (int i = 1; i < CHAINS; i++)
        sums[0] += sums[i];
    sink = sums[0][0];
}

static void add_streams(int thread) {
    float *restrict to = arrays[3 * thread];
    const float *one = arrays[3 * thread + 1], *two = arrays[3 * thread + 2];
    const float a = factor;
    for (long i = 0; i < elements; i++)
        to[i] = one[i] + a * two[i];
}

static void *work(void *number) {
    int thread = (int)(long)number;
    for (int i = 0; i < 3; i++)
        for (long j = 0; j < elements; j++)
            arrays[3 * thread + i][j] = (float)i;
    for (int run = 0; run < FMA_RUNS + STREAM_RUNS; run++) {
        pthread_barrier_wait(&barrier);
        double begin = now();
        if (run < FMA_RUNS)
            multiply_and_add();
        else
            add_streams(thread);
        pthread_barrier_wait(&barrier);
        double seconds = now() - begin;
        if (thread == 0) {
            double rate = 2.0 * LANES * CHAINS * STEPS * threads / seconds / 1e9;
            double bandwidth = 3.0 * sizeof(float) * (double)elements * threads / seconds / 1e9;
            if (run < FMA_RUNS && rate > best_rate)
                best_rate = rate;
            if (run >= FMA_RUNS && bandwidth > best_bandwidth)
                best_bandwidth = bandwidth;
        }
    }
    return NULL;
}

int main(int count, char **words) {
    threads = count > 1 ? atoi(words[1]) : 1;
    elements = STREAM / 3 / (long)sizeof(float) / threads / LANES * LANES;
    arrays = malloc(3 * sizeof *arrays * (size_t)threads);
    pthread_t *others = malloc(sizeof *others * (size_t)threads);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < 3 * threads; i++)
        if (posix_memalign((void **)&arrays[i], 64, sizeof(float) * (size_t)elements))
            return 1;
    for (long i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, work, (void *)i))
            return 1;
    work((void *)0);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    printf("%.3f %.3f\n", best_rate, best_bandwidth);
    return 0;
}
