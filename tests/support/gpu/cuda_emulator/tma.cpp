// TMA, which copies tiles of tensors to shared memory (cp.async.bulk.tensor), barriers there (mbarrier), clusters.
#include "fibers.h"

using namespace emulator;

namespace {

Barrier& barrier_at(unsigned address, Block& block = my_block()) {
  at_shared(address, 8, block);
  auto found = block.barriers.find(address);
  if (found == block.barriers.end()) fail("a barrier in shared memory has not been made");
  for (size_t i = 0; i < 8; ++i)
    if (at_shared(address, 8, block)[i] != 0xba) fail("a barrier in shared memory was overwritten");
  return found->second;
}

// Ends the phase of a barrier that waits for nothing more, and lets go on who waits for its end.
void end_phase(unsigned address, Block& block) {
  Barrier& barrier = barrier_at(address, block);
  if (barrier.arrivals || barrier.bytes) return;
  barrier.phase++;
  barrier.arrivals = barrier.count;
  size_t first = (&block - blocks.data()) * threads;
  for (size_t i = first; i < first + threads; ++i) {
    Fiber& fiber = *fibers[i];
    if (fiber.state == State::kBarrier && fiber.barrier == address) fiber.state = State::kReady;
  }
}

void arrive(unsigned address, int bytes, Block& block) {
  Barrier& barrier = barrier_at(address, block);
  if (!barrier.arrivals) fail("too many threads arrive at a barrier in shared memory");
  barrier.bytes += bytes;
  barrier.arrivals--;
  end_phase(address, block);
}

// Whether a thread of a block has ended: then nobody may write to its memory.
bool has_ended(size_t block) {
  for (size_t i = block * threads; i < (block + 1) * threads; ++i)
    if (fibers[i]->state == State::kDone) return true;
  return false;
}

}  // namespace

void mbarrier_init_shared__cta_b64(unsigned address, int count) {
  memset(at_shared(address, 8), 0xba, 8);
  Barrier& barrier = my_block().barriers[address];
  barrier = Barrier();
  barrier.count = barrier.arrivals = count;
}

// Others, TMA among them, see barriers that were made before.
void fence_mbarrier_init_release_cluster() {}

void mbarrier_arrive_expect_tx_shared__cta_b64(int, unsigned address, int bytes) {
  arrive(address, bytes, my_block());
}

void mbarrier_arrive_shared__cta_b64(int, unsigned address) { mbarrier_arrive_expect_tx_shared__cta_b64(0, address, 0); }

// Addresses of the cluster: the number of the block, from 1, is in the upper byte.
void mapa_shared__cluster_u32(unsigned& there, unsigned address, int block) {
  if (block < 0 || size_t(block) >= cluster) fail("a cluster has no such block");
  there = address | unsigned(block + 1) << 24;
}

void mbarrier_arrive_shared__cluster_b64(int, unsigned there) {
  size_t block = (there >> 24) - 1;
  if (has_ended(block)) fail("a barrier of a block that has ended is arrived at");
  arrive(there & 0xffffff, 0, blocks[block]);
}

// Whether the phase of a parity has ended. One that waits knows of the phase before: that one has.
void mbarrier_try_wait_parity_shared__cta_b64(bool& ended, unsigned address, int parity) {
  ended = (barrier_at(address).phase & 1) != unsigned(parity);
  if (ended) return;
  self().barrier = address;
  pause(State::kBarrier);
  ended = (barrier_at(address).phase & 1) != unsigned(parity);
}

namespace {

const float* floats_at(unsigned there, size_t count) {
  size_t block = (there >> 24) - 1;
  if (has_ended(block)) fail("the memory of a block that has ended is read");
  return reinterpret_cast<const float*>(at_shared(there & 0xffffff, 4 * count, blocks[block]));
}

}  // namespace

void ld_shared__cluster_f32(float& d, unsigned there) { d = *floats_at(there, 1); }

void ld_shared__cluster_v4_f32(float& d0, float& d1, float& d2, float& d3, unsigned there) {
  const float* from = floats_at(there, 4);
  d0 = from[0], d1 = from[1], d2 = from[2], d3 = from[3];
}

void barrier_cluster_arrive_release_aligned() {}
void barrier_cluster_wait_acquire_aligned() { pause(State::kCluster); }

namespace {

// The elements of a tile (the box of a map), line by line: zeros outside of the tensor.
std::vector<unsigned char> tile(const TensorMap& map, const std::vector<int>& place, const std::vector<int>& offsets) {
  const auto& [memory, rank, item, line_bytes, pixels, sizes, steps, extents, lower, upper] = map;
  std::vector<unsigned char> bytes;
  auto line = [&](const std::vector<long>& at, int count) {
    size_t begin = bytes.size();
    bytes.resize(begin + size_t(count) * item);
    long element = 0, stride = 1;
    for (size_t axis = 0; axis < rank; ++axis) {
      if (axis && (at[axis] < 0 || at[axis] >= long(sizes[axis]))) return;
      element += at[axis] * stride;
      stride *= sizes[axis];
    }
    for (int i = 0; i < count; ++i)
      if (at[0] + i >= 0 && at[0] + i < long(sizes[0]))
        memcpy(bytes.data() + begin + i * item, memory + (element + i) * item, item);
  };
  std::vector<long> at(place.begin(), place.end());
  if (pixels) {
    for (int i = 0; i < extents[1]; ++i) {
      std::vector<long> element = at;
      for (size_t axis = 0; axis + 2 < rank; ++axis) {
        long last = sizes[axis + 1] - 1 + upper[axis];
        if (at[axis + 1] < lower[axis] || at[axis + 1] > last) fail("pixels begin outside of their bounding box");
        element[axis + 1] += offsets[axis];
      }
      line(element, extents[0]);
      size_t axis = 1;
      for (; axis + 1 < rank; ++axis) {  // the next pixel, row by row of the bounding box
        at[axis] += steps[axis];
        if (at[axis] <= long(sizes[axis]) - 1 + upper[axis - 1]) break;
        at[axis] = lower[axis - 1];
      }
      if (axis + 1 == rank) at[axis]++;
    }
    return bytes;
  }
  std::vector<int> within(rank, 0);
  while (true) {
    std::vector<long> element = at;
    for (size_t axis = 1; axis < rank; ++axis) element[axis] += within[axis];
    line(element, extents[0]);
    size_t axis = 1;
    for (; axis < rank && ++within[axis] == extents[axis]; ++axis) within[axis] = 0;
    if (axis == rank) return bytes;
  }
}

// Copies a tile to each block of `to_blocks`, and tells the barrier there; at once, or later.
void copy_tile(const TensorMap* map, unsigned to, const std::vector<int>& place, const std::vector<int>& offsets,
              unsigned barrier, unsigned to_blocks) {
  if (reinterpret_cast<uintptr_t>(map) % 64) fail("a tensor map is not aligned");
  if (map->rank != place.size()) fail("a tensor map has another rank");
  if (to % 128) fail("a tile is not aligned in shared memory");
  if (map->pixels != !offsets.empty()) fail("a tensor map is of the other kind");
  for (size_t i = 0; i < offsets.size(); ++i)
    if (offsets[i] < 0 || offsets[i] > (map->rank == 3 ? 65535 : map->rank == 4 ? 255 : 31))
      fail("an offset of pixels is out of its range");
  auto copy = [=] {
    std::vector<unsigned char> bytes = tile(*map, place, offsets);
    for (size_t i = 0; i < cluster; ++i) {
      if (!(to_blocks >> i & 1)) continue;
      if (has_ended(i)) fail("a tile comes to a block that has ended");
      for (size_t at = 0; at < bytes.size(); at += 16) {
        unsigned address = to + at;
        address ^= (address >> 7 & (map->line_bytes / 16 - 1)) << 4;
        memcpy(at_shared(address, 16, blocks[i]), bytes.data() + at, 16);
        blocks[i].hidden[(address - shared_begin) / 16] = false;
      }
      barrier_at(barrier, blocks[i]).bytes -= bytes.size();
      end_phase(barrier, blocks[i]);
    }
  };
  barrier_at(barrier);
  if (late)
    tma_copies.push_back(copy);
  else
    copy();
}

}  // namespace

void emulator::copy_tensor(const void* map, unsigned to, const std::vector<int>& numbers, unsigned barrier,
                           const std::vector<int>& offsets, int to_blocks) {
  unsigned mine = 1u << current / threads;
  copy_tile(static_cast<const TensorMap*>(map), to, numbers, offsets, barrier, to_blocks ? unsigned(to_blocks) : mine);
}
