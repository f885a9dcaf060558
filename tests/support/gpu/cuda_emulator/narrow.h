// What the 16-bit types of CUDA's headers have in common: arithmetic in f32, as generated code uses them.
#pragma once
#include "emulator.h"

template <uint16_t from_f32(float), float to_f32(uint16_t)>
struct narrow {
  uint16_t bits;
  narrow() = default;
  narrow(float value) : bits(from_f32(value)) {}
  narrow(double value) : narrow(static_cast<float>(value)) {}
  narrow(int value) : narrow(static_cast<float>(value)) {}
  operator float() const { return to_f32(bits); }
  friend bool __hgt(narrow a, narrow b) { return float(a) > float(b); }
  friend bool __hlt(narrow a, narrow b) { return float(a) < float(b); }
};
template <typename T>
struct narrow_pair {
  T x, y;
  narrow_pair() = default;
  narrow_pair(T x, T y) : x(x), y(y) {}
};
