// What the files of the emulator share: the threads of the cluster of blocks that runs, as fibers, and shared memory.
#pragma once
#include "emulator.h"

#include <deque>
#include <map>
#include <memory>
#include <ucontext.h>

namespace emulator {

constexpr int kWarp = 32, kWarpgroup = 128;
constexpr size_t kStack = 128 << 10;

struct Copy {
  unsigned to;
  const void* from;
  int bytes, source_bytes;
};

// What a thread waits for: all of its block, all of its cluster, its warp, a barrier in shared memory.
enum class State { kReady, kBlock, kCluster, kWarp, kBarrier, kDone };

// What a thread brings to an instruction that its whole warp executes together.
struct Warp {
  const char* name = nullptr;
  unsigned address = 0;
  unsigned* to[4] = {};
  uint32_t a[4] = {}, b[2] = {};
  float c[4] = {};
  float* d[4] = {};
};

// Products that a warpgroup has begun.
struct Product {
  int columns = 0;
  ToFloat to_float = nullptr;
  uint64_t a = 0, b = 0;
  bool a_across = false, b_across = false;  // whether neighbours in memory are rows, or columns, and not summed elements
  std::vector<float*> sums;                 // of each thread, one after the other
};

// A barrier in shared memory ("mbarrier"): arrivals and bytes that its phase waits for.
struct Barrier {
  int count = 0, arrivals = 0;
  long bytes = 0;
  unsigned phase = 0;
};

// A block of the cluster that runs: its shared memory, between two guards.
struct Block {
  std::vector<unsigned char> memory;
  std::vector<bool> hidden;  // of each vector: whether a copy has brought it, and tensor cores do not see it
  std::map<unsigned, Barrier> barriers;
};

// What a thread has done in the block that runs.
struct Work {
  State state = State::kReady;
  int turns = 0;  // how many instructions of the warp it has executed
  Warp warp;
  std::deque<std::vector<Copy>> groups;  // closed groups of copies that have not been carried out
  std::vector<Copy> open;
  std::vector<unsigned> hidden;  // vectors that its copies have brought, and tensor cores do not see yet
  bool may_multiply = false;     // since wgmma.fence
  Product product;
  std::deque<std::vector<Product>> products;  // of the first thread of a warpgroup: closed groups that are under way
  std::vector<Product> open_products;
  int pending = 0;
  unsigned barrier = 0, parity = 0;  // that it waits for
};

struct Fiber : Work {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  dim3 index{}, block{};
};

extern std::vector<std::unique_ptr<Fiber>> fibers;
extern std::vector<Block> blocks;
extern size_t threads, cluster;  // of a block, and blocks of a cluster
extern size_t current;           // the thread that runs, of all of the cluster
extern bool late;                // whether copies and products take effect as late as they may
extern size_t shared_begin;      // the address of shared memory
extern std::deque<std::function<void()>> tma_copies;  // copies by TMA that are under way

inline Fiber& self() { return *fibers[current]; }
inline Block& my_block() { return blocks[current / threads]; }
void pause(State state);
unsigned char* at_shared(unsigned address, size_t bytes, Block& block = my_block());

// Waits until all lanes of the warp (or of the warpgroup) are at the same instruction; the last executes it for all.
template <int size = kWarp>
void together(const char* name, void (*execute)(Fiber* const* lanes)) {
  Fiber& mine = self();
  mine.warp.name = name;
  mine.turns++;
  size_t within = current % threads / size * size, first = current - current % threads + within;
  if (within + size > threads) fail("a warp is not whole");
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

}  // namespace emulator
