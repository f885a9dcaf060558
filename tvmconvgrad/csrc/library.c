/* What is linked to a single kernel: its services, and how it is called. */
#include "services.c"

#include "calling.c"
#include "python.c"
#include "openmp.c"

extern int __tvm_ffi_main(void *self, const Any *arguments, int32_t count, Any *result);

static Layout layout;

/* Said once, before the first call: the tensors as the kernel was compiled for them. */
EXPORT void tvmconvgrad_set_layout(const Layout *given) { layout = *given; }

/* A bundle's functions have the same arguments; a single kernel finds its workspace itself. */
EXPORT int tvmconvgrad_run(
    const void *first, const void *second, void *result, void *bias, void *memory, size_t bytes
) {
    void *const data[TENSORS] = {(void *)first, (void *)second, result, bias};
    (void)memory, (void)bytes;
    return invoke(__tvm_ffi_main, &layout, data) != 0;
}

/* runtime/native.py has the number (PYTHON_SYMBOL). */
EXPORT void *tvmconvgrad_python_method_4(const Python *python) { return python_method(python); }

/* runtime/native.py has the number (OPENMP_SYMBOL). */
EXPORT int tvmconvgrad_run_by_openmp_2(
    const OpenMP *openmp, int count, Run run, const void *first, const void *second, void *result, void *bias
) {
    return run_by_openmp(openmp, count, run, first, second, result, bias);
}
