/* Calls of a kernel by TVM's convention: the addresses of three or four dense tensors in, a status out. */

#include <stddef.h>
#include <stdint.h>

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
enum { TENSOR_POINTER = 7, CPU = 1, TENSORS = 4, INPUTS = 2, BIAS = 3, AXES = 5 };

/* Of the two inputs, the result, and the bias or its gradient where there is one, which makes `count`: DLPack's numbers
 * of their types, and their shapes. */
typedef struct {
    int32_t count;
    uint8_t code[TENSORS], bits[TENSORS];
    int32_t ndim[TENSORS];
    int64_t shape[TENSORS][AXES];
    uint64_t bytes[TENSORS];
    int32_t reads_bias; /* the last one is a bias, which is read; else the bias gradient, which is written */
} Layout;

static int is_written(const Layout *layout, int place) {
    return place >= INPUTS && !(place == BIAS && layout->reads_bias);
}

static int overlap(const void *one, uint64_t bytes, const void *other, uint64_t other_bytes) {
    return (uintptr_t)one < (uintptr_t)other + other_bytes && (uintptr_t)other < (uintptr_t)one + bytes;
}

/* Whether what is written shares memory with any other tensor. */
static int overlaps_result(const Layout *layout, void *const data[TENSORS]) {
    for (int written = INPUTS; written < layout->count; ++written)
        for (int other = 0; other < layout->count; ++other)
            if (is_written(layout, written) && other != written
                && overlap(data[other], layout->bytes[other], data[written], layout->bytes[written])) return 1;
    return 0;
}

static int invoke(Function function, const Layout *layout, void *const data[TENSORS]) {
    Tensor tensors[TENSORS];
    Any arguments[TENSORS], answer = {0, 0, NULL};
    for (int i = 0; i < layout->count; ++i) {
        tensors[i] = (Tensor){
            data[i], CPU, 0, layout->ndim[i], layout->code[i], layout->bits[i], 1, layout->shape[i], NULL, 0
        };
        arguments[i] = (Any){TENSOR_POINTER, 0, &tensors[i]};
    }
    return function(NULL, arguments, layout->count, &answer);
}
