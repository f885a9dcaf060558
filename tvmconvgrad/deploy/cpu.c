/* What an x86 CPU can do, by cpuid: older C compilers' __builtin_cpu_supports does not know all of it. */
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };
enum { OSXSAVE = 27, AVX_STATE = 0x06, AVX512_STATE = 0xe6, TILE_STATE = 0x60000 };
enum { ARCH_PRCTL = 158, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 }; /* Linux's */

static int has(unsigned leaf, unsigned subleaf, int word, int bit) {
    unsigned words[4] = {0, 0, 0, 0};
    if (!__get_cpuid_count(leaf, subleaf, &words[EAX], &words[EBX], &words[ECX], &words[EDX])) return 0;
    return (int)(words[word] >> bit & 1);
}

/* Whether the operating system saves these parts of the registers. */
static int keeps(unsigned state) {
    unsigned low, high;
    if (!has(1, 0, ECX, OSXSAVE)) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & state) == state;
}

/* Whether the operating system saves tile registers and lets this process use them: Linux must be asked. */
static inline int may_use_tiles(void) {
#ifdef __linux__
    long status = ARCH_PRCTL;
    if (!keeps(TILE_STATE)) return 0;
    __asm__ volatile("syscall"
                     : "+a"(status)
                     : "D"((long)ARCH_REQ_XCOMP_PERM), "S"((long)XFEATURE_XTILEDATA)
                     : "rcx", "r11", "memory");
    return status == 0;
#else
    return 0;
#endif
}
