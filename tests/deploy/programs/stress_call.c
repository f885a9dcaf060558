/* Calls of a made-up kernel by several threads, in workspaces for every number of threads: prints "ok" when each piece
 * of memory was its task's alone, nothing around a workspace was written, and no more threads helped than it is for.
 *
 * WORKSPACE and EACH are what a bundle's header would say of a kernel that allocates the pieces below.
 */
#include "services.c"

enum { OK, NULL_POINTER, MISALIGNED, OVERLAP, WORKSPACE_TOO_SMALL, NO_MEMORY, UNSUPPORTED_CPU, BAD_THREADS, FAILED };

#include "calling.c"

#include "call.c"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CALLERS = 3, ROUNDS = 12, MOST = 6, TASKS = 24, GUARD = 64, FILL = 0xAB };

/* What a kernel's object file would define. */
int (*__TVMBackendParallelLaunch)(Task, void *, int);
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
int (*__TVMBackendFreeWorkspace)(int, int, void *);

static int find_target(void) { return 0; }

typedef struct { int running, most, done; } Work;

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    abort();
}

static unsigned char *piece(uint64_t bytes, int value) {
    unsigned char *memory = __TVMBackendAllocWorkspace(1, 0, bytes, 2, 32);
    if (!memory || (uintptr_t)memory % ALIGNMENT) fail("no piece of memory, or a misaligned one");
    memset(memory, value, bytes);
    return memory;
}

static void drop(unsigned char *memory, uint64_t bytes, int value) {
    for (uint64_t i = 0; i < bytes; ++i)
        if (memory[i] != value) fail("somebody else wrote here");
    if (__TVMBackendFreeWorkspace(1, 0, memory)) fail("not released");
}

static int do_task(int id, Group *group, void *data) {
    Work *work = data;
    (void)group;
    int now = __atomic_add_fetch(&work->running, 1, __ATOMIC_RELAXED), most = __atomic_load_n(&work->most, __ATOMIC_RELAXED);
    while (now > most && !__atomic_compare_exchange_n(&work->most, &most, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    for (int turn = 0; turn < 2; ++turn) {
        unsigned char *one = piece(TASK_ONE, id), *other = piece(TASK_OTHER, id + 1);
        usleep(300); /* others come meanwhile */
        drop(turn ? one : other, turn ? TASK_ONE : TASK_OTHER, turn ? id : id + 1);
        drop(turn ? other : one, turn ? TASK_OTHER : TASK_ONE, turn ? id + 1 : id);
    }
    __atomic_sub_fetch(&work->running, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&work->done, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Writes how many threads ran at once, and how many tasks, to the result. */
static int kernel_function(void *self, const Any *arguments, int32_t count, Any *result) {
    (void)self, (void)count, (void)result;
    Work work = {0, 0, 0};
    unsigned char *one = piece(ONE, 100), *other = piece(OTHER, 101);
    int failed = __TVMBackendParallelLaunch(do_task, &work, TASKS);
    drop(one, ONE, 100);
    drop(other, OTHER, 101);
    int32_t *answer = ((const Tensor *)arguments[2].pointer)->data;
    answer[0] = work.most;
    answer[1] = work.done;
    return failed;
}

static const Function functions[] = {kernel_function};
static const Kernel kernel = {functions, {3, {0, 0, 0}, {32, 32, 32}, {1, 1, 1}, {{2}, {2}, {2}}, {8, 8, 8}}, WORKSPACE, EACH};
static int seen; /* the most threads that ran at once */

static void call_once(int room) {
    int32_t first[2] = {0, 0}, second[2] = {0, 0}, result[2] = {0, 0};
    size_t bytes = WORKSPACE + (size_t)EACH * (size_t)(room - 1);
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, bytes + 2 * GUARD)) fail("no memory");
    memset(memory, FILL, bytes + 2 * GUARD);
    if (call(&kernel, first, second, result, NULL, room ? (char *)memory + GUARD : NULL, room ? bytes : 0) != OK) fail("status");
    for (size_t i = 0; i < GUARD; ++i)
        if (((unsigned char *)memory)[i] != FILL || ((unsigned char *)memory)[GUARD + bytes + i] != FILL) fail("guard");
    free(memory);
    if (result[0] > (room ? room : MOST) || result[1] != TASKS) fail("too many threads, or not all tasks");
    int most = __atomic_load_n(&seen, __ATOMIC_RELAXED);
    while (result[0] > most && !__atomic_compare_exchange_n(&seen, &most, result[0], 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static void *call_often(void *unused) {
    for (int round = 0; round < ROUNDS; ++round) call_once(round % (MOST + 1));
    return unused;
}

typedef struct { void (*work)(int, void *); void *data; int part; } Part;

static void *run_part(void *given_part) {
    Part *part = given_part;
    part->work(part->part, part->data);
    return NULL;
}

/* Each part on a thread of its own, but for the first, which the caller is to do. */
static void by_new_threads(void (*work)(int, void *), void *data, int parts, void *context) {
    pthread_t helpers[MOST];
    Part all[MOST];
    if (context != &seen || parts > MOST) fail("context, or too many parts");
    for (int i = 1; i < parts; ++i) {
        all[i] = (Part){work, data, i};
        pthread_create(&helpers[i], NULL, run_part, &all[i]);
    }
    for (int i = 1; i < parts; ++i) pthread_join(helpers[i], NULL);
}

static void by_nobody(void (*work)(int, void *), void *data, int parts, void *context) {
    (void)work, (void)data, (void)parts, (void)context;
}

int main(void) {
    pthread_t callers[CALLERS];
    set_threads(MOST);
    call_often(NULL);
    if (seen < 3) fail("no thread ever helped: nothing was tried");
    for (int i = 0; i < CALLERS; ++i) pthread_create(&callers[i], NULL, call_often, NULL);
    for (int i = 0; i < CALLERS; ++i) pthread_join(callers[i], NULL);
    set_threads(2); /* of the workers that there are, all but one stay away */
    seen = 0;
    call_once(0);
    if (seen > 2) fail("more threads than set");
    set_threads(MOST);
    seen = 0;
    set_launcher(by_nobody, NULL);
    call_often(NULL);
    if (seen != 1) fail("a launcher of nobody had help");
    set_launcher(by_new_threads, &seen);
    for (int i = 0; i < CALLERS; ++i) pthread_create(&callers[i], NULL, call_often, NULL);
    for (int i = 0; i < CALLERS; ++i) pthread_join(callers[i], NULL);
    if (seen < 3) fail("no thread of the launcher helped");
    set_launcher(NULL, NULL);
    puts("ok");
    return 0;
}
