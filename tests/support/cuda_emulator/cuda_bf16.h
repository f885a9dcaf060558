// Stands in for CUDA's header of the same name: bf16 with the arithmetic that generated code uses.
#pragma once
#include "emulator.h"

struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() = default;
  nv_bfloat16(float value) : bits(emulator::bf16_from(value)) {}
  nv_bfloat16(double value) : nv_bfloat16(static_cast<float>(value)) {}
  nv_bfloat16(int value) : nv_bfloat16(static_cast<float>(value)) {}
  operator float() const { return emulator::bf16_to(bits); }
};
using __nv_bfloat16 = nv_bfloat16;
struct nv_bfloat162 {
  nv_bfloat16 x, y;
  nv_bfloat162() = default;
  nv_bfloat162(nv_bfloat16 x, nv_bfloat16 y) : x(x), y(y) {}
};
using __nv_bfloat162 = nv_bfloat162;

inline float __bfloat162float(nv_bfloat16 value) { return value; }
inline nv_bfloat16 __float2bfloat16(float value) { return nv_bfloat16(value); }
inline nv_bfloat16 __float2bfloat16_rn(float value) { return nv_bfloat16(value); }
inline bool __hgt(nv_bfloat16 a, nv_bfloat16 b) { return float(a) > float(b); }
inline bool __hlt(nv_bfloat16 a, nv_bfloat16 b) { return float(a) < float(b); }
