/* The memory of a kernel's workspaces.
 *
 * A call that brings an arena has it from there, each thread from a stack of its own. Any other memory comes from a store:
 * new pages cost more than many kernels take, so blocks are kept for the next call.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define ALIGNMENT 64
#define PAGE 4096
#define KEPT 16 /* blocks of memory that wait for the next call */

/* Memory that a call brings along: a stack of `first` bytes for the thread that calls, and one of `each` bytes for every
 * other one that helps, up to `threads` with itself. */
typedef struct { char *memory; uint64_t first, each; int threads; } Arena;

/* The first bytes of a piece of a stack. */
typedef union Piece {
    struct { union Piece *below; int is_released; } is;
    char rest[ALIGNMENT];
} Piece;

typedef struct { char *top, *end; Piece *last; } Stack;

typedef struct { uint64_t bytes; char rest[ALIGNMENT - 8]; } Header;

static pthread_mutex_t store_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the next */
static Header *kept[KEPT];

static __thread Stack stack; /* of the task that this thread runs; without an end: memory comes from the store */

/* Take the smallest kept block of at least `bytes`; without one, the largest, which is then too small. */
static Header *take(uint64_t bytes) {
    int best = -1;
    for (int i = 0; i < KEPT; ++i) {
        if (!kept[i]) continue;
        if (best < 0) { best = i; continue; }
        int fits = kept[i]->bytes >= bytes, best_fits = kept[best]->bytes >= bytes;
        if (fits == best_fits ? (kept[i]->bytes < kept[best]->bytes) == fits : fits) best = i;
    }
    if (best < 0) return NULL;
    Header *block = kept[best];
    kept[best] = NULL;
    return block;
}

/* Keep a block in place of an empty or smaller one; returns what is to be freed. */
static Header *keep(Header *block) {
    int least = 0;
    for (int i = 0; i < KEPT && kept[least]; ++i)
        if (!kept[i] || kept[i]->bytes < kept[least]->bytes) least = i;
    if (kept[least] && kept[least]->bytes >= block->bytes) return block;
    Header *out = kept[least];
    kept[least] = block;
    return out;
}

static void *push(uint64_t bytes) {
    uint64_t size = sizeof(Piece) + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (size > (uint64_t)(stack.end - stack.top)) return NULL;
    Piece *piece = (Piece *)stack.top;
    piece->is.below = stack.last;
    piece->is.is_released = 0;
    stack.last = piece;
    stack.top += size;
    return piece + 1;
}

static void pop(void *memory) {
    ((Piece *)memory - 1)->is.is_released = 1;
    for (; stack.last && stack.last->is.is_released; stack.last = stack.last->is.below) stack.top = (char *)stack.last;
}

static void *allocate(int device_type, int device_id, uint64_t bytes, int code, int bits) {
    (void)device_type, (void)device_id, (void)code, (void)bits;
    if (bytes > UINT64_MAX / 2) return NULL;
    if (stack.end) return push(bytes);
    pthread_mutex_lock(&store_mutex);
    Header *block = take(bytes);
    pthread_mutex_unlock(&store_mutex);
    if (!block || block->bytes < bytes) {
        void *memory = NULL;
        free(block);
        bytes = (bytes + sizeof(Header) + PAGE - 1) / PAGE * PAGE;
        if (posix_memalign(&memory, ALIGNMENT, bytes)) return NULL;
        block = (Header *)memory;
        block->bytes = bytes - sizeof(Header);
    }
    return block + 1;
}

static int release(int device_type, int device_id, void *memory) {
    (void)device_type, (void)device_id;
    if (stack.end) return pop(memory), 0;
    pthread_mutex_lock(&store_mutex);
    Header *surplus = keep((Header *)memory - 1);
    pthread_mutex_unlock(&store_mutex);
    free(surplus);
    return 0;
}
