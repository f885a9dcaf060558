/* Calls a kernel's library as runtime/native.py does, where there is no Python: under emulation.
 *
 *     call_kernel LIBRARY THREADS CODE BITS FIRST SIZES SECOND SIZES RESULT SIZES
 *
 * CODE and BITS are DLPack's of the type; the files hold dense tensors, with SIZES such as 2x10x11x16.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 0xAB

/* DLTensor of DLPack, and TVMFFIAny of tvm/ffi/c_api.h as far as pointers go. */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;
typedef struct { int32_t type_index; uint32_t padding; void *pointer; } Any;
enum { TENSOR_POINTER = 7, CPU = 1 };

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why ? why : "failed");
    exit(1);
}

static void *symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) fail(name, dlerror());
    return found;
}

static size_t size_in_bytes(const Tensor *tensor) {
    size_t bytes = tensor->bits / 8;
    for (int axis = 0; axis < tensor->ndim; ++axis) bytes *= (size_t)tensor->shape[axis];
    return bytes;
}

/* A tensor whose memory is aligned to its elements and to no more, with an element's guard on both sides. */
static Tensor make_tensor(const char *sizes, int code, int bits) {
    Tensor tensor = {NULL, CPU, 0, 0, (uint8_t)code, (uint8_t)bits, 1, calloc(8, sizeof(int64_t)), NULL, 0};
    for (char *rest = (char *)sizes; *rest && tensor.ndim < 8; rest += *rest == 'x')
        tensor.shape[tensor.ndim++] = strtoll(rest, &rest, 10);
    size_t bytes = size_in_bytes(&tensor), element = (size_t)bits / 8;
    char *memory = aligned_alloc(64, (bytes + 2 * element + 63) / 64 * 64);
    if (!memory) fail(sizes, "no memory");
    memset(memory, GUARD, bytes + 2 * element);
    tensor.data = memory + element;
    return tensor;
}

static void read_tensor(const char *path, Tensor *tensor) {
    FILE *file = fopen(path, "rb");
    if (!file || fread(tensor->data, 1, size_in_bytes(tensor), file) != size_in_bytes(tensor)) fail(path, "not read");
    fclose(file);
}

static void write_tensor(const char *path, const Tensor *tensor) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(tensor->data, 1, size_in_bytes(tensor), file) != size_in_bytes(tensor) || fclose(file))
        fail(path, "not written");
}

static void check_guards(const Tensor *tensor) {
    size_t bytes = size_in_bytes(tensor), element = tensor->bits / 8;
    const unsigned char *before = (const unsigned char *)tensor->data - element, *after = before + element + bytes;
    for (size_t i = 0; i < element; ++i)
        if (before[i] != GUARD || after[i] != GUARD) fail("the kernel", "wrote outside");
}

int main(int argc, char **argv) {
    if (argc != 11) fail(argv[0], "expected LIBRARY THREADS CODE BITS, and three times FILE SIZES");
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(argv[1], dlerror());
    int (*run)(void *, const Any *, int32_t, Any *) = symbol(library, "__tvm_ffi_main");
    void (*set_threads)(int) = symbol(library, "tvmconvgrad_set_threads");

    Tensor tensors[3];
    Any arguments[3], result = {0, 0, NULL};
    for (int i = 0; i < 3; ++i) {
        tensors[i] = make_tensor(argv[6 + 2 * i], atoi(argv[3]), atoi(argv[4]));
        arguments[i] = (Any){TENSOR_POINTER, 0, &tensors[i]};
        if (i < 2) read_tensor(argv[5 + 2 * i], &tensors[i]);
    }
    set_threads(atoi(argv[2]));
    for (int call = 0; call < 2; ++call) /* the second one finds threads and memory that wait */
        if (run(NULL, arguments, 3, &result)) fail("the kernel", "got no memory");
    for (int i = 0; i < 3; ++i) check_guards(&tensors[i]);
    write_tensor(argv[9], &tensors[2]);
    return 0;
}
