/* A thread's floating-point modes: what it does with tiny numbers, and how it rounds.
 *
 * Only what decides on results: a thread keeps its flags, and its own choice of what raises a signal. */
#include <stdint.h>

#if defined __x86_64__
#define MODES UINT64_C(0xE040) /* of MXCSR: flush to zero, rounding, denormals are zero */

static uint64_t floating_point(void) { return __builtin_ia32_stmxcsr(); }

static void set_floating_point(uint64_t word) { __builtin_ia32_ldmxcsr((unsigned)word); }
#elif defined __aarch64__
#define MODES UINT64_C(0x7C80007) /* of FPCR: AHP, DN, FZ, RMode, FZ16, NEP, AH, FIZ */

static uint64_t floating_point(void) {
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}

static void set_floating_point(uint64_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
#define MODES UINT64_C(0)

static uint64_t floating_point(void) { return 0; }

static void set_floating_point(uint64_t word) { (void)word; }
#endif

static void take_over(uint64_t modes) {
    uint64_t word = floating_point();
    if ((word & MODES) != modes) set_floating_point((word & ~MODES) | modes);
}
