/* The threads that run a call's tasks: workers of our own, or those of a launcher that the program gives. A task is TVM's
 * word: a run of a parallel loop's work items. services.c includes this after floating_point.c and memory.c.
 *
 * TVM's own runtime is not used: each thread that calls it gets a pool of its own, which pins threads to cores, and
 * which a forked child cannot leave: its destructor waits for workers that exist only in the parent.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define YIELDS 2000 /* about a millisecond: how long a worker looks for the next job before it sleeps */
#define SHARES 8    /* tasks for each thread */

/* TVMParallelGroupEnv and FTVMParallelLambda of tvm/runtime/c_backend_api.h. */
typedef struct { void *sync_handle; int32_t num_task; } Group;
typedef int (*Task)(int task_id, Group *group, void *data);

/* What runs a call's parts: it calls work(part, data) for each part from 0 to parts - 1, none of them twice, on whatever
 * threads, at once where it can, and returns when those calls have. Any part does what the others leave, so that fewer
 * parts, or none, compute the same. */
typedef void (*Launch)(void (*work)(int part, void *data), void *data, int parts, void *context);
typedef struct { Launch launch; void *context; } Launcher;

/* The tasks from `next` to before `end`: of one thread, which takes them in order. In each call a thread has the same
 * ones, and finds in its cache what it read and wrote in the last. Others help from behind. */
typedef struct { int next, end; } Share;

typedef struct {
    Task run;
    void *data;
    Group group;
    int left, failed;
    int threads; /* that may work on it */
    Share *shares;
    const Arena *arena;
    uint64_t modes; /* of the thread that launches */
    Stack stack;    /* its own */
    pthread_mutex_t *mutex; /* guards the shares */
} Job;

/* Guards what follows. It is not held while a task runs. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static Job *job;         /* the one that workers may help with */
static int posts;        /* jobs so far; workers look at it without the mutex */
static int sleepers;
static int launcher;     /* the CPU that the last job was launched on */
static int looking[CPU_SETSIZE]; /* how many workers look for the next job, by their CPU */
static int workers;
static int threads = 1;
static Launcher given;   /* in place of the workers; without a function: none */

static __thread const Arena *arena; /* of the call that this thread makes; NULL: it brought none */
static __thread const Launcher *own_launcher; /* of the call that this thread makes; NULL: what all calls have */
static __thread int own_threads;              /* with it */

/* The next task of a thread's share, or the last of the largest; -1: all have begun. */
static int claim(Job *mine, int place) {
    Share *largest = &mine->shares[place];
    if (largest->next < largest->end) return largest->next++;
    for (Share *each = mine->shares; each < mine->shares + mine->threads; ++each)
        if (each->end - each->next > largest->end - largest->next) largest = each;
    return largest->next < largest->end ? --largest->end : -1;
}

/* Run tasks until all have begun; the job's mutex is held before and after. */
static void help(Job *mine, int place) {
    for (int task; (task = claim(mine, place)) >= 0;) {
        pthread_mutex_unlock(mine->mutex);
        int status = mine->run(task, &mine->group, mine->data);
        pthread_mutex_lock(mine->mutex);
        mine->failed |= status != 0;
        __atomic_sub_fetch(&mine->left, 1, __ATOMIC_RELEASE);
    }
}

/* Go to another CPU, if this one is the launcher's. The kernel would do so sooner or later, often after the job. The
 * thread is not kept there: it may run wherever it might before. */
static void leave_launcher(void) {
    cpu_set_t all, others;
    int cpu = __atomic_load_n(&launcher, __ATOMIC_RELAXED);
    if (sched_getcpu() != cpu || sched_getaffinity(0, sizeof all, &all)) return;
    others = all;
    CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others) && sched_setaffinity(0, sizeof others, &others) == 0)
        sched_setaffinity(0, sizeof all, &all);
}

/* The memory of a job's thread: the caller's is at place 0. */
static Stack stack_of(const Job *mine, int place) {
    const Arena *theirs = mine->arena;
    if (place == 0) return mine->stack;
    if (!theirs || !theirs->memory) return (Stack){NULL, NULL, NULL};
    char *memory = theirs->memory + theirs->first + theirs->each * (uint64_t)(place - 1);
    return (Stack){memory, memory + theirs->each, NULL};
}

/* The mutex is held before and after. A worker comes to a job once, and only to one with enough threads for its place. */
static void join(Job *other, int place) {
    if (place >= other->threads) return;
    take_over(other->modes);
    stack = stack_of(other, place);
    help(other, place);
    stack = (Stack){NULL, NULL, NULL};
}

/* Add `more` to the number of workers that look for a job on a CPU; returns the sum. */
static int looks_on(int cpu, int more) {
    return cpu < 0 || cpu >= CPU_SETSIZE ? 0 : __atomic_add_fetch(&looking[cpu], more, __ATOMIC_RELAXED);
}

static void look_for_another(int seen) {
    int cpu = -1;
    for (int i = 0; i < YIELDS && __atomic_load_n(&posts, __ATOMIC_RELAXED) == seen; ++i) {
        int now = sched_getcpu();
        if (now != cpu) {
            looks_on(cpu, -1);
            looks_on(cpu = now, 1);
        }
        sched_yield();
    }
    looks_on(cpu, -1);
}

/* A thread's variables are allocated when it first uses them, and the C library aborts where there is no memory. */
static int has_variables(void) {
    void *volatile room = malloc(2 * PAGE); /* volatile: what is not used is not allocated */
    free(room);
    if (room) stack = (Stack){NULL, NULL, NULL};
    return room != NULL;
}

/* A worker that finds no memory goes. Its number is not given to another one: the others do its tasks. */
static void *work(void *number) {
    int place = (int)(intptr_t)number;
    leave_launcher();
    pthread_mutex_lock(&mutex);
    for (int goes_on = has_variables(); goes_on;) {
        int seen = posts;
        if (job) join(job, place);
        pthread_mutex_unlock(&mutex);
        look_for_another(seen);
        pthread_mutex_lock(&mutex);
        ++sleepers;
        while (posts == seen) pthread_cond_wait(&posted, &mutex);
        --sleepers;
        pthread_mutex_unlock(&mutex);
        leave_launcher();
        pthread_mutex_lock(&mutex);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* Start workers until there are `count`, or the system allows no more. No signal is delivered to them. */
static void hire(int count) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (workers < count) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(intptr_t)(workers + 1))) break;
        pthread_detach(thread);
        ++workers;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int run_alone(Task run, void *data, int num_task) {
    Group group = {NULL, num_task};
    int failed = 0;
    for (int task = 0; task < num_task; ++task) failed |= run(task, &group, data) != 0;
    return failed ? -1 : 0;
}

/* What a launcher's threads do, which are as they were afterwards. */
static void work_on(int part, void *data) {
    Job *mine = data;
    Stack before = stack;
    uint64_t modes = floating_point() & MODES;
    take_over(mine->modes);
    stack = stack_of(mine, part);
    pthread_mutex_lock(mine->mutex);
    help(mine, part);
    pthread_mutex_unlock(mine->mutex);
    stack = before;
    take_over(modes);
}

static void launch_elsewhere(const Launcher *launcher, Job *mine) {
    pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
    mine->mutex = &guard;
    launcher->launch(work_on, mine, mine->threads, launcher->context);
    work_on(0, mine); /* what is left where no part was run */
}

/* On this thread and the workers. -1 where they are busy with another thread's job, which is not waited for. */
static int launch_here(Job *mine) {
    pthread_mutex_lock(&mutex);
    if (job) {
        pthread_mutex_unlock(&mutex);
        return -1;
    }
    int here = sched_getcpu();
    __atomic_store_n(&launcher, here, __ATOMIC_RELAXED);
    if (workers < mine->threads - 1) hire(mine->threads - 1);
    mine->mutex = &mutex;
    job = mine;
    __atomic_add_fetch(&posts, 1, __ATOMIC_RELAXED);
    int yields = sleepers || looks_on(here, 0);
    if (sleepers) pthread_cond_broadcast(&posted);
    if (yields) { /* to a worker that the kernel has put on this CPU: it leaves, and else would wait for all tasks */
        pthread_mutex_unlock(&mutex);
        sched_yield();
        pthread_mutex_lock(&mutex);
    }
    help(mine, 0);
    pthread_mutex_unlock(&mutex);
    while (__atomic_load_n(&mine->left, __ATOMIC_ACQUIRE)) sched_yield();
    /* Whoever still looks at the job holds the mutex. */
    pthread_mutex_lock(&mutex);
    job = NULL;
    pthread_mutex_unlock(&mutex);
    return 0;
}

/* How many threads the call of this thread may have. */
static int threads_of_call(void) { return own_launcher ? own_threads : __atomic_load_n(&threads, __ATOMIC_RELAXED); }

static Launcher launcher_of_call(void) {
    if (own_launcher) return *own_launcher;
    if (!__atomic_load_n(&given.launch, __ATOMIC_RELAXED)) return (Launcher){NULL, NULL};
    pthread_mutex_lock(&mutex);
    Launcher found = given;
    pthread_mutex_unlock(&mutex);
    return found;
}

/* num_task 0 leaves the number to the runtime: more tasks than threads, so that a late or slowed thread takes fewer. */
static int launch(Task run, void *data, int num_task) {
    int count = threads_of_call();
    if (arena && arena->threads < count) count = arena->threads;
    int wanted = num_task > 0 ? num_task : count > 1 ? count * SHARES : 1;
    if (wanted <= 1) return run_alone(run, data, 1);
    Share shares[count];
    for (int place = 0; place < count; ++place)
        shares[place] = (Share){(int)((int64_t)wanted * place / count), (int)((int64_t)wanted * (place + 1) / count)};
    Job mine = {run, data, {NULL, wanted}, wanted, 0, count, shares, arena, floating_point() & MODES, stack, NULL};
    Launcher other = count > 1 ? launcher_of_call() : (Launcher){NULL, NULL};
    if (other.launch) launch_elsewhere(&other, &mine);
    else if (launch_here(&mine)) return run_alone(run, data, num_task > 0 ? num_task : 1);
    return mine.failed ? -1 : 0;
}

/* The calls of this thread from now on; NULL: what all calls have. */
static void launch_by(const Launcher *launcher, int count) {
    own_launcher = launcher;
    own_threads = count;
}
