/* Threads that launch jobs, allocate and fork at once, for a compiler's sanitizers: prints "ok" when all sums are right. */
#include "services.c"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLERS = 4, ROUNDS = 2000, CHILDREN = 20, MOST_THREADS = 8, MOST_TASKS = MOST_THREADS * SHARES, TOTAL = 1000 };

/* What a kernel's object file would define. */
int (*__TVMBackendParallelLaunch)(Task, void *, int);
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
int (*__TVMBackendFreeWorkspace)(int, int, void *);

typedef struct { long sums[MOST_TASKS]; int round; } Work;

/* Adds its share of 0 + 1 + ... + 999, by way of a workspace of varying size. */
static int add(int task, Group *group, void *data) {
    Work *work = data;
    uint64_t bytes = (uint64_t)(100 + 977 * (task + work->round % 7));
    unsigned char *memory = __TVMBackendAllocWorkspace(1, 0, bytes, 2, 32);
    memset(memory, task, bytes);
    for (long i = (long)TOTAL * task / group->num_task; i < (long)TOTAL * (task + 1) / group->num_task; ++i)
        work->sums[task] += i + memory[i % (long)bytes] - task;
    return __TVMBackendFreeWorkspace(1, 0, memory);
}

static void *call(void *start) {
    for (int round = 0; round < ROUNDS; ++round) {
        Work work = {{0}, round};
        long sum = 0;
        if (round % 100 == 0) tvmconvgrad_set_threads(1 + (int)((round / 100 + (long)start) % MOST_THREADS));
        if (__TVMBackendParallelLaunch(add, &work, 0)) abort();
        for (int task = 0; task < MOST_TASKS; ++task) sum += work.sums[task];
        if (sum != (long)TOTAL * (TOTAL - 1) / 2) abort();
    }
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t callers[CALLERS];
    (void)arguments;
    for (long i = 0; i < CALLERS; ++i) pthread_create(&callers[i], NULL, call, (void *)i);
    for (int i = 0; count > 1 && i < CHILDREN; ++i) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            call(NULL);
            exit(0);
        }
        if (waitpid(child, &status, 0) != child || status) abort();
    }
    for (int i = 0; i < CALLERS; ++i) pthread_join(callers[i], NULL);
    puts("ok");
    return 0;
}
