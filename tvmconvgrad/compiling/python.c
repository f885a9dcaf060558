/* A kernel called with Python's own objects: to look at three tensors from Python takes longer than a small layer does.
 *
 * Only what can be passed on as it is goes this way: dense and aligned memory of the right shape and type, in arrays of
 * NumPy and in tensors of PyTorch's on the CPU. Everything else is NOT_PLAIN; runtime/kernel.py copies it, or says what
 * is wrong with it.
 *
 * Python's functions are not linked to but handed over, so that a library can be loaded by a program without Python. All
 * are of its stable ABI. runtime/python_calls.py has the same structures.
 */

typedef void Object; /* PyObject */

typedef struct {
    Object *(*type)(Object *);                       /* PyObject_Type */
    Object *(*get)(Object *, Object *name);          /* PyObject_GetAttr */
    Object *(*ask)(Object *, Object *method, ...);   /* PyObject_CallMethodObjArgs */
    void *(*pointer)(Object *capsule, const char *); /* PyCapsule_GetPointer */
    void (*release)(Object *);                       /* Py_DecRef */
    void (*clear_error)(void);                       /* PyErr_Clear */
    void *(*unlock)(void);                           /* PyEval_SaveThread */
    void (*lock)(void *);                            /* PyEval_RestoreThread */
    Object *no;                                      /* False */
    Object *array;                                   /* NumPy's class */
    Object *array_struct, *dtype, *is_neg, *requires_grad; /* names of attributes */
    Object *tensor, *parameter;                      /* PyTorch's classes, once it is known */
    int (*read_tensor)(Object *, Tensor *);          /* DLTensorFromPyObjectNoSync of its DLPackExchangeAPI */
} Python;

/* The function of a kernel, as a bundle has it; the last two are a workspace. */
typedef int (*Run)(const void *first, const void *second, void *result, void *memory, size_t bytes);

typedef struct {
    const Python *python;
    Run run;
    Object *dtype; /* NumPy's */
    Layout layout;
} PythonCall;

enum { NOT_PLAIN = -1 };

/* NumPy's PyArrayInterface, what an array's __array_struct__ holds. */
typedef struct {
    int two, ndim;
    char kind;
    int itemsize, flags;
    const intptr_t *shape, *strides;
    void *data;
} Array;
enum { C_CONTIGUOUS = 0x001, ALIGNED = 0x100, WRITEABLE = 0x400 };

static int has_shape(const Layout *layout, int place, int ndim, const int64_t *shape) {
    int same = ndim == layout->ndim[place];
    for (int axis = 0; same && axis < ndim; ++axis) same = shape[axis] == layout->shape[place][axis];
    return same;
}

/* Whether an attribute of an object, or what a method of it answers, is this very object. */
static int is(const Python *python, Object *value, const Object *expected) {
    if (value) python->release(value);
    else python->clear_error();
    return value == expected;
}

static void *address_of_array(const PythonCall *call, int place, Object *value) {
    const Python *python = call->python;
    int needed = C_CONTIGUOUS | ALIGNED | (place == 2 ? WRITEABLE : 0);
    void *found = NULL;
    if (!is(python, python->get(value, python->dtype), call->dtype)) return NULL;
    Object *capsule = python->get(value, python->array_struct);
    const Array *array = capsule ? python->pointer(capsule, NULL) : NULL;
    if (!array) python->clear_error();
    else if ((array->flags & needed) == needed && has_shape(&call->layout, place, array->ndim, (const int64_t *)array->shape))
        found = array->data;
    if (capsule) python->release(capsule);
    return found;
}

static int is_dense(const Tensor *tensor) {
    int64_t step = 1;
    for (int axis = tensor->ndim; tensor->strides && axis-- > 0; step *= tensor->shape[axis])
        if (tensor->shape[axis] != 1 && tensor->strides[axis] != step) return 0;
    return 1;
}

/* A tensor that stands for the negative of its memory is contiguous, too. Autograd sees nothing of what is written. */
static void *address_of_tensor(const PythonCall *call, int place, Object *value) {
    const Python *python = call->python;
    const Layout *layout = &call->layout;
    Tensor tensor;
    if (!is(python, python->ask(value, python->is_neg, NULL), python->no)) return NULL;
    if (place == 2 && !is(python, python->get(value, python->requires_grad), python->no)) return NULL;
    if (python->read_tensor(value, &tensor)) return python->clear_error(), NULL;
    int fits = tensor.device_type == CPU && tensor.code == layout->code && tensor.bits == layout->bits && tensor.lanes == 1
        && tensor.data && has_shape(layout, place, tensor.ndim, tensor.shape) && is_dense(&tensor);
    char *found = fits ? (char *)tensor.data + tensor.byte_offset : NULL;
    return (uintptr_t)found % (layout->bits / 8) ? NULL : found;
}

/* Of classes of their own: what a subclass does to its methods is unknown. */
static void *address(const PythonCall *call, int place, Object *value) {
    const Python *python = call->python;
    Object *type = python->type(value);
    python->release(type); /* the object holds it */
    if (type == python->array) return address_of_array(call, place, value);
    if (type == python->tensor || type == python->parameter) return address_of_tensor(call, place, value);
    return NULL;
}

/* What the kernel's function returns, or NOT_PLAIN, and then nothing has been done. Python is unlocked meanwhile. */
static int call_python(const PythonCall *call, Object *first, Object *second, Object *result) {
    void *data[TENSORS] = {address(call, 0, first), NULL, NULL};
    if (data[0]) data[1] = address(call, 1, second);
    if (data[1]) data[2] = address(call, 2, result);
    if (!data[2] || overlaps_result(&call->layout, data)) return NOT_PLAIN;
    void *thread = call->python->unlock();
    int status = call->run(data[0], data[1], data[2], NULL, 0);
    call->python->lock(thread);
    return status;
}
