// Uses knear as an outside program would, through installed files alone: one search with a known
// answer.
#include <cstdio>
#include <knear/knear.hpp>

int main() {
  knear::Matrix<float> base(100, 3), query(1, 3);
  for (int i = 0; i < 100; ++i) base.row(i)[0] = static_cast<float>(i);
  query.row(0)[0] = 41.75f;
  const knear::Neighbors near = knear::knn(query.view(), base.view(), 2);
  const bool right = near.ids.row(0)[0] == 42 && near.ids.row(0)[1] == 41 &&
                     near.distances.row(0)[0] == 0.0625f && near.distances.row(0)[1] == 0.5625f;
  std::printf("knear %s: %s\n", KNEAR_VERSION, right ? "found the two nearest" : "wrong answer");
  return right ? 0 : 1;
}
