/* Runs a kernel on the threads of an OpenMP runtime that the process has loaded, such as PyTorch's: these spin after each
 * parallel region, and a second pool of threads would compete with them for the CPUs.
 *
 * The library is not linked with OpenMP: the caller passes the addresses of the runtime's functions. GOMP_parallel is GCC's
 * entry point; the runtimes of LLVM and Intel export it, too. runtime/openmp.py mirrors the struct.
 */

typedef struct {
    void (*parallel)(void (*region)(void *), void *data, unsigned threads, unsigned flags); /* GOMP_parallel; NULL: none */
    int (*thread_num)(void);  /* omp_get_thread_num */
    int (*num_threads)(void); /* omp_get_num_threads */
    int (*in_parallel)(void); /* omp_in_parallel */
} OpenMP;

typedef struct { const OpenMP *openmp; void (*work)(int part, void *data); void *data; int parts; } Region;

/* One thread's share of the parts: the team may have fewer threads than there are parts. */
static void run_parts(void *data) {
    const Region *region = data;
    int threads = region->openmp->num_threads();
    for (int part = region->openmp->thread_num(); part < region->parts; part += threads) region->work(part, region->data);
}

/* Does nothing inside of a parallel region, whose other threads are busy: the calling thread then runs all parts. */
static void launch_openmp(void (*work)(int part, void *data), void *data, int parts, void *context) {
    const OpenMP *openmp = context;
    Region region = {openmp, work, data, parts};
    if (!openmp->in_parallel()) openmp->parallel(run_parts, &region, (unsigned)parts, 0);
}

/* Run a kernel on at most `count` threads of the runtime; without `parallel`, on the library's own threads. */
static int run_by_openmp(
    const OpenMP *openmp, int count, Run run, const void *first, const void *second, void *result, void *bias
) {
    const Launcher launcher = {launch_openmp, (void *)openmp};
    if (openmp->parallel) used->launch_by(&launcher, count);
    int status = run(first, second, result, bias, NULL, 0);
    used->launch_by(NULL, 0);
    return status;
}
