# A toolchain file: builds for 64-bit ARM on another Linux, and runs what was built in an emulator, so
# that ctest runs the tests. `scripts/setup --aarch64` installs the compiler and the emulator, and
# unpacks the libraries in the folder that is taken here for the root of that system.
#
#   KNEAR_AARCH64_ROOT   another folder with the libraries (environment)
#   QEMU_CPU             the processor that is played (environment): cortex-a72, neoverse-n1, max, ...
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

if(NOT "$ENV{KNEAR_AARCH64_ROOT}" STREQUAL "")
  set(CMAKE_SYSROOT $ENV{KNEAR_AARCH64_ROOT})
elseif(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(CMAKE_SYSROOT $ENV{XDG_CACHE_HOME}/knear/aarch64)
else()
  set(CMAKE_SYSROOT $ENV{HOME}/.cache/knear/aarch64)
endif()
if(NOT IS_DIRECTORY ${CMAKE_SYSROOT})
  message(FATAL_ERROR "no folder ${CMAKE_SYSROOT}: scripts/setup --aarch64 makes it")
endif()
set(KNEAR_AARCH64_ROOT ${CMAKE_SYSROOT} CACHE INTERNAL "Root of the system that programs are built for")
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT})

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
