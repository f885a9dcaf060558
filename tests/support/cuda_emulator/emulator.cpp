// Implementation of emulator.h, with the program's main: see tests/support/gpu.py for what it reads and writes.
#include "emulator.h"

#include <algorithm>
#include <deque>
#include <fstream>
#include <memory>
#include <ucontext.h>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {
namespace {

constexpr int kWarp = 32, kGroup = 128;
constexpr size_t kStack = 128 << 10;
constexpr size_t kGuard = 4096;
constexpr unsigned char kGuardByte = 0xa5;

struct Copy {
  unsigned to;
  const void* from;
  int bytes, source_bytes;
};

enum class State { kReady, kBarrier, kWarp, kDone };

// What a thread brings to an instruction that its whole warp executes together.
struct Warp {
  const char* name = nullptr;
  unsigned address = 0;
  unsigned* to[4] = {};
  uint32_t a[4] = {}, b[2] = {};
  float c[4] = {};
  float* d[4] = {};
};

// Products that a group of four warps has begun.
struct Product {
  int columns = 0;
  ToFloat to_float = nullptr;
  uint64_t a = 0, b = 0;
  bool a_across = false, b_across = false;  // whether neighbours in memory are rows, or columns, and not summed elements
  std::vector<float*> sums;                 // of each thread, one after the other
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  State state = State::kReady;
  dim3 index{};
  std::deque<std::vector<Copy>> groups;  // closed groups of copies that have not been carried out
  std::vector<Copy> open;
  std::vector<unsigned> hidden;  // vectors that its copies have brought, and tensor cores do not see yet
  Warp warp;
  int turns = 0;  // how many instructions of the warp it has executed
  Product product;
  bool may_multiply = false;                  // since wgmma.fence
  std::deque<std::vector<Product>> products;  // of the first thread of a group: closed groups that are under way
  std::vector<Product> open_products;
  int pending = 0;
};

std::vector<std::unique_ptr<Fiber>> fibers;
size_t threads = 0, current = 0;
ucontext_t scheduler;
const std::function<void()>* kernel = nullptr;
bool backward = false, late = true;
std::vector<unsigned char> memory;  // shared, between two guards
size_t shared_bytes = 0, shared_begin = 0;
std::vector<bool> hidden;  // of each vector of shared memory: whether a copy has brought it, and tensor cores do not see it

Fiber& self() { return *fibers[current]; }

void pause(State state) {
  self().state = state;
  swapcontext(&self().context, &scheduler);
  threadIdx = self().index;
}

void run_fiber() {
  threadIdx = self().index;
  (*kernel)();
  self().state = State::kDone;
  swapcontext(&self().context, &scheduler);
}

unsigned char* at_shared(unsigned address, size_t bytes) {
  if (address % bytes) fail("an address of shared memory is not aligned");
  if (address < shared_begin) fail("an instruction reaches beyond shared memory");
  address -= shared_begin;
  if (address + bytes > shared_bytes) fail("an instruction reaches beyond shared memory");
  return memory.data() + kGuard + address;
}

void carry_out(const Copy& copy) {
  unsigned char* to = at_shared(copy.to, copy.bytes);
  memset(to, 0, copy.bytes);
  memcpy(to, copy.from, copy.source_bytes);
  hidden[(copy.to - shared_begin) / 16] = true;
  self().hidden.push_back((copy.to - shared_begin) / 16);
}

// Waits until all lanes of the warp (or of a group of four) are at the same instruction; the last to come executes it for all.
template <int size = kWarp>
void together(const char* name, void (*execute)(Fiber* const* lanes)) {
  Fiber& mine = self();
  mine.warp.name = name;
  mine.turns++;
  size_t first = current / size * size;
  if (first + size > threads) fail("a warp is not whole");
  Fiber* lanes[size];
  bool complete = true;
  for (int lane = 0; lane < size; ++lane) {
    lanes[lane] = fibers[first + lane].get();
    bool waits = lanes[lane] == &mine || lanes[lane]->state == State::kWarp;
    complete = complete && waits && lanes[lane]->turns == mine.turns;
  }
  if (!complete) return pause(State::kWarp);
  for (Fiber* lane : lanes)
    if (strcmp(lane->warp.name, name)) fail("the lanes of a warp are at different instructions");
  execute(lanes);
  for (Fiber* lane : lanes)
    if (lane != &mine) lane->state = State::kReady;
}

// Runs some threads, `size` at a time as far as they come without the others: first groups of warps, of these warps, of
// these threads.
bool run_ready(size_t first, size_t count, int size) {
  bool any = false;
  for (size_t i = 0; i < count; i += size) {
    size_t begin = first + (backward ? (count - 1 - i) / size * size : i);
    if (size > 1) {
      while (run_ready(begin, std::min(count - (begin - first), size_t(size)), size == kGroup ? kWarp : 1)) any = true;
    } else if (current = begin, self().state == State::kReady) {
      any = true;
      swapcontext(&scheduler, &self().context);
    }
  }
  return any;
}

size_t count(State state) {
  size_t found = 0;
  for (size_t i = 0; i < threads; ++i) found += fibers[i]->state == state;
  return found;
}

void run_block() {
  std::fill(memory.begin(), memory.end(), 0xff);  // NaN in every type
  hidden.assign(shared_bytes / 16 + 1, false);
  std::fill(memory.begin(), memory.begin() + kGuard, kGuardByte);
  std::fill(memory.end() - kGuard, memory.end(), kGuardByte);
  for (size_t i = 0; i < threads; ++i) {
    Fiber& fiber = *fibers[i];
    fiber.state = State::kReady;
    fiber.turns = 0;
    fiber.groups.clear();
    fiber.open.clear();
    fiber.hidden.clear();
    fiber.may_multiply = false;
    fiber.products.clear();
    fiber.open_products.clear();
    fiber.index = {unsigned(i % blockDim.x), unsigned(i / blockDim.x % blockDim.y),
                   unsigned(i / blockDim.x / blockDim.y)};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  while (true) {
    if (run_ready(0, threads, kGroup)) continue;
    if (count(State::kDone) == threads) break;
    if (count(State::kBarrier) + count(State::kDone) < threads) fail("a warp waits for lanes that never come");
    if (count(State::kDone)) fail("some threads have ended, and others wait at a barrier");
    for (size_t i = 0; i < threads; ++i) fibers[i]->state = State::kReady;
  }
  for (size_t i = 0; i < kGuard; ++i)
    if (memory[i] != kGuardByte || memory[memory.size() - 1 - i] != kGuardByte)
      fail("something was written beside shared memory");
}

}  // namespace

void fail(const char* what) {
  fprintf(stderr, "%s: thread (%u, %u, %u) of block (%u, %u, %u)\n", what, threadIdx.x, threadIdx.y, threadIdx.z,
          blockIdx.x, blockIdx.y, blockIdx.z);
  exit(3);
}

void* shared(unsigned alignment) {
  shared_begin = 1024 + alignment;
  return memory.data() + kGuard;
}

void launch(dim3 grid, dim3 block, size_t bytes, const std::function<void()>& body) {
  gridDim = grid;
  blockDim = block;
  kernel = &body;
  threads = size_t(block.x) * block.y * block.z;
  shared_bytes = bytes;
  memory.resize(bytes + 2 * kGuard);
  while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
  size_t blocks = size_t(grid.x) * grid.y * grid.z;
  for (size_t i = 0; i < blocks; ++i) {
    size_t at = backward ? blocks - 1 - i : i;
    blockIdx = {unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)};
    run_block();
  }
}

void choose(bool runs_backward, bool copies_late) {
  backward = runs_backward;
  late = copies_late;
}

// A tensor with the bytes of a file, or, where there is none, NaN. Beyond its end the address sanitizer watches.
char* tensor(const char* name, size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes)) fail("there is no memory");
  memset(memory, 0xff, bytes);
  if (strcmp(name, "out")) std::ifstream(name, std::ios::binary).read(static_cast<char*>(memory), bytes);
  return static_cast<char*>(memory);
}

void write(const char* name, const char* bytes, size_t size) { std::ofstream(name, std::ios::binary).write(bytes, size); }

}  // namespace emulator

using namespace emulator;

void __syncthreads() { pause(State::kBarrier); }

size_t __cvta_generic_to_shared(const void* pointer) {
  auto* byte = static_cast<const unsigned char*>(pointer);
  if (byte < memory.data() + kGuard || byte > memory.data() + memory.size() - kGuard)
    fail("an address is not one of shared memory");
  return byte - (memory.data() + kGuard) + shared_begin;
}

void cp_async_cg_shared_global(unsigned to, const void* from, int bytes, int source_bytes) {
  if (bytes != 16 || source_bytes < 0 || source_bytes > bytes) fail("cp.async.cg copies 16 bytes");
  if (source_bytes && reinterpret_cast<uintptr_t>(from) % 16) fail("cp.async reads what is not aligned");
  Copy copy{to, from, bytes, source_bytes};
  at_shared(to, bytes);
  if (late)
    self().open.push_back(copy);
  else
    carry_out(copy);
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

void fence_proxy_async_shared__cta() {
  for (unsigned vector : self().hidden) hidden[vector] = false;
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
    if (hidden[(address - shared_begin) / 16]) fail("tensor cores read what its copier has not made visible to them");
    return to_float(bits);
  }
};

// Thread t of a group has of rows 16 * (t / 32) + t % 32 / 4 and the one eight below, in every eight columns, columns
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
  for (int lane = 1; lane < kGroup; ++lane) {
    const Product& other = lanes[lane]->product;
    if (other.a != product.a || other.b != product.b) fail("the warps of a group have different matrices");
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
  together<kGroup>(name, begin_product);
}

void wgmma_commit_group_sync_aligned() { together<kGroup>("wgmma.commit_group", commit_products); }

void wgmma_wait_group_sync_aligned(int pending) {
  self().pending = pending;
  together<kGroup>("wgmma.wait_group", wait_products);
}
