/* A driver for NVIDIA GPUs that has none: devices' memory is the host's, and functions run on the host at once.
 *
 * A module's image is the path of a library that has run_NAME(grid, block, arguments) for each function NAME. What was
 * called, and on which stream, is kept for the tests (fake_log); what a real driver refuses is refused here: a function
 * of another device's context, shared memory that was not asked for.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor_map.h"

#define CONTEXT(device) ((void *)(intptr_t)(0x1000 + (device)))
#define PLAIN_SHARED_BYTES (48 * 1024)

typedef struct { void *library; void *context; } Module;
typedef struct { Module *module; char name[64]; int shared_bytes; } Function;
typedef void (*Run)(const unsigned *grid, const unsigned *block, void **arguments);

static int devices = 1, major = 9, minor = 0, failing;
static _Atomic int events, allocated;
static char failing_name[64], text[1 << 16];
static __thread void *contexts[8];
static __thread int depth;
static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;

static void note(const char *format, ...) {
    va_list values;
    va_start(values, format);
    pthread_mutex_lock(&noting); /* callers have no lock of Python's */
    size_t used = strlen(text);
    vsnprintf(text + used, sizeof text - used, format, values);
    pthread_mutex_unlock(&noting);
    va_end(values);
}

static int fails(const char *name) { return strcmp(name, failing_name) ? 0 : failing; }

void fake_reset(int count, int capability_major, int capability_minor) {
    devices = count, major = capability_major, minor = capability_minor, failing = 0, text[0] = failing_name[0] = 0;
}
void fake_fail(const char *name, int status) { strncpy(failing_name, name, 63), failing = status; }
const char *fake_log(void) { return text; }
int fake_allocated(void) { return allocated; }
int fake_contexts(void) { return depth; }

int cuInit(unsigned flags) { return flags ? 1 : fails("cuInit"); }
int cuGetErrorString(int status, const char **words) { *words = status == 209 ? "no kernel image" : "a fault"; return 0; }
int cuDeviceGetCount(int *count) { *count = devices; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < devices ? 0 : 101; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? major : attribute == 76 ? minor : -1;
    return device < devices ? 0 : 101;
}
int cuDeviceGetName(char *name, int size, int device) { return snprintf(name, size, "fake %d", device) < 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = CONTEXT(device); return 0; }
int cuCtxGetCurrent(void **context) { *context = depth ? contexts[depth - 1] : NULL; return 0; }
int cuCtxPushCurrent_v2(void *context) { contexts[depth++] = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = contexts[--depth]; return 0; }

int cuModuleLoadData(Module **module, const char *image) {
    if (fails("cuModuleLoadData")) return failing;
    *module = malloc(sizeof **module);
    **module = (Module){dlopen(image, RTLD_NOW | RTLD_LOCAL), contexts[depth - 1]};
    note("load on %d\n", (int)((intptr_t)contexts[depth - 1] - 0x1000));
    return (*module)->library ? 0 : 200;
}
int cuModuleUnload(Module *module) {
    if (fails("cuModuleUnload")) return failing;
    if (!depth || contexts[depth - 1] != module->context) return 400;
    note("unload on %d\n", (int)((intptr_t)module->context - 0x1000));
    int status = dlclose(module->library) ? 1 : 0;
    free(module);
    return status;
}
int cuModuleGetFunction(Function **function, Module *module, const char *name) {
    *function = calloc(1, sizeof **function);
    (*function)->module = module, (*function)->shared_bytes = PLAIN_SHARED_BYTES;
    snprintf((*function)->name, 64, "run_%s", name);
    return dlsym(module->library, (*function)->name) ? 0 : 500;
}
int cuFuncSetAttribute(Function *function, int attribute, int value) {
    if (attribute != 8) return 1;
    function->shared_bytes = value;
    return 0;
}
int cuLaunchKernel(Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    if (fails("cuLaunchKernel")) return failing;
    if (!depth || contexts[depth - 1] != function->module->context) return 400;
    if ((int)shared > function->shared_bytes || extra) return 1;
    note("%s on %ld\n", function->name, (long)(intptr_t)stream);
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    ((Run)dlsym(function->module->library, function->name))(grid, block, arguments);
    return 0;
}

typedef struct { unsigned id, pad; int value, rest[15]; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; const Attribute *attributes; unsigned count; } Config;
int cuLaunchKernelEx(const Config *config, Function *function, void **arguments, void **extra) {
    const unsigned *grid = config->grid, *block = config->block;
    if (config->count != 1 || config->attributes->id != 6 || config->attributes->value != 1) return 1;
    return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared,
                          config->stream, arguments, extra);
}

int cuStreamSynchronize(void *stream) { note("synchronize %ld\n", (long)(intptr_t)stream); return 0; }
int cuStreamIsCapturing(void *stream, int *status) { *status = fails("cuStreamIsCapturing") != 0; return 0; }
int cuCtxSynchronize(void) {
    if (fails("cuCtxSynchronize")) return failing;
    note("synchronize all\n");
    return depth ? 0 : 201;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    note("%ld waits for event %ld\n", (long)(intptr_t)stream, (long)(intptr_t)event);
    return flags ? 1 : 0;
}
int cuEventCreate(void **event, unsigned flags) { *event = (void *)(intptr_t)++events; return flags & ~2u ? 1 : 0; }
int cuEventRecord(void *event, void *stream) {
    note("event %ld on %ld\n", (long)(intptr_t)event, (long)(intptr_t)stream);
    return 0;
}
int cuEventSynchronize(void *event) { return event ? 0 : 1; }
int cuEventElapsedTime(float *time, void *begin, void *end) { *time = 0.5f; return begin && end ? 0 : 1; }
int cuEventDestroy_v2(void *event) { return event ? 0 : 1; }

int cuMemAllocAsync(void **address, size_t size, void *stream) {
    if (fails("cuMemAllocAsync")) return failing;
    note("allocate %zu on %ld\n", size, (long)(intptr_t)stream);
    allocated++;
    *address = aligned_alloc(256, (size + 255) / 256 * 256);
    return 0;
}
int cuMemFreeAsync(void *address, void *stream) {
    note("free on %ld\n", (long)(intptr_t)stream);
    allocated--;
    free(address);
    return 0;
}
int cuMemsetD8Async(void *address, unsigned char value, size_t size, void *stream) {
    note("clear on %ld\n", (long)(intptr_t)stream);
    memset(address, value, size);
    return 0;
}
int cuMemcpyHtoD_v2(void *address, const void *source, size_t size) { memcpy(address, source, size); return 0; }
int cuMemcpyDtoH_v2(void *target, const void *address, size_t size) { memcpy(target, address, size); return 0; }

static int encode(TensorMap *map, int dtype, unsigned rank, void *memory, const uint64_t *sizes, const uint64_t *strides,
                  const unsigned *steps, int interleave, int swizzle, int promotion, int fill) {
    static const unsigned line_bytes[] = {0, 32, 64, 128};
    uint64_t stride = 2;
    if ((intptr_t)map % 64 || (intptr_t)memory % 16 || rank < 2 || rank > 5) return 1;
    if ((dtype != 6 && dtype != 9) || interleave || swizzle < 1 || swizzle > 3 || promotion > 3 || fill) return 1;
    if (fails("cuTensorMapEncode")) return failing;
    *map = (TensorMap){memory, rank, 2, line_bytes[swizzle], 0};
    for (unsigned axis = 0; axis < rank; axis++) {
        if (!sizes[axis] || !steps[axis] || steps[axis] > 8) return 1;
        map->sizes[axis] = sizes[axis], map->steps[axis] = steps[axis];
        stride *= sizes[axis];
        if (axis + 1 < rank && (strides[axis] != stride || stride % 16)) return 1;
    }
    note("map\n");
    return 0;
}
int cuTensorMapEncodeTiled(TensorMap *map, int dtype, unsigned rank, void *memory, const uint64_t *sizes,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                           int swizzle, int promotion, int fill) {
    int status = encode(map, dtype, rank, memory, sizes, strides, steps, interleave, swizzle, promotion, fill);
    for (unsigned axis = 0; axis < rank && !status; axis++) {
        if (!box[axis] || box[axis] > 256 || steps[axis] != 1) return 1;
        map->extents[axis] = box[axis];
    }
    return status ? status : 2 * box[0] > map->line_bytes;
}
int cuTensorMapEncodeIm2col(TensorMap *map, int dtype, unsigned rank, void *memory, const uint64_t *sizes,
                            const uint64_t *strides, const int *lower, const int *upper, unsigned channels,
                            unsigned pixels, const unsigned *steps, int interleave, int swizzle, int promotion,
                            int fill) {
    int status = encode(map, dtype, rank, memory, sizes, strides, steps, interleave, swizzle, promotion, fill);
    int most = rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4;
    if (status || rank < 3) return status ? status : 1;
    for (unsigned axis = 0; axis + 2 < rank; axis++) {
        map->lower[axis] = lower[axis], map->upper[axis] = upper[axis];
        if (lower[axis] < -most || lower[axis] >= most || upper[axis] < -most || upper[axis] >= most) return 1;
        if (lower[axis] > (int)sizes[axis + 1] - 1 + upper[axis]) return 1;
    }
    map->pixels = 1, map->extents[0] = channels, map->extents[1] = pixels;
    return channels > 256 || pixels > 1024 || 2 * channels > map->line_bytes;
}
