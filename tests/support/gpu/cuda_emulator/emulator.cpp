// Clusters, blocks, threads, shared memory and tensors; tests/support/gpu/emulator.py writes the program's main.
#include "fibers.h"

#include <algorithm>
#include <fstream>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Block> blocks;
size_t threads = 0, current = 0, shared_begin = 0, cluster = 1;
bool late = true;
std::deque<std::function<void()>> tma_copies;

namespace {

constexpr size_t kGuard = 4096;
constexpr unsigned char kGuardByte = 0xa5;

ucontext_t scheduler;
const std::function<void()>* kernel = nullptr;
bool backward = false;
size_t shared_bytes = 0;

void begin_turn() {
  threadIdx = self().index;
  blockIdx = self().block;
}

void run_fiber() {
  begin_turn();
  (*kernel)();
  self().state = State::kDone;
  swapcontext(&self().context, &scheduler);
}

// Runs some threads, `size` at a time as far as they come without the others: first warpgroups, of these warps, of
// these threads.
bool run_ready(size_t first, size_t count, int size) {
  bool any = false;
  for (size_t i = 0; i < count; i += size) {
    size_t begin = first + (backward ? (count - 1 - i) / size * size : i);
    if (size > 1) {
      while (run_ready(begin, std::min(count - (begin - first), size_t(size)), size == kWarpgroup ? kWarp : 1)) any = true;
    } else if (current = begin, self().state == State::kReady) {
      any = true;
      swapcontext(&scheduler, &self().context);
    }
  }
  return any;
}

// How many threads of some blocks are in a state.
size_t count(State state, size_t block = 0, size_t blocks = cluster) {
  size_t found = 0;
  for (size_t i = block * threads; i < (block + blocks) * threads; ++i) found += fibers[i]->state == state;
  return found;
}

bool release(State state, size_t block, size_t blocks) {
  if (count(state, block, blocks) < blocks * threads) return false;
  for (size_t i = block * threads; i < (block + blocks) * threads; ++i) fibers[i]->state = State::kReady;
  return true;
}

// Where no block can go on alone: all of the cluster have come to a barrier, or a copy has to come first.
bool release_some() {
  if (release(State::kCluster, 0, cluster)) return true;
  if (tma_copies.empty()) return false;
  auto copy = std::move(tma_copies.front());
  tma_copies.pop_front();
  copy();
  return true;
}

void clear(Block& block) {
  block.memory.assign(shared_bytes + 2 * kGuard, 0xff);  // NaN in every type
  block.hidden.assign(shared_bytes / 16 + 1, false);
  block.barriers.clear();
  std::fill(block.memory.begin(), block.memory.begin() + kGuard, kGuardByte);
  std::fill(block.memory.end() - kGuard, block.memory.end(), kGuardByte);
}

void run_cluster(size_t first) {
  for (Block& block : blocks) clear(block);
  for (size_t i = 0; i < cluster * threads; ++i) {
    Fiber& fiber = *fibers[i];
    static_cast<Work&>(fiber) = Work();
    size_t at = i % threads, block = first + i / threads;
    fiber.index = {unsigned(at % blockDim.x), unsigned(at / blockDim.x % blockDim.y),
                   unsigned(at / blockDim.x / blockDim.y)};
    fiber.block = {unsigned(block % gridDim.x), unsigned(block / gridDim.x % gridDim.y),
                   unsigned(block / gridDim.x / gridDim.y)};
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  while (true) {
    bool any = false;
    for (size_t i = 0; i < cluster; ++i) {
      size_t block = backward ? cluster - 1 - i : i;
      while (run_ready(block * threads, threads, kWarpgroup) || release(State::kBlock, block, 1)) any = true;
    }
    if (any) continue;
    if (count(State::kDone) == cluster * threads) break;
    if (release_some()) continue;
    if (count(State::kBarrier)) fail("threads wait at a barrier in shared memory for what never comes");
    if (count(State::kWarp)) fail("a warp waits for lanes that never come");
    fail("some threads have ended, and others wait at a barrier");
  }
  if (!tma_copies.empty()) fail("a block has ended before its copies have come");
  for (const Block& block : blocks)
    for (size_t i = 0; i < kGuard; ++i)
      if (block.memory[i] != kGuardByte || block.memory[block.memory.size() - 1 - i] != kGuardByte)
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
  begin_turn();
}

unsigned char* at_shared(unsigned address, size_t bytes, Block& block) {
  if (address % bytes) fail("an address of shared memory is not aligned");
  if (address < shared_begin || address + bytes > shared_begin + shared_bytes)
    fail("an instruction reaches beyond shared memory");
  return block.memory.data() + kGuard + (address - shared_begin);
}

void* shared(unsigned alignment) {
  shared_begin = 1024 + alignment;
  return my_block().memory.data() + kGuard;
}

void launch(dim3 grid, dim3 block, size_t cluster_blocks, size_t bytes, const std::function<void()>& body) {
  gridDim = grid;
  blockDim = block;
  kernel = &body;
  threads = size_t(block.x) * block.y * block.z;
  cluster = cluster_blocks;
  shared_bytes = bytes;
  blocks.resize(cluster);
  while (fibers.size() < cluster * threads) fibers.push_back(std::make_unique<Fiber>());
  size_t count = size_t(grid.x) * grid.y * grid.z;
  if (count % cluster) fail("a cluster is not whole");
  for (size_t i = 0; i < count; i += cluster) run_cluster(backward ? count - cluster - i : i);
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

void __syncthreads() { pause(State::kBlock); }

size_t __cvta_generic_to_shared(const void* pointer) {
  const std::vector<unsigned char>& memory = my_block().memory;
  auto* byte = static_cast<const unsigned char*>(pointer);
  if (byte < memory.data() + kGuard || byte > memory.data() + memory.size() - kGuard)
    fail("an address is not one of shared memory");
  return byte - (memory.data() + kGuard) + shared_begin;
}
