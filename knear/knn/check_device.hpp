// knear/knn/check_device.hpp -- whether the words of KnnOptions::device name what is here, asked
// before files are read or rows are packed.
#pragma once
#include <string>
#include <string_view>

namespace knear {

// Throws InvalidArgument unless `device` is "cpu", "cuda", "cuda:N" or of several GPUs
// "cuda:N,N,...", each named once; DeviceUnavailable for a GPU that is not there, or where knear
// was built without CUDA.
void check_device(std::string_view device);
// The same for what runs in one place: several GPUs are none of the words.
void check_one_device(std::string_view device);
// The GPU of one of several processes on a machine, which are numbered from 0 on: of "cuda" each
// process gets the next one, all over again where there are more processes; another device is the
// same for all. Throws as check_one_device().
std::string device_of_process(std::string_view device, int process);

}  // namespace knear
