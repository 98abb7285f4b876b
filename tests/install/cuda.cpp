// Uses what a CUDA build installs as an outside program would: a selection in device memory with a
// known answer. Where there is no GPU it prints one line that says so, and its status is 3.
#include <cstdio>
#include <knear/core/error.hpp>
#include <knear/cuda/device_error.hpp>
#include <knear/knn/knn_cuda.hpp>
#include <knear/select/select_k_cuda.hpp>

namespace {

bool select() {
  constexpr int rows = 2, cols = 4, k = 2;
  const float values[rows * cols] = {5, 1, 4, 1, -2, 6, 3, 9};
  knear::cuda::Queue queue(0);
  auto there = queue.allocate<float>(rows * cols);
  auto best = queue.allocate<float>(rows * k);
  auto places = queue.allocate<int>(rows * k);
  queue.upload(there.data(), values, rows * cols);
  knear::cuda::select_k({there.data(), rows, cols, cols}, k, {.extreme = knear::Extreme::largest},
                        best.data(), places.data(), queue.stream());
  float found[rows * k];
  int found_places[rows * k];
  queue.download(found, best.data(), rows * k);
  queue.download(found_places, places.data(), rows * k);
  queue.wait();
  return found[0] == 5 && found[1] == 4 && found[2] == 9 && found[3] == 6 && found_places[0] == 0 &&
         found_places[1] == 2 && found_places[2] == 3 && found_places[3] == 1;
}

}  // namespace

int main() {
  // That it links, for the search has a test of its own.
  void (*const search)(const knear::cuda::MatrixView&, const knear::cuda::MatrixView&, std::int64_t,
                       knear::Id*, float*, CUstream_st*, const knear::KnnOptions&,
                       knear::KnnReport*) = knear::cuda::knn;
  try {
    const bool right = search != nullptr && select();
    std::printf("select_k on a GPU: %s\n", right ? "found the two largest" : "wrong answer");
    return right ? 0 : 1;
  } catch (const knear::DeviceUnavailable& error) {
    std::printf("select_k on a GPU: %s\n", error.what());
    return 3;
  } catch (const knear::Error& error) {
    std::printf("select_k on a GPU failed: %s\n", error.what());
    return 1;
  }
}
