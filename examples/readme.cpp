// The example of docs/cpp.md, word for word; tests/readme_test.sh compares and runs it.

#include <fmt/core.h>
#include <knear/knear.hpp>
int main(int count, char** files) {
  if (count != 3) return 2;
  const auto base = knear::io::VectorFile::open(files[1]);  // mapped, whatever its element type
  const auto queries = knear::io::VectorFile::open(files[2]);
  const auto near = knear::knn(queries.view(), base.view(), 10);  // exact, nearest first
  for (int i = 0; i < 10; ++i)
    fmt::print("{} at squared distance {}\n", near.ids.row(0)[i], near.distances.row(0)[i]);
}
