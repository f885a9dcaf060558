/* A bundle's kernels by C's rules: addresses in, a status out. The generated file includes this after services.c and
 * calling.c; it names the statuses, and defines find_target. */

#define MOST_THREADS 4096

/* `workspace` is for the calling thread, `each` for every other one. */
typedef struct {
    const Function *functions; /* one for each target */
    Layout layout;
    uint64_t workspace, each;
} Kernel;

/* The place of the best target whose features the CPU has, or -1. */
static int find_target(void);

/* The same, asked for once; threads that come at the same time find the same. */
static int target(void) {
    static int known; /* 0: not yet, else 2 more */
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!found) {
        found = find_target() + 2;
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found - 2;
}

static int check_tensors(const Kernel *kernel, void *const data[TENSORS]) {
    for (int i = 0; i < kernel->layout.count; ++i) {
        if (!data[i]) return NULL_POINTER;
        if ((uintptr_t)data[i] % (kernel->layout.bits[i] / 8)) return MISALIGNED;
    }
    return overlaps_result(&kernel->layout, data) ? OVERLAP : OK;
}

static int check_workspace(const Kernel *kernel, const void *workspace, size_t bytes) {
    if (workspace && (uintptr_t)workspace % ALIGNMENT) return MISALIGNED;
    return workspace && bytes < kernel->workspace ? WORKSPACE_TOO_SMALL : OK;
}

/* How many threads there is room for, of those that are wanted. */
static int threads_within(const Kernel *kernel, uint64_t bytes, int wanted) {
    uint64_t more = kernel->each ? (bytes - kernel->workspace) / kernel->each : UINT64_MAX;
    return more < (uint64_t)(wanted - 1) ? (int)more + 1 : wanted;
}

static int run(const Kernel *kernel, Function function, void *const data[TENSORS], const Arena *mine) {
    arena = mine;
    if (mine->memory) stack = (Stack){mine->memory, mine->memory + mine->first, NULL};
    int failed = invoke(function, &kernel->layout, data);
    arena = NULL;
    stack = (Stack){NULL, NULL, NULL};
    return failed ? FAILED : OK;
}

static int call(
    const Kernel *kernel, const void *first, const void *second, void *result, void *bias, void *workspace, size_t bytes
) {
    void *const data[TENSORS] = {(void *)first, (void *)second, result, bias};
    void *own = NULL;
    int place = target(), count = threads_of_call();
    if (place < 0) return UNSUPPORTED_CPU;
    int status = check_tensors(kernel, data);
    if (status == OK) status = check_workspace(kernel, workspace, bytes);
    if (status != OK) return status;
    if (workspace) {
        count = threads_within(kernel, bytes, count);
    } else if (kernel->workspace) {
        own = workspace = allocate(CPU, 0, kernel->workspace + kernel->each * (uint64_t)(count - 1), 0, 8);
        if (!own) return NO_MEMORY;
    }
    Arena mine = {kernel->workspace ? workspace : NULL, kernel->workspace, kernel->each, count};
    status = run(kernel, kernel->functions[place], data, &mine);
    if (own) release(CPU, 0, own);
    return status;
}

static int set_threads(int count) {
    if (count < 1 || count > MOST_THREADS) return BAD_THREADS;
    __atomic_store_n(&threads, count, __ATOMIC_RELAXED);
    return OK;
}

static void set_launcher(Launch launch, void *context) {
    pthread_mutex_lock(&mutex);
    __atomic_store_n(&given.launch, launch, __ATOMIC_RELAXED);
    given.context = context;
    pthread_mutex_unlock(&mutex);
}
