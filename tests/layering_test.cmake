# Checks that each folder of the source tree includes only folders before it in KNEAR_LAYERS
# (cmake/knear.cmake), that only knear/core/threads.cpp starts threads, that only knear/core/cpu.cpp asks
# which processor it is compiled for or runs on, and knear/core/system_*.cpp which system, tests, benches,
# examples and all, that only a level's own files have its instructions, and that knear/knear.hpp includes
# every public header and no other.
#
#   cmake -DROOT=. -P tests/layering_test.cmake                 prints each violation, fails if any
#   cmake -DSELF_TEST=DIR -P tests/layering_test.cmake          breaks made-up trees in DIR, each one
#                                                               must be caught for its own reason
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../cmake/knear.cmake)

# The paths that a file includes in quotes or as <knear/...>, comments left out.
function(includes_of variable file)
  file(STRINGS ${file} lines REGEX "^[ \t]*#[ \t]*include[ \t]*(\"[^\"]+\"|<knear/[^>]+>)")
  list(TRANSFORM lines REPLACE "^[^\"<]*[\"<]([^\">]+)[\">].*$" "\\1")
  set(${variable} "${lines}" PARENT_SCOPE)
endfunction()

# The library's own files that may include what starts threads. device_pool.cpp and process_mutex.cpp have
# to know of a fork, and start none.
set(THREADS_IN knear/core/threads.cpp knear/core/process_mutex.cpp knear/cuda/device_pool.cpp)
set(THREADS_BY "thread|future|execution|pthread\\.h|omp\\.h|(tbb|oneapi)/[^>]+")

# Whoever else needs to know is told by a source for each kind of processor (SOURCES_x86_64 and
# SOURCES_aarch64) and by what a level's source defines, and asks knear/core/system.hpp.
set(PROCESSOR_IN "^knear/core/(cpu|system_linux|system_posix)\\.cpp$")
set(PROCESSOR_BY "_*(x86_64|amd64|M_X64|i386|M_IX86|aarch64|arm64|arm|ARM|M_ARM|NEON|SSE|AVX|FMA|F16C|linux|APPLE|MACH|FreeBSD|WIN32)[A-Za-z0-9_]*")
set(PROCESSOR_CALLS "__builtin_cpu_[a-z]+|__get_cpuid[a-z_]*|getauxval|elf_aux_info|sysctlbyname")
# What opens a file by a name that may come from outside: a pipe would hold it up. New files and folders
# are no such, nor are the system's own files and the one of measured peaks, which is looked at before.
set(OPENS_IN "^knear/io/open_file\\.cpp$|^knear/core/(system_linux|system_posix|cpu_groups)\\.cpp$|^knear/io/mapped_pages\\.cpp$|^knear/cost/peak_cache\\.cpp$|^knear/mpi/nccl_sums\\.cpp$|^cli/program\\.cpp$")
set(OPENS_BY "std::(i|)fstream|[^a-z_]fopen[ \t]*\\(|gzopen[ \t]*\\(|open[ \t]*\\([^()]*(\\([^()]*\\)[^()]*)*O_[A-Z]+")

# Code asks traits_of() (knear/core/metric.hpp) how metrics differ.
set(METRICS_BY "[!=]=[ \t]*(knear::)?Metric::|Metric::[a-z0-9]+[ \t]*[!=]=")

# Whose names say the level, or that they are what its files share.
set(LEVEL_IN "_(scalar|avx2|avx512|avx512_[a-z]+|neon|neon_[a-z0-9]+)\\.(cpp|inl)$|^knear/distance/exact_kernels\\.inl$|^knear/core/cpu\\.cpp$")
set(LEVEL_BY "[a-z0-9]*intrin\\.h|arm_[a-z0-9]+\\.h|cpuid\\.h|sys/auxv\\.h|asm/hwcap\\.h")

# Every violation of one tree, as lines of text.
function(find_violations variable root)
  set(found "")
  file(GLOB_RECURSE files RELATIVE ${root} ${root}/knear/*.hpp ${root}/knear/*.cpp ${root}/knear/*.inl
       ${root}/knear/*.cu ${root}/knear/*.cuh ${root}/cli/*.hpp ${root}/cli/*.cpp
       ${root}/python/*.hpp ${root}/python/*.cpp ${root}/bench/*.hpp ${root}/bench/*.cpp)
  if(NOT files)
    set(found "${root}: no sources found\n")
  endif()
  foreach(file IN LISTS files)
    string(REGEX MATCH "^(knear/)?([^/]+)" folder ${file})
    set(folder ${CMAKE_MATCH_2})
    knear_layer(layer ${folder})
    if(layer EQUAL -1)
      string(APPEND found "${file}: the folder ${folder} is not in KNEAR_LAYERS\n")
      continue()
    endif()
    if(file MATCHES "^knear/" AND NOT file IN_LIST THREADS_IN)
      file(STRINGS ${root}/${file} lines REGEX "^[ \t]*#[ \t]*include[ \t]*[\"<](${THREADS_BY})[\">]")
      foreach(line IN LISTS lines)
        string(REGEX REPLACE "^[^\"<]*[\"<]([^\">]+)[\">].*$" "\\1" include "${line}")
        string(APPEND found "${file} includes ${include}: threads come from knear/core/threads.hpp\n")
      endforeach()
    endif()
    includes_of(includes ${root}/${file})
    foreach(include IN LISTS includes)
      if(include MATCHES "(^|/)\\.\\./")
        string(APPEND found "${file} includes ${include}: write the path from the root\n")
        continue()
      elseif(include MATCHES "^(knear/|(cli|python|bench)/)")
        string(REGEX MATCH "^(knear/)?([^/]+)" used ${include})
        set(used ${CMAKE_MATCH_2})
      else()
        continue()  # beside the file itself
      endif()
      knear_layer(used_layer ${used})
      if(used_layer EQUAL -1)
        string(APPEND found "${file} includes ${include}: ${used} is not in KNEAR_LAYERS\n")
      elseif(NOT used STREQUAL folder AND NOT used_layer LESS layer)
        string(APPEND found "${file} includes ${include}: ${used} is not before ${folder}\n")
      elseif(used STREQUAL folder AND KNEAR_ROOMS_${folder})
        string(REGEX REPLACE "^knear/${folder}/" "" path ${file})
        string(REGEX REPLACE "^knear/${folder}/" "" used_path ${include})
        knear_room(room name ${folder} ${path})
        knear_room(used_room used_name ${folder} ${used_path})
        if(room EQUAL -1)
          string(APPEND found "${file}: the room ${name} is not in KNEAR_ROOMS_${folder}\n")
        elseif(NOT name STREQUAL used_name AND NOT used_room LESS room)
          string(APPEND found "${file} includes ${include}: that room is not before its own\n")
        endif()
      endif()
    endforeach()
  endforeach()

  file(GLOB_RECURSE others RELATIVE ${root} ${root}/tests/*.hpp ${root}/tests/*.cpp ${root}/tests/*.inl
       ${root}/examples/*.cpp ${root}/examples/*.hpp ${root}/bench/*.cu ${root}/bench/*.cuh)
  foreach(file IN LISTS files others)
    if(NOT file MATCHES "${PROCESSOR_IN}")
      file(STRINGS ${root}/${file} lines REGEX "^[ \t]*#[ \t]*(el)?if.*[^A-Za-z0-9_]_${PROCESSOR_BY}")
      foreach(line IN LISTS lines)
        string(REGEX REPLACE "^.*[^A-Za-z0-9_](_${PROCESSOR_BY}).*$" "\\1" asked "${line}")
        string(APPEND found "${file} asks for ${asked}: only knear/core/cpu.cpp does\n")
      endforeach()
      file(STRINGS ${root}/${file} lines REGEX "(^|[^A-Za-z0-9_])(${PROCESSOR_CALLS})[ \t]*\\(")
      foreach(line IN LISTS lines)
        string(REGEX REPLACE "^(.*[^A-Za-z0-9_])?(${PROCESSOR_CALLS})[ \t]*\\(.*$" "\\2" asked "${line}")
        string(APPEND found "${file} asks by ${asked}: only knear/core/cpu.cpp does\n")
      endforeach()
    endif()
    if(NOT file MATCHES "${LEVEL_IN}")
      file(STRINGS ${root}/${file} lines REGEX "^[ \t]*#[ \t]*include[ \t]*<(${LEVEL_BY})>")
      foreach(line IN LISTS lines)
        string(REGEX REPLACE "^[^<]*<([^>]+)>.*$" "\\1" include "${line}")
        string(APPEND found "${file} includes ${include}: only a level's own files do\n")
      endforeach()
    endif()
  endforeach()

  foreach(file IN LISTS files)
    if(NOT file STREQUAL "knear/core/metric.hpp")
      file(STRINGS ${root}/${file} lines REGEX "${METRICS_BY}")
      if(lines)
        string(APPEND found "${file} compares a metric with one by name: traits_of(metric) says what it is\n")
      endif()
    endif()
    if(file MATCHES "^(knear|cli|python)/" AND NOT file MATCHES "${OPENS_IN}")
      file(STRINGS ${root}/${file} lines REGEX "${OPENS_BY}")
      list(FILTER lines EXCLUDE REGEX "O_DIRECTORY|O_EXCL|^[ \t]*//")
      if(lines)
        string(APPEND found "${file} opens a file by itself: knear/io/open_file.hpp does, without waiting for a pipe\n")
      endif()
    endif()
  endforeach()

  # HEADERS of knear_library against knear.hpp.
  set(public "")
  file(GLOB lists ${root}/knear/*/CMakeLists.txt)
  foreach(list IN LISTS lists)
    file(READ ${list} text)
    if(text MATCHES "HEADERS([ \t\n]+([a-z0-9_]+\\.hpp[ \t\n]+)+)")
      set(names ${CMAKE_MATCH_1})
      string(REGEX MATCHALL "[a-z0-9_]+\\.hpp" names "${names}")
      cmake_path(GET list PARENT_PATH folder)
      cmake_path(GET folder FILENAME folder)
      list(TRANSFORM names PREPEND knear/${folder}/)
      list(APPEND public ${names})
    endif()
  endforeach()
  includes_of(umbrella ${root}/knear/knear.hpp)
  foreach(header IN LISTS public)
    if(NOT header IN_LIST umbrella)
      string(APPEND found "knear/knear.hpp: misses ${header}, which is public\n")
    endif()
  endforeach()
  foreach(header IN LISTS umbrella)
    if(NOT header IN_LIST public)
      string(APPEND found "knear/knear.hpp: includes ${header}, which no HEADERS names\n")
    endif()
  endforeach()

  # What a CUDA build installs besides: how many is said in docs/architecture.md, and nowhere else.
  if(EXISTS ${root}/docs/architecture.md)
    set(besides 0)
    foreach(list IN LISTS lists)
      file(READ ${list} text)
      string(REGEX MATCHALL "(FILE_SET HEADERS FILES|INSTALL)([ \t\n]+[a-z0-9_/]+\\.hpp)+" groups "${text}")
      string(REGEX MATCHALL "\\.hpp" names "${groups}")
      list(LENGTH names more)
      math(EXPR besides "${besides} + ${more}")
    endforeach()
    file(READ ${root}/docs/architecture.md text)
    if(NOT text MATCHES "A CUDA build installs ${besides} more")
      string(APPEND found "docs/architecture.md: does not say that a CUDA build installs ${besides} more headers\n")
    endif()
    file(GLOB pages RELATIVE ${root} ${root}/*.md ${root}/python/*.md ${root}/docs/*.md)
    foreach(page IN LISTS pages)
      file(STRINGS ${root}/${page} lines REGEX "[0-9]+ public headers|CUDA build installs [0-9]+ more|[0-9]+ more in a CUDA build")
      if(lines AND NOT page STREQUAL "docs/architecture.md")
        string(APPEND found "${page}: says how many headers there are: only docs/architecture.md does\n")
      endif()
    endforeach()
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()

# break_tree(REASON FILE TEXT): a sound tree with TEXT added to FILE must be caught with REASON.
function(break_tree reason file text)
  file(REMOVE_RECURSE ${SELF_TEST})
  file(WRITE ${SELF_TEST}/knear/core/CMakeLists.txt "knear_library(core\n  HEADERS error.hpp\n)\n")
  file(WRITE ${SELF_TEST}/knear/core/error.hpp "#include <string>\n// #include \"knear/knn/knn.hpp\"\n")
  file(WRITE ${SELF_TEST}/knear/core/threads.cpp "#include <tbb/parallel_for.h>\n#include <thread>\n")
  file(WRITE ${SELF_TEST}/knear/io/vectors.cpp "#include <barrier>\n#include \"knear/core/error.hpp\"\n#include \"rows.inl\"\n")
  file(WRITE ${SELF_TEST}/knear/scan/scan.cu "#include \"knear/core/error.hpp\"\n")
  file(WRITE ${SELF_TEST}/knear/knear.hpp "#include \"knear/core/error.hpp\"\n")
  file(WRITE ${SELF_TEST}/cli/main.cpp "#include \"cli/output.hpp\"\n#include <knear/knear.hpp>\n")
  file(WRITE ${SELF_TEST}/knear/scan/kernels_neon.cpp "#include <arm_neon.h>\n")
  file(WRITE ${SELF_TEST}/tests/io/vectors_test.cpp "#ifndef __SANITIZE_ADDRESS__\n#endif\n")
  file(WRITE ${SELF_TEST}/knear/cuda/CMakeLists.txt "knear_cuda_library(cuda\n  INSTALL check.hpp queue.hpp\n)\n")
  file(WRITE ${SELF_TEST}/docs/architecture.md "A CUDA build installs 2 more.\n")
  find_violations(found ${SELF_TEST})
  if(found)
    message(SEND_ERROR "a sound tree was refused:\n${found}")
  endif()
  file(APPEND ${SELF_TEST}/${file} "${text}\n")
  find_violations(found ${SELF_TEST})
  if(NOT found STREQUAL "${reason}\n")
    message(SEND_ERROR "expected the one violation\n  ${reason}\nbut got\n  ${found}")
  endif()
endfunction()

if(SELF_TEST)
  cmake_path(ABSOLUTE_PATH SELF_TEST)
  break_tree("knear/core/error.hpp includes knear/io/vectors.hpp: io is not before core"
             knear/core/error.hpp "#include \"knear/io/vectors.hpp\"")
  break_tree("knear/io/vectors.cpp includes knear/cost/plan.hpp: cost is not before io"
             knear/io/vectors.cpp "#  include <knear/cost/plan.hpp>")
  break_tree("knear/scan/scan.cu includes knear/knn/knn.hpp: knn is not before scan"
             knear/scan/scan.cu "#include \"knear/knn/knn.hpp\"")
  break_tree("knear/scan/scan.cu includes knear/knear.hpp: knear.hpp is not before scan"
             knear/scan/scan.cu "#include \"knear/knear.hpp\"")
  break_tree("knear/scan/scan.cu includes cli/output.hpp: cli is not before scan"
             knear/scan/scan.cu "#include \"cli/output.hpp\"")
  break_tree("knear/scan/scan.cu includes knear/scan/device/tiles.hpp: that room is not before its own"
             knear/scan/scan.cu "#include \"knear/scan/device/tiles.hpp\"")
  # A room that is a file, and a folder that is no room.
  break_tree("knear/knn/report.hpp includes knear/knn/knn.hpp: that room is not before its own"
             knear/knn/report.hpp "#include \"knear/knn/knn.hpp\"")
  break_tree("knear/index/attic/old.hpp: the room attic is not in KNEAR_ROOMS_index"
             knear/index/attic/old.hpp "#include \"knear/index/options.hpp\"")
  break_tree("knear/scan/scan.cu includes ../knn/knn.hpp: write the path from the root"
             knear/scan/scan.cu "#include \"../knn/knn.hpp\"")
  break_tree("knear/scan/scan.cu includes knear/util/x.hpp: util is not in KNEAR_LAYERS"
             knear/scan/scan.cu "#include \"knear/util/x.hpp\"")
  foreach(header thread future execution pthread.h omp.h tbb/parallel_for.h oneapi/tbb.h)
    break_tree("knear/io/vectors.cpp includes ${header}: threads come from knear/core/threads.hpp"
               knear/io/vectors.cpp "  # include <${header}>")
  endforeach()
  foreach(macro __x86_64__ __aarch64__ __AVX2__ __AVX512F__ __ARM_FEATURE_DOTPROD __linux__ __APPLE__)
    break_tree("knear/io/vectors.cpp asks for ${macro}: only knear/core/cpu.cpp does"
               knear/io/vectors.cpp "#if defined(${macro})\n#endif")
  endforeach()
  break_tree("knear/io/vectors.cpp asks for __aarch64__: only knear/core/cpu.cpp does"
             knear/io/vectors.cpp "#  ifdef __aarch64__ // there\n#endif")
  break_tree("tests/io/vectors_test.cpp asks for __aarch64__: only knear/core/cpu.cpp does"
             tests/io/vectors_test.cpp "#if defined(KNEAR_X) &&defined(__aarch64__)\n#endif")
  break_tree("cli/main.cpp asks for __ARM_NEON: only knear/core/cpu.cpp does"
             cli/main.cpp "#ifdef __ARM_NEON\n#endif")
  foreach(call __builtin_cpu_is __builtin_cpu_supports getauxval)
    break_tree("tests/io/vectors_test.cpp asks by ${call}: only knear/core/cpu.cpp does"
               tests/io/vectors_test.cpp "const bool has = ${call}(1)\;")
  endforeach()
  foreach(header immintrin.h arm_neon.h arm_sve.h sys/auxv.h)
    break_tree("knear/scan/scan.cu includes ${header}: only a level's own files do"
               knear/scan/scan.cu "#include <${header}>")
  endforeach()
  foreach(line "std::ifstream in(path)" "::open(path.c_str(), O_RDONLY | O_CLOEXEC)" "gzopen(path, \"rb\")"
          "std::fopen(path, \"r\")" "  if (open(name, flags | O_RDWR) < 0)")
    break_tree("cli/main.cpp opens a file by itself: knear/io/open_file.hpp does, without waiting for a pipe"
               cli/main.cpp "${line}\;")
  endforeach()
  foreach(line "if (metric == Metric::l1)" "metric!=knear::Metric::ip" "Metric::l2 == metric")
    break_tree("knear/scan/scan.cu compares a metric with one by name: traits_of(metric) says what it is"
               knear/scan/scan.cu "${line}")
  endforeach()
  break_tree("knear/util/x.hpp: the folder util is not in KNEAR_LAYERS"
             knear/util/x.hpp "// anything")
  break_tree("knear/knear.hpp: misses knear/knn/knn.hpp, which is public"
             knear/knn/CMakeLists.txt "knear_library(knn\n  HEADERS knn.hpp\n)")
  break_tree("knear/knear.hpp: includes knear/knn/knn.hpp, which no HEADERS names"
             knear/knear.hpp "#include \"knear/knn/knn.hpp\"")
  break_tree("docs/architecture.md: does not say that a CUDA build installs 3 more headers"
             knear/core/CMakeLists.txt "  target_sources(x PUBLIC FILE_SET HEADERS FILES host.hpp)")
  break_tree("README.md: says how many headers there are: only docs/architecture.md does"
             README.md "there are 21 public headers")
else()
  cmake_path(ABSOLUTE_PATH ROOT NORMALIZE)
  find_violations(found ${ROOT})
  if(found)
    message(FATAL_ERROR "\n${found}")
  endif()
endif()
