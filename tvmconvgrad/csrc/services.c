/* What a compiled kernel asks of its surroundings: threads (threads.c) and memory (memory.c).
 *
 * Linked into every kernel's library, which then needs nothing but libc. In a process with several libraries, the
 * services of the first one serve all (tvmconvgrad_use): one pool of threads and one store of memory. A bundle of kernels
 * has services of its own, and its calls an arena (deploy/call.c).
 */
#define _GNU_SOURCE /* sched_getcpu and CPU_CLR */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "floating_point.c"
#include "memory.c"
#include "threads.c"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    int (*launch)(Task run, void *data, int num_task);
    void *(*allocate)(int device_type, int device_id, uint64_t bytes, int code, int bits);
    int (*release)(int device_type, int device_id, void *memory);
    void (*launch_by)(const Launcher *launcher, int threads);
} Services;

/* ---- fork: the child has none of the workers ---- */

static void before_fork(void) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_lock(&store_mutex);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&store_mutex);
    pthread_mutex_unlock(&mutex);
}

static void after_fork_in_child(void) {
    static const pthread_mutex_t new_mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t new_cond = PTHREAD_COND_INITIALIZER;
    mutex = store_mutex = new_mutex;
    posted = new_cond;
    job = NULL;
    sleepers = workers = 0;
    memset(looking, 0, sizeof looking);
}

/* ---- what the loader calls ---- */

/* The pointers that TVM's code calls through; a kernel without parallel loops or memory lacks some. */
extern int (*__TVMBackendParallelLaunch)(Task, void *, int) __attribute__((weak));
extern void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) __attribute__((weak));
extern int (*__TVMBackendFreeWorkspace)(int, int, void *) __attribute__((weak));

static const Services own = {launch, allocate, release, launch_by};
static const Services *used = &own;

EXPORT const Services *tvmconvgrad_services(void) { return &own; }

EXPORT void tvmconvgrad_use(const Services *services) {
    used = services;
    if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = services->launch;
    if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = services->allocate;
    if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = services->release;
}

/* A library that nobody gives other services uses its own. Forks are noted from the beginning: one that is under way
 * while the first call is made would not see it. */
__attribute__((constructor)) static void begin(void) {
    tvmconvgrad_use(&own);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* From the next call on; of this library's services. */
EXPORT void tvmconvgrad_set_threads(int count) { __atomic_store_n(&threads, count, __ATOMIC_RELAXED); }
