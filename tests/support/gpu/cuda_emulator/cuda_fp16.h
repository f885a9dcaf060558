// Stands in for CUDA's header of the same name: f16 with the arithmetic that generated code uses.
#pragma once
#include "narrow.h"

using half = narrow<emulator::f16_from, emulator::f16_to>;
using __half = half;
using half2 = narrow_pair<half>;
using __half2 = half2;

inline float __half2float(half value) { return value; }
inline half __float2half(float value) { return value; }
inline half __float2half_rn(float value) { return value; }
