// The instructions of a thread and of a warp: cp.async, ldmatrix, mma, cvt.
#include "fibers.h"

#include <algorithm>

using namespace emulator;

namespace {

void carry_out(const Copy& copy) {
  unsigned char* to = at_shared(copy.to, copy.bytes);
  memset(to, 0, copy.bytes);
  memcpy(to, copy.from, copy.source_bytes);
  my_block().hidden[(copy.to - shared_begin) / 16] = true;
  self().hidden.push_back((copy.to - shared_begin) / 16);
}

void copy_vector(unsigned to, const void* from, int bytes, int source_bytes) {
  if (bytes != 16 || source_bytes < 0 || source_bytes > bytes) fail("cp.async copies 16 bytes here");
  if (source_bytes && reinterpret_cast<uintptr_t>(from) % 16) fail("cp.async reads what is not aligned");
  Copy copy{to, from, bytes, source_bytes};
  at_shared(to, bytes);
  if (late)
    self().open.push_back(copy);
  else
    carry_out(copy);
}

}  // namespace

// By way of the L1 cache or past it: the same.
void cp_async_cg_shared_global(unsigned to, const void* from, int bytes, int source_bytes) {
  copy_vector(to, from, bytes, source_bytes);
}

void cp_async_ca_shared_global(unsigned to, const void* from, int bytes, int source_bytes) {
  copy_vector(to, from, bytes, source_bytes);
}

void ld_global_nc_v4_u32(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16) fail("ld.global.v4 reads what is not aligned");
  const unsigned* words = static_cast<const unsigned*>(from);
  r0 = words[0], r1 = words[1], r2 = words[2], r3 = words[3];
}

void cp_async_commit_group() {
  self().groups.push_back(std::move(self().open));
  self().open.clear();
}

void cp_async_wait_group(int pending) {
  auto& groups = self().groups;
  while (groups.size() > size_t(pending)) {
    for (const Copy& copy : groups.front()) carry_out(copy);
    groups.pop_front();
  }
}

namespace {

uint16_t shared_half(unsigned row, int column) {
  uint16_t value;
  memcpy(&value, at_shared(row, 16) + 2 * column, 2);
  return value;
}

// "ldmatrix": lanes 8i to 8i + 7 have the addresses of matrix i's rows. Lane l gets elements 2 * (l % 4) and the next of
// row l / 4; transposed, those of column l / 4.
template <bool transposed>
void load_matrices(Fiber* const* lanes) {
  for (int i = 0; i < 4; ++i) {
    unsigned banks = 0;  // in fours, as one row takes them
    for (int row = 0; row < 8; ++row) banks |= 1u << lanes[8 * i + row]->warp.address / 16 % 8;
    if (banks != 0xff) fail("rows of a matrix lie in the same banks of shared memory, and are read one by one");
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int i = 0; i < 4; ++i) {
      unsigned pair = 0;
      for (int e = 0; e < 2; ++e) {
        int along = lane % 4 * 2 + e, across = lane / 4;
        int row = transposed ? along : across, column = transposed ? across : along;
        pair |= unsigned(shared_half(lanes[8 * i + row]->warp.address, column)) << 16 * e;
      }
      *lanes[lane]->warp.to[i] = pair;
    }
  }
}

template <float (*to_float)(uint16_t)>
float element(uint32_t pair, int which) {
  return to_float(uint16_t(pair >> 16 * which));
}

template <int depth>
void add_products(Fiber* const* lanes, const float (*a)[depth], const float (*b)[8]) {
  for (int lane = 0; lane < kWarp; ++lane) {
    const Warp& own = lanes[lane]->warp;
    for (int i = 0; i < 4; ++i) {
      float sum = own.c[i];
      for (int k = 0; k < depth; ++k) sum += a[lane / 4 + 8 * (i / 2)][k] * b[k][lane % 4 * 2 + i % 2];
      *own.d[i] = sum;
    }
  }
}

// "mma.m16n8k16", 16-bit A and B, f32 C and D. With g = lane / 4 and t = lane % 4:
// A: register i, half e: row g + 8 * (i % 2), column 2t + e + 8 * (i / 2); B: register i, half e: row 2t + e + 8i,
// column g; C and D: element i: row g + 8 * (i / 2), column 2t + i % 2.
template <float (*to_float)(uint16_t)>
void multiply(Fiber* const* lanes) {
  static float a[16][16], b[16][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const Warp& own = lanes[lane]->warp;
    int g = lane / 4, t = lane % 4;
    for (int e = 0; e < 2; ++e) {
      for (int i = 0; i < 4; ++i) a[g + 8 * (i % 2)][2 * t + e + 8 * (i / 2)] = element<to_float>(own.a[i], e);
      for (int i = 0; i < 2; ++i) b[2 * t + e + 8 * i][g] = element<to_float>(own.b[i], e);
    }
  }
  add_products<16>(lanes, a, b);
}

float tf32(uint32_t bits) {
  if (bits & 0x1fff) fail("an operand has bits that TF32 lacks, and are ignored");
  return f32(bits);
}

// "mma.m16n8k8", TF32 A and B, f32 C and D. With g = lane / 4 and t = lane % 4:
// A: register i: row g + 8 * (i % 2), column t + 4 * (i / 2); B: register i: row t + 4i, column g; C and D as above.
void multiply_tf32(Fiber* const* lanes) {
  static float a[16][8], b[8][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    const Warp& own = lanes[lane]->warp;
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) a[g + 8 * (i % 2)][t + 4 * (i / 2)] = tf32(own.a[i]);
    for (int i = 0; i < 2; ++i) b[t + 4 * i][g] = tf32(own.b[i]);
  }
  add_products<8>(lanes, a, b);
}

}  // namespace

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned row) {
  Warp& own = self().warp;
  own.address = row;
  unsigned* to[] = {&r0, &r1, &r2, &r3};
  std::copy(to, to + 4, own.to);
  together("ldmatrix", load_matrices<false>);
}

void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
    unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned row) {
  Warp& own = self().warp;
  own.address = row;
  unsigned* to[] = {&r0, &r1, &r2, &r3};
  std::copy(to, to + 4, own.to);
  together("ldmatrix.trans", load_matrices<true>);
}

#define MMA(shape, type, execute)                                                                              \
  void mma_sync_aligned_##shape##_row_col_f32_##type##_##type##_f32(                                           \
      float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,          \
      unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {                                      \
    Warp& own = self().warp;                                                                                   \
    float* d[] = {&d0, &d1, &d2, &d3};                                                                         \
    std::copy(d, d + 4, own.d);                                                                                \
    uint32_t a[] = {a0, a1, a2, a3}, b[] = {b0, b1};                                                           \
    float c[] = {c0, c1, c2, c3};                                                                              \
    std::copy(a, a + 4, own.a);                                                                                \
    std::copy(b, b + 2, own.b);                                                                                \
    std::copy(c, c + 4, own.c);                                                                                \
    together("mma." #type, execute);                                                                           \
  }
MMA(m16n8k16, f16, multiply<f16_to>)
MMA(m16n8k16, bf16, multiply<bf16_to>)
MMA(m16n8k8, tf32, multiply_tf32)

namespace {

// To the nearest; of two, up where `half` is half a unit, and else down. TF32 has f32's exponents, and 13 bits less.
uint32_t to_tf32(float a, uint32_t half) {
  uint32_t bits = bits_of(a);
  return std::isfinite(a) ? (bits + half) & ~0x1fffu : a == a ? bits : 0x7fffe000u;
}

}  // namespace

// "cvt.rna": ties away from zero. "cvt.rn": ties to even.
void cvt_rna_tf32_f32(unsigned& d, float a) { d = to_tf32(a, 0x1000); }
void cvt_rn_tf32_f32(unsigned& d, float a) { d = to_tf32(a, 0xfff + (bits_of(a) >> 13 & 1)); }
