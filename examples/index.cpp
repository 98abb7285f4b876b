// examples/index.cpp -- an index that is filled, changed, saved and opened again, by what is
// installed alone. It ends with 1 if an answer is not what it must be.
#include <fmt/core.h>
#include <knear/knear.hpp>

#include <cstdio>
#include <vector>

int main() {
  // Row i is at the coordinate i.
  knear::Matrix<float> vectors(1000, 4);
  for (int i = 0; i < 1000; ++i) vectors.row(i)[0] = static_cast<float>(i);
  knear::Index index = knear::make_index("Flat", 4);
  index.add(vectors.view());                       // ids 0, ..., 999
  index.remove(std::vector<knear::Id>{500, 501});  // no other id changes

  const char* const file = "example_index.knear";
  index.save(file);  // whole or not at all
  const knear::Index opened = knear::Index::load(file);

  knear::Matrix<float> query(1, 4);
  query.row(0)[0] = 500.25f;
  const knear::Neighbors near = opened.search(query.view(), 3);
  for (int j = 0; j < 3; ++j)
    fmt::print("id {} at squared distance {}\n", near.ids.row(0)[j], near.distances.row(0)[j]);
  std::remove(file);
  const knear::Id* const ids = near.ids.row(0);
  return ids[0] == 499 && ids[1] == 502 && ids[2] == 498 ? 0 : 1;
}
