// The instructions of a warpgroup: wgmma.
#include "fibers.h"

using namespace emulator;

void fence_proxy_async_shared__cta() {
  for (unsigned vector : self().hidden) my_block().hidden[vector] = false;
  self().hidden.clear();
}

namespace {

// A matrix descriptor ("Asynchronous Warpgroup Level Matrix Shared Memory Layout"): bits 0 to 13, 16 to 29 and 32 to 45
// are the start, the leading and the stride offset, in units of 16 bytes; 49 to 51 a base offset; 62 and 63 the swizzling.
struct Matrix {
  unsigned start, leading, stride, line;
  bool across;

  Matrix(uint64_t descriptor, bool across) : across(across) {
    auto field = [&](int bit) { return unsigned(descriptor >> bit & 0x3fff) << 4; };
    start = field(0), leading = field(16), stride = field(32);
    if (descriptor >> 49 & 7) fail("a base offset of a matrix is not emulated");
    if (descriptor >> 62 == 0) fail("a matrix without swizzling is not emulated");
    line = 256 >> (descriptor >> 62);
  }

  // Element k of a row of A, or of a column of B.
  float at(int position, int k, ToFloat to_float) const {
    unsigned address = start;
    if (across)
      address += 2 * position / line * leading + 2 * position % line + k % 8 * line + k / 8 * stride;
    else
      address += position / 8 * stride + position % 8 * line + 2 * k;
    address ^= (address >> 7 & (line / 16 - 1)) << 4;
    uint16_t bits;
    memcpy(&bits, at_shared(address, 2), 2);
    if (my_block().hidden[(address - shared_begin) / 16]) fail("tensor cores read what its copier has not made visible to them");
    return to_float(bits);
  }
};

// Thread t of a warpgroup has of rows 16 * (t / 32) + t % 32 / 4 and the one eight below, in every eight columns, columns
// 2 * (t % 4) and the next: elements 0 and 1, and of the lower row 2 and 3.
void carry_out(const Product& product) {
  Matrix a(product.a, product.a_across), b(product.b, product.b_across);
  static float of_a[64][16], of_b[256][16];
  for (int k = 0; k < 16; ++k) {
    for (int i = 0; i < 64; ++i) of_a[i][k] = a.at(i, k, product.to_float);
    for (int j = 0; j < product.columns; ++j) of_b[j][k] = b.at(j, k, product.to_float);
  }
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < product.columns; ++j) {
      int thread = i / 16 * 32 + i % 8 * 4 + j % 8 / 2, element = j / 8 * 4 + i % 16 / 8 * 2 + j % 2;
      float& sum = *product.sums[thread * product.columns / 2 + element];
      for (int k = 0; k < 16; ++k) sum += of_a[i][k] * of_b[j][k];
    }
  }
}

void begin_product(Fiber* const* lanes) {
  Product product = lanes[0]->product;
  for (int lane = 1; lane < kWarpgroup; ++lane) {
    const Product& other = lanes[lane]->product;
    if (other.a != product.a || other.b != product.b) fail("the warps of a warpgroup have different matrices");
    product.sums.insert(product.sums.end(), other.sums.begin(), other.sums.end());
  }
  if (late)
    lanes[0]->open_products.push_back(product);
  else
    carry_out(product);
}

void commit_products(Fiber* const* lanes) {
  lanes[0]->products.push_back(std::move(lanes[0]->open_products));
  lanes[0]->open_products.clear();
}

void wait_products(Fiber* const* lanes) {
  auto& groups = lanes[0]->products;
  while (groups.size() > size_t(lanes[0]->pending)) {
    for (const Product& product : groups.front()) carry_out(product);
    groups.pop_front();
  }
}

}  // namespace

void wgmma_fence_sync_aligned() { self().may_multiply = true; }

void emulator::multiply_shared(
    const char* name, int columns, ToFloat to_float, const std::vector<const void*>& operands) {
  Fiber& own = self();
  if (!own.may_multiply) fail("wgmma without wgmma.fence");
  size_t count = columns / 2;
  auto number = [&](int i) { return *static_cast<const int*>(operands[count + i]); };
  if (operands.size() != count + 7) fail("wgmma has other operands");
  if (!*static_cast<const bool*>(operands[count + 2]) || number(3) != 1 || number(4) != 1)
    fail("wgmma that does more than add products is not emulated");
  auto descriptor = [&](int i) { return *static_cast<const uint64_t*>(operands[count + i]); };
  own.product = {columns, to_float, descriptor(0), descriptor(1), number(5) != 0, number(6) != 0, {}};
  for (size_t i = 0; i < count; ++i)
    own.product.sums.push_back(const_cast<float*>(static_cast<const float*>(operands[i])));
  together<kWarpgroup>(name, begin_product);
}

void wgmma_commit_group_sync_aligned() { together<kWarpgroup>("wgmma.commit_group", commit_products); }

void wgmma_wait_group_sync_aligned(int pending) {
  self().pending = pending;
  together<kWarpgroup>("wgmma.wait_group", wait_products);
}
