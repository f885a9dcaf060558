/* A bundle's kernels by C's rules: addresses in, a status out. The generated file includes this after services.c; it
 * names the statuses, and defines find_target. */

#define MOST_THREADS 4096

/* DLTensor of DLPack; TVMFFIAny and the packed functions of tvm/ffi/c_api.h, as far as pointers go. */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    const int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;
typedef struct { int32_t type_index; uint32_t padding; void *pointer; } Any;
typedef int (*Function)(void *self, const Any *arguments, int32_t count, Any *result);
enum { TENSOR_POINTER = 7, CPU = 1, TENSORS = 3 };

/* Of the two inputs and the result; `workspace` is for the calling thread, `each` for every other one. */
typedef struct {
    const Function *functions; /* one for each target */
    uint8_t code, bits;
    int32_t ndim[TENSORS];
    const int64_t *shape[TENSORS];
    uint64_t bytes[TENSORS];
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

static int overlap(const void *one, uint64_t bytes, const void *other, uint64_t other_bytes) {
    return (uintptr_t)one < (uintptr_t)other + other_bytes && (uintptr_t)other < (uintptr_t)one + bytes;
}

static int check_tensors(const Kernel *kernel, void *const data[TENSORS]) {
    for (int i = 0; i < TENSORS; ++i) {
        if (!data[i]) return NULL_POINTER;
        if ((uintptr_t)data[i] % (kernel->bits / 8)) return MISALIGNED;
    }
    for (int i = 0; i < 2; ++i)
        if (overlap(data[i], kernel->bytes[i], data[2], kernel->bytes[2])) return OVERLAP;
    return OK;
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
    Tensor tensors[TENSORS];
    Any arguments[TENSORS], answer = {0, 0, NULL};
    for (int i = 0; i < TENSORS; ++i) {
        tensors[i] = (Tensor){data[i], CPU, 0, kernel->ndim[i], kernel->code, kernel->bits, 1, kernel->shape[i], NULL, 0};
        arguments[i] = (Any){TENSOR_POINTER, 0, &tensors[i]};
    }
    arena = mine;
    if (mine->memory) stack = (Stack){mine->memory, mine->memory + mine->first, NULL};
    int failed = function(NULL, arguments, TENSORS, &answer);
    arena = NULL;
    stack = (Stack){NULL, NULL, NULL};
    return failed ? FAILED : OK;
}

static int call(const Kernel *kernel, const void *first, const void *second, void *result, void *workspace, size_t bytes) {
    void *const data[TENSORS] = {(void *)first, (void *)second, result};
    void *own = NULL;
    int place = target(), count = __atomic_load_n(&threads, __ATOMIC_RELAXED);
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
