// A GPU for tests: runs the CUDA C++ of a kernel on a CPU, one block, or cluster of blocks, after the other.
//
// The threads of a cluster are fibers. They run one at a time, in an order that the caller chooses, each until it waits at
// a barrier or for its warp, and each warp, and warpgroup, as far as it comes alone; so a missing barrier gives a
// wrong result in at least one order. Copies by cp.async take effect as late as PTX allows (at the wait), or at once, as
// the caller chooses: a missing wait, or a tile that is overwritten too early, gives a wrong result in one of the two. So
// do products by wgmma, and copies by TMA; and products must not read what a thread has copied without a proxy fence.
// Shared memory begins as NaN, at an address that is aligned as its declaration says and no better, and lies between
// guarded bytes; every access by an instruction is checked for its bounds and its alignment, and those of ldmatrix for
// conflicts of banks.
//
// Instructions are named as PTX names them, with _ for each character that C++ has no name for, and do what the PTX
// manual says ("Warp-level matrix instructions", "Asynchronous warpgroup level matrix instructions", "Data movement and
// conversion instructions: asynchronous copy").
#pragma once
#include "../tensor_map.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct dim3 {
  unsigned x, y, z;
};

template <typename T, unsigned N>
struct __attribute__((aligned(N * sizeof(T) > 16 ? 16 : N * sizeof(T)))) vector_of;
template <typename T>
struct __attribute__((aligned(2 * sizeof(T)))) vector_of<T, 2> {
  T x, y;
};
template <typename T>
struct __attribute__((aligned(4 * sizeof(T)))) vector_of<T, 4> {
  T x, y, z, w;
};
using float2 = vector_of<float, 2>;
using float4 = vector_of<float, 4>;
using int2 = vector_of<int, 2>;
using int4 = vector_of<int, 4>;
using uint2 = vector_of<unsigned, 2>;
using uint4 = vector_of<unsigned, 4>;
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
template <typename T>
T max(T a, T b) { return a < b ? b : a; }
template <typename T>
T min(T a, T b) { return b < a ? b : a; }

extern dim3 threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads();
size_t __cvta_generic_to_shared(const void* pointer);

namespace emulator {

[[noreturn]] void fail(const char* what);
void* shared(unsigned alignment);  // dynamic shared memory of the block that runs, aligned to so many bytes and no more

inline float f32(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float bf16_to(uint16_t bits) { return f32(uint32_t(bits) << 16); }
inline uint16_t bf16_from(float value) {
  uint32_t bits = bits_of(value);
  if (value != value) return 0x7fff;
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to the nearest, ties to even
}
inline float f16_to(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                    : exponent     ? std::ldexp(float(fraction + 1024), exponent - 25)
                                   : std::ldexp(float(fraction), -24);
  return bits >> 15 ? -magnitude : magnitude;
}
inline uint16_t f16_from(float value) {
  uint16_t sign = bits_of(value) >> 31 << 15;
  float magnitude = std::fabs(value);
  if (value != value) return 0x7fff;
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  int exponent;
  std::frexp(magnitude, &exponent);
  int unit = max(exponent - 11, -24);  // of the last place
  float rounded = std::nearbyint(std::ldexp(magnitude, -unit));  // ties to even
  if (unit == -24) return sign | uint16_t(rounded);
  return sign | uint16_t(((unit + 24) << 10) + int(rounded));
}

}  // namespace emulator

// PTX: one function for each instruction that generated code uses; operands are in the order of the instruction's text.
void cp_async_ca_shared_global(unsigned to, const void* from, int bytes, int source_bytes);
void cp_async_cg_shared_global(unsigned to, const void* from, int bytes, int source_bytes);
void ld_global_nc_v4_u32(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* from);
inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}
void cp_async_commit_group();
void cp_async_wait_group(int pending);
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned row);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
    unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned row);
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(
    float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
    unsigned b1, float c0, float c1, float c2, float c3);
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
    float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
    unsigned b1, float c0, float c1, float c2, float c3);
void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(
    float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
    unsigned b1, float c0, float c1, float c2, float c3);
void cvt_rna_tf32_f32(unsigned& d, float a);
void cvt_rn_tf32_f32(unsigned& d, float a);
void fence_proxy_async_shared__cta();
void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(int pending);
inline void setp_ne_b32(bool& p, int a, int b) { p = a != b; }

// The sink of PTX, for what nobody asks.
static int _;
inline void selp_b32(unsigned& d, unsigned a, unsigned b, bool p) { d = p ? a : b; }
void mbarrier_init_shared__cta_b64(unsigned address, int count);
void fence_mbarrier_init_release_cluster();
void mbarrier_arrive_expect_tx_shared__cta_b64(int, unsigned address, int bytes);
void mbarrier_arrive_shared__cta_b64(int, unsigned address);
void mapa_shared__cluster_u32(unsigned& there, unsigned address, int block);
void mbarrier_arrive_shared__cluster_b64(int, unsigned there);
void mbarrier_try_wait_parity_shared__cta_b64(bool& ended, unsigned address, int parity);
void ld_shared__cluster_f32(float& d, unsigned there);
void ld_shared__cluster_v4_f32(float& d0, float& d1, float& d2, float& d3, unsigned there);
void barrier_cluster_arrive_release_aligned();
void barrier_cluster_wait_acquire_aligned();

namespace emulator {

static_assert(sizeof(TensorMap) <= 128, "the room that CUDA gives it");
void copy_tensor(const void* map, unsigned to, const std::vector<int>& numbers, unsigned barrier,
                 const std::vector<int>& offsets, int to_blocks);

template <int rank, bool pixels, bool multicast, class... Numbers>
void copy_tensor_numbers(unsigned to, const void* map, Numbers... values) {
  std::vector<int> all = {int(values)...};
  auto from = [&](int begin, int count) { return std::vector<int>(all.begin() + begin, all.begin() + begin + count); };
  constexpr int offsets = pixels ? rank - 2 : 0;
  static_assert(sizeof...(values) == rank + 1 + offsets + multicast, "another number of operands");
  copy_tensor(map, to, from(0, rank), all[rank], from(rank + 1, offsets), multicast ? all.back() : 0);
}

using ToFloat = float (*)(uint16_t);
// Operands: the sums, the descriptors of A and B, the predicate, and four immediate numbers.
void multiply_shared(const char* name, int columns, ToFloat to_float, const std::vector<const void*>& operands);
}  // namespace emulator

#define WGMMA(columns, type)                                                                             \
  template <class... Operands>                                                                           \
  void wgmma_mma_async_sync_aligned_m64n##columns##k16_f32_##type##_##type(Operands&&... operands) {     \
    emulator::multiply_shared("wgmma." #columns #type, columns, emulator::type##_to, {(&operands)...});  \
  }
#define WGMMA_OF_TYPE(type) \
  WGMMA(16, type) WGMMA(32, type) WGMMA(64, type) WGMMA(128, type) WGMMA(256, type)
WGMMA_OF_TYPE(f16)
WGMMA_OF_TYPE(bf16)

#define TMA_COPY(rank, kind, pixels)                                                                                   \
  template <class... Numbers>                                                                                          \
  void cp_async_bulk_tensor_##rank##d_shared__cluster_global##kind##_mbarrier__complete_tx__bytes(                     \
      unsigned to, const void* map, Numbers... numbers) {                                                              \
    emulator::copy_tensor_numbers<rank, pixels, false>(to, map, numbers...);                                           \
  }                                                                                                                    \
  template <class... Numbers>                                                                                          \
  void cp_async_bulk_tensor_##rank##d_shared__cluster_global##kind##_mbarrier__complete_tx__bytes_multicast__cluster(  \
      unsigned to, const void* map, Numbers... numbers) {                                                              \
    emulator::copy_tensor_numbers<rank, pixels, true>(to, map, numbers...);                                            \
  }
TMA_COPY(2, , false)
TMA_COPY(3, , false)
TMA_COPY(4, , false)
TMA_COPY(5, , false)
TMA_COPY(3, _im2col, true)
TMA_COPY(4, _im2col, true)
TMA_COPY(5, _im2col, true)
