/* Calls the kernels of a bundle with arguments at random, right and wrong: the status must be what the header says of
 * them, a right call's result zero, as its inputs are, and nothing around a tensor or a workspace is written.
 *
 *     fuzz_call SEED CALLS
 *
 * Compiled like check_kernels.c.
 */
#include HEADER

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOINED(one, other) one##_##other
#define JOIN(one, other) JOINED(one, other)
#define THE(word) JOIN(PREFIX, word)
#define A(word) JOIN(CAPS, word)
enum { GUARD = 256, FILL = 0xAB };

typedef THE(kernel) Kernel;
static uint64_t state;

static unsigned below(unsigned most) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % most;
}

static void fail(const Kernel *kernel, const char *what) {
    fprintf(stderr, "%s: %s\n", kernel ? kernel->name : "test", what);
    exit(1);
}

/* Memory that begins so many bytes behind an aligned address, between guards. */
static char *make(size_t bytes, size_t offset) {
    void *memory = NULL;
    if (posix_memalign(&memory, GUARD, bytes + offset + 2 * GUARD)) fail(NULL, "no memory");
    memset(memory, FILL, bytes + offset + 2 * GUARD);
    return (char *)memory + GUARD + offset;
}

static void drop(const Kernel *kernel, char *data, size_t bytes, size_t offset) {
    for (size_t i = 0; i < GUARD + offset; ++i)
        if ((unsigned char)data[-1 - (long)i] != FILL) fail(kernel, "wrote before its memory");
    for (size_t i = 0; i < GUARD; ++i)
        if ((unsigned char)data[bytes + i] != FILL) fail(kernel, "wrote behind its memory");
    free(data - GUARD - offset);
}

static int overlap(const char *one, size_t bytes, const char *other, size_t others) {
    return one < other + others && other < one + bytes;
}

static int expected(const char *data[3], const size_t bytes[3], unsigned element, const char *workspace, size_t size, size_t least) {
    for (int i = 0; i < 3; ++i) {
        if (!data[i]) return A(NULL_POINTER);
        if ((uintptr_t)data[i] % element) return A(MISALIGNED);
    }
    if (overlap(data[0], bytes[0], data[2], bytes[2]) || overlap(data[1], bytes[1], data[2], bytes[2])) return A(OVERLAP);
    if (workspace && (uintptr_t)workspace % A(WORKSPACE_ALIGNMENT)) return A(MISALIGNED);
    return workspace && size < least ? A(WORKSPACE_TOO_SMALL) : A(OK);
}

/* One call, on zeros; the status that it must have, or -1 where it would read behind its memory. */
static int once(const Kernel *kernel, unsigned element) {
    const size_t bytes[3] = {kernel->first_bytes, kernel->second_bytes, kernel->result_bytes};
    size_t offsets[4], size = 0;
    char *memory[3], *workspace = NULL;
    const char *data[3];
    for (int i = 0; i < 3; ++i) {
        offsets[i] = below(4) ? element * below(16) : below(64);
        memory[i] = make(bytes[i], offsets[i]);
        data[i] = below(8) ? memory[i] : NULL;
        if (i < 2) memset(memory[i], 0, bytes[i]);
    }
    int one = (int)below(3), other = (int)below(3), shared = !below(4);
    if (shared) data[one] = memory[other]; /* two tensors, or the result and an input, in one place */
    offsets[3] = below(3) ? 0 : below(128);
    if (below(2)) {
        size_t least = kernel->workspace_bytes;
        size = below(3) ? least + kernel->workspace_bytes_per_thread * below(5) + below(9) : below((unsigned)least + 1);
        workspace = make(size, offsets[3]);
    }
    size_t told = !workspace && below(2) ? SIZE_MAX : size; /* without a workspace its size means nothing */
    int wanted = expected(data, bytes, element, workspace, size, kernel->workspace_bytes);
    if (wanted == A(OK) && shared && bytes[one] > bytes[other]) wanted = -1;
    if (wanted >= 0) {
        int status = kernel->run(data[0], data[1], (void *)data[2], NULL, workspace, told);
        if (status != wanted) {
            fprintf(stderr, "status %d (%s), expected %d: ", status, THE(status_text)(status), wanted);
            fail(kernel, "status");
        }
        for (size_t i = 0; status == A(OK) && i < bytes[2]; ++i)
            if (data[2][i]) fail(kernel, "the gradient of zeros is not zero");
    }
    for (int i = 0; i < 3; ++i) drop(kernel, memory[i], bytes[i], offsets[i]);
    if (workspace) drop(kernel, workspace, size, offsets[3]);
    return wanted;
}

int main(int count, char **words) {
    static const int threads[] = {0, -1, 1, 2, 4096, 4097, INT_MAX, INT_MIN};
    int seen[64] = {0};
    if (count != 3) fail(NULL, "expected SEED CALLS");
    state = strtoull(words[1], NULL, 10);
    for (long call = 0; call < atol(words[2]); ++call) {
        size_t place = below(4) ? below(A(KERNELS)) : A(KERNELS) + below(1000) * (size_t)UINT_MAX;
        const Kernel *kernel = THE(get_kernel)(place);
        if ((kernel == NULL) != (place >= A(KERNELS))) fail(kernel, "a kernel that there is not");
        int wanted = threads[below(sizeof threads / sizeof *threads)], valid = wanted >= 1 && wanted <= 4096;
        if (!below(50) && THE(set_threads)(wanted) != (valid ? A(OK) : A(BAD_THREADS))) fail(NULL, "threads");
        if (!THE(status_text)((int)below(UINT_MAX) - INT_MAX)) fail(NULL, "no words");
        if (THE(get_threads)() > 2) THE(set_threads)(2);
        if (!kernel) continue;
        int status = once(kernel, strstr(kernel->name, "16") ? 2 : 4);
        if (status >= 0) ++seen[status];
    }
    for (int i = 0; i <= A(WORKSPACE_TOO_SMALL); ++i)
        if (!seen[i]) fail(NULL, "a status that never came: nothing was tried");
    puts("ok");
    return 0;
}
