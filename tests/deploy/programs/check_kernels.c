/* Checks every kernel of a bundle against results that lie in files, and its workspace against guards.
 *
 *     check_kernels FOLDER THREADS CALLERS
 *
 * FOLDER has NAME.first, NAME.second and NAME.result for each kernel; CALLERS threads check all kernels at once. Compiled
 * with -DHEADER='"name.h"' -DPREFIX=name -DCAPS=NAME; with -fopenmp, too, calls run on OpenMP's threads.
 */
#include HEADER

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOINED(one, other) one##_##other
#define JOIN(one, other) JOINED(one, other)
#define THE(word) JOIN(PREFIX, word)
#define A(word) JOIN(CAPS, word)
#define GUARD 64
#define FILL 0xAB

typedef THE(kernel) Kernel;
typedef struct { char *memory, *data; size_t bytes; } Guarded;

static void fail(const char *name, const char *what) {
    fprintf(stderr, "%s: %s\n", name, what);
    exit(1);
}

/* Memory aligned as a workspace must be, plus an offset, with guards on both sides. */
static Guarded make(size_t bytes, size_t offset) {
    Guarded made = {NULL, NULL, bytes};
    void *memory = NULL;
    if (posix_memalign(&memory, GUARD, bytes + offset + 2 * GUARD)) fail("test", "no memory");
    memset(memory, FILL, bytes + offset + 2 * GUARD);
    made.memory = (char *)memory;
    made.data = made.memory + GUARD + offset;
    return made;
}

static void drop(const char *name, Guarded *made) {
    size_t i;
    for (i = 0; made->memory + i < made->data; ++i)
        if ((unsigned char)made->memory[i] != FILL) fail(name, "wrote before its memory");
    for (i = 0; i < GUARD; ++i)
        if ((unsigned char)made->data[made->bytes + i] != FILL) fail(name, "wrote behind its memory");
    free(made->memory);
}

static void read_file(const char *folder, const char *name, const char *end, Guarded *into) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, end);
    FILE *file = fopen(path, "rb");
    if (!file || fread(into->data, 1, into->bytes, file) != into->bytes || fgetc(file) != EOF) fail(path, "not read");
    fclose(file);
}

static void expect(const char *name, int status, int expected) {
    if (status != expected) fail(name, THE(status_text)(status));
}

static void check(const char *folder, const Kernel *kernel, int threads) {
    const size_t offset = 4; /* aligned to no more than elements */
    Guarded first = make(kernel->first_bytes, offset), second = make(kernel->second_bytes, offset);
    Guarded wanted = make(kernel->result_bytes, 0);
    read_file(folder, kernel->name, "first", &first);
    read_file(folder, kernel->name, "second", &second);
    read_file(folder, kernel->name, "result", &wanted);
    const size_t least = kernel->workspace_bytes, more = kernel->workspace_bytes_per_thread;
    const size_t sizes[] = {0, least, least + more, least + more * (size_t)(threads - 1), least + more * 100};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        Guarded result = make(kernel->result_bytes, offset), workspace = make(sizes[i], 0);
        void *place = i ? workspace.data : NULL;
        expect(kernel->name, kernel->run(first.data, second.data, result.data, NULL, place, sizes[i]), A(OK));
        if (memcmp(result.data, wanted.data, result.bytes)) fail(kernel->name, "wrong result");
        drop(kernel->name, &result);
        drop(kernel->name, &workspace);
    }
    drop(kernel->name, &first);
    drop(kernel->name, &second);
    drop(kernel->name, &wanted);
}

static const char *folder;
static int threads;

static void *check_all(void *unused) {
    for (size_t place = 0; place < A(KERNELS); ++place) check(folder, THE(get_kernel)(place), threads);
    return unused;
}

#ifdef _OPENMP
static int launched;

static void by_openmp(void (*work)(int part, void *data), void *data, int parts, void *context) {
    __atomic_add_fetch((int *)context, parts, __ATOMIC_RELAXED);
    #pragma omp parallel for num_threads(parts)
    for (int part = 0; part < parts; ++part) work(part, data);
}
#endif

int main(int count, char **words) {
    pthread_t callers[64];
    if (count != 4) fail(words[0], "expected FOLDER THREADS CALLERS");
    folder = words[1];
    threads = atoi(words[2]);
    expect("set_threads", THE(set_threads)(threads), A(OK));
    if (THE(get_threads)() != threads || THE(get_kernel)(A(KERNELS))) fail("test", "threads or number of kernels");
#ifdef _OPENMP
    THE(set_launcher)(by_openmp, &launched);
#endif
    for (int i = 0; i < atoi(words[3]); ++i)
        if (pthread_create(&callers[i], NULL, check_all, NULL)) fail("test", "no thread");
    for (int i = 0; i < atoi(words[3]); ++i) pthread_join(callers[i], NULL);
#ifdef _OPENMP
    if (launched < 2) fail("test", "nothing was launched by OpenMP");
#endif
    printf("%d kernels for %s\n", A(KERNELS), THE(target)());
    return 0;
}
