/* What an x86 CPU can do, by cpuid: older C compilers' __builtin_cpu_supports does not know all of it. */
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };
enum { OSXSAVE = 27, AVX_STATE = 0x06, AVX512_STATE = 0xe6 };

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
