/* Huge pages for the memory in which XLA computes.
 *
 * An XLA program takes one block of memory for all its intermediate arrays, a new one in each call, and our kernels'
 * results are parts of it. Linux gives new memory page by page, when a page is first written: a training step of
 * MobileNetV2 (benchmarks/frameworks/jax_training.py, a virtual Zen 4) spent 116 of its 266 ms on 318 MB in pages of
 * 4 KiB, and 26 of 160 once the first of our kernels asks for huge ones. NumPy asks for its arrays, too. It is a hint,
 * which changes nothing where huge pages are never used (/sys/kernel/mm/transparent_hugepage/enabled).
 */
#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef MADV_HUGEPAGE
enum { HUGE_PAGE = 1 << 21 };

/* procmap_query of linux/fs.h, from Linux 6.11 on: what /proc/self/maps says of the mapping that has an address. */
typedef struct {
    uint64_t size, query_flags, query_address, begin, end, flags, page_size, offset, inode;
    uint32_t device_major, device_minor, name_size, build_id_size;
    uint64_t name, build_id;
} Mapping;
#define QUERY_MAPPING _IOWR('f', 17, Mapping)
enum { WRITABLE = 2, SHARED = 8 };

/* The mapping that has an address, if it is neither a file's nor the heap, which has a name; else one without bytes. */
static Mapping mapping_of(const void *memory) {
    char name[8];
    Mapping found = {
        .size = sizeof found, .query_flags = WRITABLE, .query_address = (uintptr_t)memory,
        .name_size = sizeof name, .name = (uintptr_t)name,
    };
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    int is_found = file >= 0 && !ioctl(file, QUERY_MAPPING, &found);
    if (file >= 0) close(file);
    if (!is_found || found.inode || found.name_size || (found.flags & SHARED)) found.begin = found.end = 0;
    return found;
}

/* How the C library (glibc) begins a large block, which is a mapping of its own. */
typedef struct { uint64_t before, size; } Chunk;
enum { IS_MAPPED = 2, FLAGS = 7, PAGE = 4096, NEIGHBOURS = 64 };

/* The block of the C library that has an address. Linux makes one mapping of neighbours, of which others may be
 * somebody's whose memory is to stay as it is: so it is looked for from the beginning, block by block. They are read as
 * a file, since another thread may give one back meanwhile. Without bytes where there is none: other allocators. */
static Mapping block_of(const void *memory) {
    Mapping block = mapping_of(memory);
    uint64_t end = block.end;
    int file = block.end ? open("/proc/self/mem", O_RDONLY | O_CLOEXEC) : -1;
    for (int i = 0; file >= 0 && i < NEIGHBOURS; ++i) {
        Chunk chunk;
        if (pread(file, &chunk, sizeof chunk, (off_t)block.begin) != sizeof chunk) break;
        uint64_t bytes = chunk.size & ~(uint64_t)FLAGS;
        if ((chunk.size & FLAGS) != IS_MAPPED || !bytes || bytes % PAGE || bytes > end - block.begin) break;
        block.end = block.begin + bytes;
        if ((uintptr_t)memory < block.end) {
            close(file);
            return block;
        }
        block.begin = block.end;
    }
    if (file >= 0) close(file);
    block.begin = block.end = 0;
    return block;
}

/* Whether nothing has been written to memory yet, by a page amidst it. */
static int is_new(const void *memory, int64_t bytes) {
    unsigned char is_there = 1;
    uint64_t page = ((uintptr_t)memory + bytes / 2) / PAGE * PAGE;
    return !mincore((void *)(uintptr_t)page, 1, &is_there) && !(is_there & 1);
}

/* For the whole block of memory in which a large result lies; where that is not known, for the result. It takes 9
 * microseconds, and less than one where the memory has been written to before. */
static void use_huge_pages(const void *result, int64_t bytes) {
    if (bytes < 2 * HUGE_PAGE || !is_new(result, bytes)) return;
    Mapping block = block_of(result);
    uint64_t begin = ((uintptr_t)result + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uint64_t end = ((uintptr_t)result + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (block.end) begin = block.begin, end = block.end;
    madvise((void *)(uintptr_t)begin, end - begin, MADV_HUGEPAGE);
}
#else
static void use_huge_pages(const void *result, int64_t bytes) { (void)result, (void)bytes; }
#endif
