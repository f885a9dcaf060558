// Stands in for CUDA's header of the same name: bf16 with the arithmetic that generated code uses.
#pragma once
#include "narrow.h"

using nv_bfloat16 = narrow<emulator::bf16_from, emulator::bf16_to>;
using __nv_bfloat16 = nv_bfloat16;
using nv_bfloat162 = narrow_pair<nv_bfloat16>;
using __nv_bfloat162 = nv_bfloat162;

inline float __bfloat162float(nv_bfloat16 value) { return value; }
inline nv_bfloat16 __float2bfloat16(float value) { return value; }
inline nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
