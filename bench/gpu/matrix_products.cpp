#include "bench/gpu/matrix_products.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bench/gpu/kernels.hpp"

namespace knear::bench {
namespace {

struct Kind {
  ProductType type;
  const char* unit;
  Random random;

  int bytes() const { return bytes_of(type); }
  std::string name() const { return fmt::format("{} product", name_of(type)); }
};

// The order is that of ProductType.
constexpr Kind kinds[] = {{ProductType::f32, "Tflop/s", Random::signed_f32},
                          {ProductType::bf16, "Tflop/s", Random::signed_bf16},
                          {ProductType::i8, "Top/s", Random::any_i8}};

double element(const Kind& kind, const std::byte* from) {
  if (kind.random == Random::any_i8) return double(static_cast<signed char>(*from));
  std::uint32_t bits = 0;
  std::memcpy(kind.bytes() == 2 ? reinterpret_cast<std::byte*>(&bits) + 2
                                : reinterpret_cast<std::byte*>(&bits),
              from, std::size_t(kind.bytes()));
  float value;
  std::memcpy(&value, &bits, 4);
  return double(value);
}

// C [m x n] = A' B of A [depth x m] and B [depth x n], column after column; B and with it C are in
// `parts` of n columns, one after the other into the same C.
struct Shape {
  std::int64_t m, n, depth, parts = 1;
};

// Compares a few elements of C of the last part with sums in double. fp32 sums of products of at
// most 1: each of the additions errs by at most 2^-24 of a partial sum. Exact for int8.
void check_product(const Kind& kind, const Shape& shape, const std::byte* a, const std::byte* b,
                   const float* c, cuda::Queue& queue, Report& report) {
  const std::size_t column = std::size_t(shape.depth) * kind.bytes();
  std::vector<std::byte> x(column), y(column);
  for (int sample = 0; sample < 8; ++sample) {
    const std::size_t row = std::size_t(shape.m - 1) * sample / 7,
                      col = std::size_t(shape.n / 2 + 13 * sample);
    float got_bits;
    queue.download(x.data(), a + row * column, column);
    queue.download(y.data(), b + col * column, column);
    queue.download(&got_bits, c + col * shape.m + row, 1);
    queue.wait();
    double wanted = 0, magnitude = 0;
    for (std::int64_t i = 0; i < shape.depth; ++i) {
      const double product = element(kind, &x[std::size_t(i) * kind.bytes()]) *
                             element(kind, &y[std::size_t(i) * kind.bytes()]);
      wanted += product;
      magnitude += std::fabs(product);
    }
    double got = got_bits, tolerance = magnitude * double(shape.depth) * 0x1p-24;
    if (kind.random == Random::any_i8) {
      std::int32_t integer;
      std::memcpy(&integer, &got_bits, 4);
      got = integer;
      tolerance = 0;
    }
    ++report.tests;
    if (!(std::fabs(got - wanted) <= tolerance))
      report.fail(fmt::format("{} at ({}, {}): {} instead of {} (tolerance {})", kind.name(), row,
                              col, got, wanted, tolerance));
  }
}

void bench_product(const Kind& kind, const Shape& shape, const cuda::Stream& stream, double budget,
                   Report& report) {
  constexpr std::size_t workspace_bytes = std::size_t{64} << 20;
  const ProductLibrary library;
  const LibraryProduct product(library, kind.type, shape.m, shape.n, shape.depth, shape.m,
                               workspace_bytes);
  if (!product.available()) {
    report.skipped.push_back(fmt::format("{}: {}", kind.name(), product.why_not()));
    return;
  }
  const std::int64_t a_count = shape.m * shape.depth, b_count = shape.n * shape.depth;
  cuda::Queue queue = queue_on(stream);
  auto a = queue.allocate<std::byte>(std::size_t(a_count) * kind.bytes()),
       b = queue.allocate<std::byte>(std::size_t(b_count * shape.parts) * kind.bytes()),
       workspace = queue.allocate<std::byte>(workspace_bytes);
  auto c = queue.allocate<float>(std::size_t(shape.m * shape.n));  // or int32
  fill_random(a.data(), a_count, kind.random, 11, stream.get());
  fill_random(b.data(), b_count * shape.parts, kind.random, 12, stream.get());
  queue.fill_bytes(c.data(), 0xff, c.size());

  const auto b_part = [&](std::int64_t part) { return b.data() + part * b_count * kind.bytes(); };
  const Timing timing = time_runs(stream, budget, [&](int) {
    for (std::int64_t part = 0; part < shape.parts; ++part)
      product.run(a.data(), b_part(part), c.data(), workspace.data(), stream.get());
  });
  check_product(kind, shape, a.data(), b_part(shape.parts - 1), c.data(), queue, report);
  const double n = double(shape.n) * double(shape.parts);
  report.add({kind.name(),
              fmt::format("cuBLASLt, {} x {} x {}", shape.m, shape.n * shape.parts, shape.depth),
              2.0 * double(shape.m) * n * double(shape.depth) / timing.seconds / 1e12,
              kind.unit,
              timing.seconds,
              timing.spread,
              {},
              ""});
}

}  // namespace

void bench_matrix_products(const cuda::Stream& stream, const Deadline& deadline, Report& report) {
  for (const Kind& kind : kinds) {
    if (deadline.left() <= 0) {
      report.skipped.push_back(kind.name() + ": out of time");
      continue;
    }
    bench_product(kind, {8192, 8192, 8192}, stream, std::min(3.0, deadline.left() / 4), report);
  }
}

void bench_search_product(ProductType type, std::int64_t queries, std::int64_t rows,
                          std::int64_t dim, const cuda::Stream& stream, double budget,
                          Report& report) {
  constexpr std::int64_t parts = 10;
  const Kind& kind = kinds[static_cast<int>(type)];
  std::size_t free_bytes = 0, all_bytes = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  if (double(queries) * double(rows / parts) * 4 > double(free_bytes) / 2) {
    report.skipped.push_back(fmt::format("{} of {} x {} x {}: {:.1f} GB are free", kind.name(),
                                         queries, rows, dim, double(free_bytes) / 1e9));
    return;
  }
  bench_product(kind, {queries, rows / parts, dim, parts}, stream, budget, report);
}

}  // namespace knear::bench
