// knear/simt/instances.hpp -- launches of kernels are function templates over a queue. They are
// compiled once for each kind of queue, and only called elsewhere.
//
//   #define KNEAR_X_LAUNCHES(INSTANCE, Queue) INSTANCE(launch_a, Queue) INSTANCE(launch_b, Queue)
//
// A header x_launches.hpp ends with this list of its functions. knear_launches() of
// cmake/knear.cmake makes a source of it, for cuda::Queue and nvcc (a .cu) or for the emulator of
// the tests; those who call them write KNEAR_X_LAUNCHES(KNEAR_DECLARE_INSTANCE, cuda::Queue).
#pragma once

// A function template has its signature in its definition alone.
#define KNEAR_COMPILE_INSTANCE(name, Queue) template decltype(name<Queue>) name<Queue>;
#define KNEAR_DECLARE_INSTANCE(name, Queue) extern template decltype(name<Queue>) name<Queue>;
