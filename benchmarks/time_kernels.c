/* Times the kernels of a bundle of f32: reads lines "PLACE LOOPS", writes the seconds of a call, as a mean over LOOPS.
 *
 * Compiled with -DHEADER='"name.h"' -DPREFIX=name. The first word is the number of threads.
 */
#define _DEFAULT_SOURCE /* madvise */
#include HEADER

#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define JOINED(one, other) one##_##other
#define JOIN(one, other) JOINED(one, other)
#define THE(word) JOIN(PREFIX, word)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* In huge pages where it is large: NumPy asks for them, too. */
static float *tensor(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes)) exit(2);
    if (bytes >= (size_t)1 << 22) {
        uintptr_t begin = ((uintptr_t)memory + 4095) / 4096 * 4096;
        madvise((void *)begin, bytes - (begin - (uintptr_t)memory), MADV_HUGEPAGE);
    }
    float *values = memory;
    for (size_t i = 0; i < bytes / sizeof(float); ++i) values[i] = (float)(i % 5) - 2;
    return values;
}

int main(int count, char **words) {
    unsigned long place, loops, last = (unsigned long)-1;
    float *first = NULL, *second = NULL, *result = NULL;
    if (count != 2 || THE(set_threads)(atoi(words[1]))) return 2;
    while (scanf("%lu %lu", &place, &loops) == 2) {
        const THE(kernel) *kernel = THE(get_kernel)(place);
        if (place != last) {
            free(first), free(second), free(result);
            first = tensor(kernel->first_bytes);
            second = tensor(kernel->second_bytes);
            result = tensor(kernel->result_bytes);
            last = place;
        }
        double begin = now();
        for (unsigned long i = 0; i < loops; ++i)
            if (kernel->run(first, second, result, NULL, NULL, 0)) return 3;
        printf("%.9f\n", (now() - begin) / (double)loops);
        fflush(stdout);
    }
    return 0;
}
