/* Calls whose parts run on the threads of an OpenMP runtime that the process has: PyTorch's, say, whose own threads look for
 * work on the CPUs that a second pool would need.
 *
 * Nothing is linked: the runtime's functions are handed over. GOMP_parallel is GCC's, and LLVM's and Intel's have it too.
 * runtime/openmp.py has the same structure.
 */

typedef struct {
    void (*parallel)(void (*region)(void *), void *data, unsigned threads, unsigned flags); /* GOMP_parallel; NULL: none */
    int (*place)(void);   /* omp_get_thread_num */
    int (*size)(void);    /* omp_get_num_threads */
    int (*is_inside)(void); /* omp_in_parallel */
} OpenMP;

typedef struct { const OpenMP *openmp; void (*work)(int part, void *data); void *data; int parts; } Region;

/* A team may be smaller than was asked for. */
static void run_parts(void *data) {
    const Region *region = data;
    int size = region->openmp->size();
    for (int part = region->openmp->place(); part < region->parts; part += size) region->work(part, region->data);
}

/* Inside of a parallel region the other threads have work of their own. */
static void launch_openmp(void (*work)(int part, void *data), void *data, int parts, void *context) {
    const OpenMP *openmp = context;
    Region region = {openmp, work, data, parts};
    if (!openmp->is_inside()) openmp->parallel(run_parts, &region, (unsigned)parts, 0);
}

/* A kernel's function, on at most so many of the runtime's threads; on the library's own where the runtime has none. */
static int run_by_openmp(
    const OpenMP *openmp, int count, Run run, const void *first, const void *second, void *result
) {
    const Launcher launcher = {launch_openmp, (void *)openmp};
    if (openmp->parallel) used->launch_by(&launcher, count);
    int status = run(first, second, result, NULL, 0);
    used->launch_by(NULL, 0);
    return status;
}
