// Stands in for CUDA's header of the same name: f16 with the arithmetic that generated code uses.
#pragma once
#include "emulator.h"

struct half {
  uint16_t bits;
  half() = default;
  half(float value) : bits(emulator::f16_from(value)) {}
  half(double value) : half(static_cast<float>(value)) {}
  half(int value) : half(static_cast<float>(value)) {}
  operator float() const { return emulator::f16_to(bits); }
};
using __half = half;
struct half2 {
  half x, y;
  half2() = default;
  half2(half x, half y) : x(x), y(y) {}
};
using __half2 = half2;

inline float __half2float(half value) { return value; }
inline half __float2half(float value) { return half(value); }
inline half __float2half_rn(float value) { return half(value); }
inline bool __hgt(half a, half b) { return float(a) > float(b); }
inline bool __hlt(half a, half b) { return float(a) < float(b); }
