/* A kernel called with Python's own objects: to look at its tensors from Python takes longer than a small layer does.
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
    Object *(*call)(Object *, ...);                  /* PyObject_CallFunctionObjArgs */
    Object *(*pack)(ptrdiff_t, ...);                 /* PyTuple_Pack */
    ptrdiff_t (*size)(Object *);                     /* PyObject_Size */
    void *(*pointer)(Object *capsule, const char *); /* PyCapsule_GetPointer */
    Object *(*item)(Object *, ptrdiff_t);            /* PyTuple_GetItem */
    Object *(*number)(long);                         /* PyLong_FromLong */
    void (*release)(Object *);                       /* Py_DecRef */
    void (*clear_error)(void);                       /* PyErr_Clear */
    void *(*unlock)(void);                           /* PyEval_SaveThread */
    void (*lock)(void *);                            /* PyEval_RestoreThread */
    Object *none, *no, *zero, *minus_one;            /* objects of which there is one */
    Object *array;                                   /* NumPy's class */
    Object *array_struct, *dtype, *is_neg, *requires_grad, *version, *storage, *level; /* names of attributes */
    Object *tensor, *parameter;                      /* PyTorch's classes, once it is known */
    int (*read_tensor)(Object *, Tensor *);          /* DLTensorFromPyObjectNoSync of its DLPackExchangeAPI */
    Object *is_grad_enabled, *is_tracing, *count_modes, *mark_written; /* its functions */
    Object *forward_mode;                            /* its module, which has the level */
} Python;

/* The function of a kernel, as a bundle has it; `bias` is read, or receives the bias gradient, and is NULL where the
 * kernel has neither; the last two are a workspace. */
typedef int (*Run)(const void *first, const void *second, void *result, void *bias, void *memory, size_t bytes);

typedef struct {
    const Python *python;
    Run run;
    Object *dtype, *result_dtype; /* NumPy's */
    int has_own_result; /* the result is the caller's; else it is new */
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
enum { C_CONTIGUOUS = 0x001, ALIGNED = 0x100, NATIVE_BYTES = 0x200, WRITEABLE = 0x400, FLOAT = 2 /* DLPack's code */ };

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

static int can_get(const Python *python, Object *value, Object *attribute) {
    Object *found = python->get(value, attribute);
    if (found) python->release(found);
    else python->clear_error();
    return found != NULL;
}

/* The interface tells NumPy's own types apart; bf16 is of another package, and asked for. */
static int has_dtype(const PythonCall *call, int place, Object *value, const Array *array) {
    const Python *python = call->python;
    const Object *dtype = is_written(&call->layout, place) ? call->result_dtype : call->dtype;
    if (call->layout.code[place] == FLOAT) return array->kind == 'f' && array->itemsize * 8 == call->layout.bits[place];
    return is(python, python->get(value, python->dtype), dtype);
}

static void *address_of_array(const PythonCall *call, int place, Object *value) {
    const Python *python = call->python;
    int needed = C_CONTIGUOUS | ALIGNED | NATIVE_BYTES | (is_written(&call->layout, place) ? WRITEABLE : 0);
    void *found = NULL;
    Object *capsule = python->get(value, python->array_struct);
    const Array *array = capsule ? python->pointer(capsule, NULL) : NULL;
    if (!array) python->clear_error();
    else if ((array->flags & needed) == needed && has_dtype(call, place, value, array)
        && has_shape(&call->layout, place, array->ndim, (const int64_t *)array->shape))
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

/* Whether nobody looks on who would not see a kernel: a tracer, a mode that sees operators, forward differentiation. */
static int is_unseen(const Python *python) {
    return is(python, python->call(python->is_tracing, NULL), python->no)
        && is(python, python->call(python->count_modes, NULL), python->zero)
        && is(python, python->get(python->forward_mode, python->level), python->minus_one);
}

/* Whether autograd has nothing to do with a tensor: runtime/torch_tensors.py (is_free). */
static int is_free(const Python *python, Object *value, int is_written) {
    if (is_written && !can_get(python, value, python->version)) return 0; /* an inference tensor */
    return is(python, python->get(value, python->requires_grad), python->no)
        || (!is_written && is(python, python->call(python->is_grad_enabled, NULL), python->no));
}

/* Whether a tensor's storage is there: it may have been made smaller since. */
static int is_stored(const Python *python, Object *value, uint64_t bytes) {
    Object *storage = python->ask(value, python->storage, NULL);
    ptrdiff_t size = storage ? python->size(storage) : -1;
    if (storage) python->release(storage);
    if (size < 0) python->clear_error();
    return size >= 0 && (uint64_t)size >= bytes;
}

/* A tensor that stands for the negative of its memory is contiguous, too. */
static void *address_of_tensor(const PythonCall *call, int place, Object *value) {
    const Python *python = call->python;
    const Layout *layout = &call->layout;
    Tensor tensor;
    if (!is(python, python->ask(value, python->is_neg, NULL), python->no)) return NULL;
    int is_known = place != INPUTS || call->has_own_result; /* to others before this call */
    if (is_known && !is_free(python, value, is_written(layout, place))) return NULL;
    if (is_known && !is_stored(python, value, layout->bytes[place])) return NULL;
    if (python->read_tensor(value, &tensor)) return python->clear_error(), NULL;
    int is_of_type = tensor.code == layout->code[place] && tensor.bits == layout->bits[place] && tensor.lanes == 1;
    int fits = tensor.device_type == CPU && is_of_type
        && tensor.data && has_shape(layout, place, tensor.ndim, tensor.shape) && is_dense(&tensor);
    char *found = fits ? (char *)tensor.data + tensor.byte_offset : NULL;
    return (uintptr_t)found % (layout->bits[place] / 8) ? NULL : found;
}

/* The address of a tensor, and whether it is PyTorch's. Of classes of their own: what a subclass does is unknown. */
static void *address(const PythonCall *call, int place, Object *value, int *is_tensor) {
    const Python *python = call->python;
    Object *type = python->type(value);
    python->release(type); /* the object holds it */
    *is_tensor = type == python->tensor || type == python->parameter;
    if (*is_tensor) return address_of_tensor(call, place, value);
    return type == python->array ? address_of_array(call, place, value) : NULL;
}

/* Let autograd find out that what it has kept is no more. */
static int mark_written(const Python *python, Object *value) {
    Object *values = python->pack(1, value), *answer = values ? python->call(python->mark_written, values, NULL) : NULL;
    if (values) python->release(values);
    return is(python, answer, python->none);
}

/* What the kernel's function returns, or NOT_PLAIN, and then nothing has been done. Python is unlocked meanwhile. */
static int call_with(const PythonCall *call, Object *const *values) {
    const Python *python = call->python;
    int is_tensor[TENSORS] = {0}, is_any = 0, count = call->layout.count;
    void *data[TENSORS] = {NULL};
    for (int place = 0; place < count; is_any |= is_tensor[place++])
        if (!(data[place] = address(call, place, values[place], &is_tensor[place]))) return NOT_PLAIN;
    if (overlaps_result(&call->layout, data) || (is_any && !is_unseen(python))) return NOT_PLAIN;
    for (int place = call->has_own_result ? INPUTS : INPUTS + 1; place < count; ++place)
        if (is_tensor[place] && is_written(&call->layout, place) && !mark_written(python, values[place])) return NOT_PLAIN;
    void *thread = python->unlock();
    int status = call->run(data[0], data[1], data[2], data[3], NULL, 0);
    python->lock(thread);
    return status;
}

static Python known; /* what finds a PythonCall; copied, since it is needed as long as there are methods */

/* A method of Python's, with METH_FASTCALL: `self` is a tuple, whose first element is a capsule of a PythonCall; `values`
 * are two inputs, the result, and the bias or its gradient, or None. A function of ctypes' takes 0.9 microseconds more. */
static Object *call_python(Object *self, Object *const *values, ptrdiff_t count) {
    const PythonCall *call = known.pointer(known.item(self, 0), NULL);
    return call->python->number(count == TENSORS ? call_with(call, values) : NOT_PLAIN);
}

/* The address of this method, which finds its PythonCall by these functions. */
static void *python_method(const Python *python) {
    known = *python;
    return (void *)call_python;
}
