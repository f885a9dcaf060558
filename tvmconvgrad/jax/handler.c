/* What XLA calls for a convolution: it finds the kernel by the number in the custom call, and runs it.
 *
 * Kernels are built while XLA compiles, and a call waits for its kernel. Numbers follow from what a kernel computes, not
 * from where it is: a program that XLA has kept on disk has them, too. jax/handler.py has the same structures.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pages.c"
#include "xla/ffi/api/c_api.h"

#define EXPORT __attribute__((visibility("default")))
enum { BUCKETS = 4096 };

/* As tvmconvgrad_run in csrc/library.c. */
typedef int (*Run)(const void *first, const void *second, void *result, void *bias, void *memory, size_t bytes);
enum { PENDING, READY, FAILED };

typedef struct Kernel {
    struct Kernel *next;
    int64_t number;
    int state;
    Run run;
    char *reason; /* of a FAILED one */
    int64_t calls, fastest; /* nanoseconds */
} Kernel;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Kernel *buckets[BUCKETS]; /* kernels are added alone: looking one up needs no mutex */

static Kernel *find(int64_t number) {
    Kernel *each = __atomic_load_n(&buckets[(uint64_t)number % BUCKETS], __ATOMIC_ACQUIRE);
    while (each && each->number != number) each = each->next;
    return each;
}

/* A kernel that is to come: before the program is compiled that calls it. 0, or -1 where there is no memory. */
EXPORT int tvmconvgrad_jax_expect(int64_t number) {
    int status = 0;
    pthread_mutex_lock(&mutex);
    Kernel *kernel = find(number);
    if (kernel) {
        if (kernel->state == FAILED) kernel->state = PENDING;
    } else if ((kernel = calloc(1, sizeof *kernel))) {
        Kernel **bucket = &buckets[(uint64_t)number % BUCKETS];
        kernel->number = number;
        kernel->next = *bucket;
        __atomic_store_n(bucket, kernel, __ATOMIC_RELEASE);
    } else {
        status = -1;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

/* The kernel is there (`run`), or will not be (`reason`). */
EXPORT void tvmconvgrad_jax_settle(int64_t number, Run run, const char *reason) {
    pthread_mutex_lock(&mutex);
    Kernel *kernel = find(number);
    kernel->run = run;
    if (reason) {
        free(kernel->reason);
        kernel->reason = strdup(reason);
    }
    __atomic_store_n(&kernel->state, reason ? FAILED : READY, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* How often a kernel was called, and how long the fastest call took, in nanoseconds. */
EXPORT void tvmconvgrad_jax_count(int64_t number, int64_t *calls, int64_t *fastest) {
    Kernel *kernel = find(number);
    *calls = kernel ? __atomic_load_n(&kernel->calls, __ATOMIC_RELAXED) : 0;
    *fastest = kernel ? __atomic_load_n(&kernel->fastest, __ATOMIC_RELAXED) : 0;
}

/* The state in which a kernel is when it is no longer pending. */
static int settled(Kernel *kernel) {
    int state = __atomic_load_n(&kernel->state, __ATOMIC_ACQUIRE);
    if (state != PENDING) return state;
    pthread_mutex_lock(&mutex);
    while (kernel->state == PENDING) pthread_cond_wait(&changed, &mutex);
    state = kernel->state;
    pthread_mutex_unlock(&mutex);
    return state;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Calls that end at the same time may lose a faster one, or a count less than is right: they are shown, no more. */
static void count(Kernel *kernel, int64_t nanoseconds) {
    __atomic_add_fetch(&kernel->calls, 1, __ATOMIC_RELAXED);
    int64_t fastest = __atomic_load_n(&kernel->fastest, __ATOMIC_RELAXED);
    if (!fastest || nanoseconds < fastest) __atomic_store_n(&kernel->fastest, nanoseconds, __ATOMIC_RELAXED);
}

static XLA_FFI_Error *failure(const XLA_FFI_Api *api, XLA_FFI_Error_Code code, const char *message) {
    XLA_FFI_Error_Create_Args arguments = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, NULL, message, code};
    return api->XLA_FFI_Error_Create(&arguments);
}

static void *address(const XLA_FFI_CallFrame *frame, int argument) {
    return ((const XLA_FFI_Buffer *)frame->args.args[argument])->data;
}

static int64_t bytes_of(const XLA_FFI_Buffer *buffer) {
    int64_t bytes = buffer->dtype == XLA_FFI_DataType_F32 ? 4 : 2;
    for (int64_t axis = 0; axis < buffer->rank; ++axis) bytes *= buffer->dims[axis];
    return bytes;
}

static XLA_FFI_Error *execute(const XLA_FFI_CallFrame *frame) {
    const XLA_FFI_Api *api = frame->api;
    const XLA_FFI_Scalar *number = frame->attrs.size == 1 ? frame->attrs.attrs[0] : NULL;
    if (!number || frame->attrs.types[0] != XLA_FFI_AttrType_SCALAR || number->dtype != XLA_FFI_DataType_S64)
        return failure(api, XLA_FFI_Error_Code_INVALID_ARGUMENT, "tvmconvgrad: a call by another version of tvmconvgrad");
    if (frame->args.size != 2 || frame->rets.size != 1)
        return failure(api, XLA_FFI_Error_Code_INVALID_ARGUMENT, "tvmconvgrad: expected two arguments and one result");
    Kernel *kernel = find(*(const int64_t *)number->value);
    if (!kernel)
        return failure(
            api, XLA_FFI_Error_Code_FAILED_PRECONDITION,
            "tvmconvgrad: this program was compiled in another process, and its kernels are not in this one: "
            "trace and compile it here, or compile it without tvmconvgrad.jax.enable()"
        );
    if (settled(kernel) == FAILED) return failure(api, XLA_FFI_Error_Code_INTERNAL, kernel->reason);
    int64_t begin = now();
    const XLA_FFI_Buffer *result = frame->rets.rets[0];
    use_huge_pages(result->data, bytes_of(result));
    if (kernel->run(address(frame, 0), address(frame, 1), result->data, NULL, NULL, 0))
        return failure(api, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "tvmconvgrad: no memory for a kernel's workspace");
    count(kernel, now() - begin);
    return NULL;
}

/* XLA asks once which version of its interface this is for. */
EXPORT XLA_FFI_Error *tvmconvgrad_jax_call(XLA_FFI_CallFrame *frame) {
    XLA_FFI_Extension_Base *extension = frame->extension_start;
    if (extension && extension->type == XLA_FFI_Extension_Metadata) {
        XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
        metadata->api_version.major_version = XLA_FFI_API_MAJOR;
        metadata->api_version.minor_version = XLA_FFI_API_MINOR;
        return NULL;
    }
    return frame->stage == XLA_FFI_ExecutionStage_EXECUTE ? execute(frame) : NULL;
}
