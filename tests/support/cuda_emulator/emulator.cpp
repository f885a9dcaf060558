// Blocks, threads, shared memory and tensors; tests/support/gpu.py writes the program's main.
#include "fibers.h"

#include <algorithm>
#include <fstream>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

std::vector<std::unique_ptr<Fiber>> fibers;
size_t threads = 0, current = 0, shared_begin = 0;
bool late = true;
std::vector<bool> hidden;

namespace {

constexpr size_t kGuard = 4096;
constexpr unsigned char kGuardByte = 0xa5;

ucontext_t scheduler;
const std::function<void()>* kernel = nullptr;
bool backward = false;
std::vector<unsigned char> memory;  // shared, between two guards
size_t shared_bytes = 0;

void run_fiber() {
  threadIdx = self().index;
  (*kernel)();
  self().state = State::kDone;
  swapcontext(&self().context, &scheduler);
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
    static_cast<Work&>(fiber) = Work();
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

void pause(State state) {
  self().state = state;
  swapcontext(&self().context, &scheduler);
  threadIdx = self().index;
}

unsigned char* at_shared(unsigned address, size_t bytes) {
  if (address % bytes) fail("an address of shared memory is not aligned");
  if (address < shared_begin || address + bytes > shared_begin + shared_bytes)
    fail("an instruction reaches beyond shared memory");
  return memory.data() + kGuard + (address - shared_begin);
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
