// knear/simt/warpgroup_thread.hpp -- what a kernel for sm_90a may do beside what all may
// (knear/simt/thread.hpp): the concept WarpgroupThread.
//
//   t.copy_bulk(to, from, bytes, &arrived);            // one thread, once: 16 bytes to many KiB
//   t.arrive_expecting(&arrived, bytes);
//   ...
//   t.wait_for_arrivals(&arrived, odd);                // all who read what was copied
//
//   t.begin_products();                                // four warps
//   t.begin_product(sums, a, queries);                 // [64 x 128] = [64 x 32] [32 x 128]
//   t.add_product(sums, next_a, t.further(queries, bytes));
//   t.close_products();
//   t.template wait_for_products<0>(sums);             // until then nobody may look at the sums
//
// On a GPU it is CudaWarpgroupThread (knear/simt/cuda_warpgroup_thread.cuh), in the tests
// HostThread. A warpgroup is four warps in a row, the first of them a multiple of four.
#pragma once
#include "knear/simt/thread.hpp"

namespace knear {

inline constexpr int warpgroup_size = 4 * warp_size;

template <class T>
concept WarpgroupThread = Thread<T> &&
    requires(T t, unsigned long long* word, unsigned char* bytes, unsigned* four, unsigned count,
             int i, int (&sums)[64], const unsigned (&a)[4], typename T::Operand operand) {
  // What a thread prepared with begin_arrivals() may be named to copies, after another sync().
  t.show_barriers();
  // Arrives, and says how many bytes of copies belong to the round beside those said before:
  // it ends when all have arrived and all bytes are there. Their number is below 2^20.
  t.arrive_expecting(word, count);
  // Copies from device to shared memory; both addresses and the bytes are multiples of 16. It
  // is visible to who waits for the round of `word` that was under way. One thread asks for it.
  t.copy_bulk(bytes, static_cast<const unsigned char*>(bytes), count, word);
  // Block: waits until so many threads, whole warps, have come to the barrier of this number,
  // from 1 to 15; otherwise as sync().
  t.sync_some(i, i);

  // Stores four bytes of what products are to read from shared memory. They read it after
  // show_operands() of this thread and a barrier after that.
  t.store_operand(four, count);
  t.show_operands();
  // An operand [32 x 128], bytes with a sign, of which each column lies in two pieces of 16
  // bytes: pieces of 8 columns in a row, eight columns further `columns` bytes further, the
  // second piece of a column `halves` bytes beyond its first. All are multiples of 16, and so
  // is the address. And the operand that lies so many bytes further.
  { t.operand(bytes, count, count) } -> std::same_as<typename T::Operand>;
  { t.further(operand, count) } -> std::same_as<typename T::Operand>;
  // Warpgroup, tensor cores: sums = a b, or sums += a b, for a [64 x 32], bytes without a sign,
  // of which warp w of the group has rows 16 w to 16 w + 15 in its registers, as
  // multiply_u8_s8() has them, and b an operand. sums[4 j + i] are those of multiply_u8_s8()
  // for the columns from 8 j on.
  // They are under way from begin_product() on until they are waited for; until then sums are
  // neither read nor written, and the operand does not change. begin_products() comes before
  // the first product after registers were written; wait_for_products<n>(sums) waits for all
  // but the last n groups of products, each ended by close_products(), sums among those.
  t.begin_products();
  t.begin_product(sums, a, operand);
  t.add_product(sums, a, operand);
  t.close_products();
  t.template wait_for_products<1>(sums);

  // Warpgroup: gives back registers, or waits for those that others have given back, so that
  // each of its threads has that many: multiples of 8 from 24 to 240.
  t.template keep_registers<24>();
  t.template take_registers<240>();

  // The larger of a + b and c.
  { t.larger_sum(i, i, i) } -> std::same_as<int>;
};

}  // namespace knear
