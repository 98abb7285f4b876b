# CUDA for the whole build: the compiler, the architectures, two functions. Included only where CUDA
# is wanted (KNEAR_CUDA).
#
# Machine code for sm_80 (A100) and sm_90a (H100 and H200, with wgmma and the copy engine), and PTX
# of compute_80, from which the driver makes code for every later GPU. Given as -gencode because
# CMake 3.25 does not know the name 90a. The list is also what `knear info` prints.
set(KNEAR_CUDA_CODE sm_80 compute_80 sm_90a CACHE STRING "What device code is made for (-code of nvcc)")
set(KNEAR_CUDA_GENCODE "")
foreach(code IN LISTS KNEAR_CUDA_CODE)
  string(REGEX REPLACE "^sm_" "compute_" virtual ${code})
  list(APPEND KNEAR_CUDA_GENCODE -gencode=arch=${virtual},code=${code})
endforeach()
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)

# knear_cuda_library(NAME [INSTALL a.hpp ...] SOURCES a.cu b.cpp ... LINKS targets ...): the target
# knear::NAME, code for the device and what launches it. INSTALL are its public headers. They are not
# in knear/knear.hpp, which builds without CUDA have too.
function(knear_cuda_library name)
  cmake_parse_arguments(ARG "" "" "INSTALL;SOURCES;LINKS" ${ARGN})
  add_library(knear_${name} STATIC ${ARG_SOURCES})
  target_sources(knear_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                                      FILES ${ARG_INSTALL})
  add_library(knear::${name} ALIAS knear_${name})
  set_target_properties(knear_${name} PROPERTIES EXPORT_NAME ${name})
  set_property(GLOBAL APPEND PROPERTY KNEAR_LIBRARIES knear_${name})
  target_link_libraries(knear_${name} PUBLIC ${ARG_LINKS} CUDA::cudart_static)
  set_target_properties(knear_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  knear_cuda_flags(knear_${name})
endfunction()

# C++20 on both compilers (CMake 3.25 does not know nvcc's flag for it), warnings on both. -lineinfo
# costs nothing at run time and names source lines in compute-sanitizer and the profilers. Relaxed
# constexpr: std::numeric_limits in kernels.
function(knear_cuda_flags target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-ffp-contract=off>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KNEAR_WERROR}>>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-lineinfo;--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>
    "$<$<COMPILE_LANGUAGE:CUDA>:${KNEAR_CUDA_GENCODE}>"
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${KNEAR_WERROR}>>:--Werror=all-warnings>)
endfunction()
