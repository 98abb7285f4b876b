# What every CMakeLists.txt of the project uses: the order of the folders, and one function each for
# a folder's library, a test, and sources of one instruction set.

# A folder may use those of earlier lines, and none of its own line (docs/architecture.md). The
# functions below hold the links to it, tests/layering_test.cmake the includes. 'knear.hpp' stands
# for the one header directly in knear/.
set(KNEAR_LAYERS
    "core"
    "io simt cuda cost"
    "distance select transform"
    "scan"
    "cluster"
    "knn"
    "quantize"
    "index"
    "graph"
    "factory mpi"
    "serve"
    "knear.hpp"
    "cli python bench")

# The rooms of a folder, in the same order: its folders, or files directly in it by their names without
# an ending; '.' stands for the other files directly in it. A room may use those of earlier lines.
set(KNEAR_ROOMS_index
    "id_filter usual_lists"
    "options"
    "codecs"
    "index_shape"
    "recall"
    "quantizers"
    "life"
    "lists"
    "graph"
    "sections"
    "form"
    "impl"
    "file faiss"
    "shards"
    ".")
set(KNEAR_ROOMS_knn
    "check_device cuda_matrix near_queries options report"
    "rows"
    "search"
    "lists"
    "device"
    ".")
set(KNEAR_ROOMS_scan "kernels" "packing" "." "prefix methods" "device")
set(KNEAR_ROOMS_select "sort kernels" "warp" ".")

# knear_room(VARIABLE NAME FOLDER PATH): the number of the line of the room that PATH (below FOLDER) lies
# in, -1 for a room that has none, and the room's name.
function(knear_room variable name folder path)
  string(REGEX MATCH "^[^/.]+" own ${path})
  set(own_number -1)
  set(rest_number -1)
  set(number 0)
  foreach(line IN LISTS KNEAR_ROOMS_${folder})
    separate_arguments(rooms UNIX_COMMAND "${line}")
    if(own IN_LIST rooms)
      set(own_number ${number})
    endif()
    if("." IN_LIST rooms)
      set(rest_number ${number})
    endif()
    math(EXPR number "${number} + 1")
  endforeach()
  if(own_number EQUAL -1 AND NOT path MATCHES "/")
    set(own ".")
    set(own_number ${rest_number})
  endif()
  set(${variable} ${own_number} PARENT_SCOPE)
  set(${name} ${own} PARENT_SCOPE)
endfunction()

# knear_layer(VARIABLE FOLDER): the number of the folder's line, -1 for a folder that has none.
function(knear_layer variable folder)
  set(${variable} -1 PARENT_SCOPE)
  set(number 0)
  foreach(layer IN LISTS KNEAR_LAYERS)
    separate_arguments(folders UNIX_COMMAND "${layer}")
    if(folder IN_LIST folders)
      set(${variable} ${number} PARENT_SCOPE)
    endif()
    math(EXPR number "${number} + 1")
  endforeach()
endfunction()

# knear_launches(VARIABLE QUEUE ENDING HEADERS a.hpp ... FAMILIES folder/x_launches ...): sets VARIABLE to
# sources that compile the launches listed in knear/folder/x_launches.hpp for this queue, a source for
# each family. HEADERS define the queue and what it launches; ENDING is cu or cpp.
function(knear_launches variable queue ending)
  cmake_parse_arguments(ARG "" "" "HEADERS;FAMILIES" ${ARGN})
  list(TRANSFORM ARG_HEADERS REPLACE "(.+)" "#include \"\\1\"\n" OUTPUT_VARIABLE headers)
  string(JOIN "" headers ${headers})
  set(files "")
  foreach(family IN LISTS ARG_FAMILIES)
    get_filename_component(name ${family} NAME)
    string(TOUPPER "KNEAR_${name}" list)
    set(file ${CMAKE_BINARY_DIR}/units/${name}.${ending})
    file(CONFIGURE OUTPUT ${file} CONTENT "${headers}#include \"knear/${family}.hpp\"
#include \"knear/simt/instances.hpp\"
namespace knear::detail {
${list}(KNEAR_COMPILE_INSTANCE, ${queue})
}
")
    list(APPEND files ${file})
  endforeach()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# knear_units(VARIABLE NAME SOURCE ...): sets VARIABLE to the files to compile for these sources of this
# folder. With KNEAR_UNITS a file includes several sources, so that the headers that these share are
# compiled once. It names them by paths below the root, so that ccache knows it again in other build
# folders and clones. Sources with flags, definitions or include directories of their own, or the
# property KNEAR_ALONE, are compiled by themselves; set these before the call.
function(knear_units variable name)
  if(NOT KNEAR_UNITS)
    set(${variable} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  set(files "")
  set(unit "")
  set(bytes 0)
  set(units "")
  foreach(source IN LISTS ARGN)
    set(by_itself OFF)
    foreach(property KNEAR_ALONE COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES)
      get_source_file_property(value ${source} ${property})
      if(value)
        set(by_itself ON)
      endif()
    endforeach()
    if(by_itself OR IS_ABSOLUTE ${source})
      list(APPEND files ${source})
      continue()
    endif()
    file(SIZE ${CMAKE_CURRENT_SOURCE_DIR}/${source} size)
    math(EXPR bytes "${bytes} + ${size}")
    if(bytes GREATER KNEAR_UNIT_BYTES AND unit)
      list(APPEND units "${unit}")
      set(unit "")
      set(bytes ${size})
    endif()
    string(APPEND unit "#include \"${folder}/${source}\"\n")
  endforeach()
  if(unit)
    list(APPEND units "${unit}")
  endif()
  set(number 0)
  foreach(unit IN LISTS units)
    math(EXPR number "${number} + 1")
    # Below the outermost build folder, where a project around this one has them too: ccache takes
    # another path for another file.
    set(file ${CMAKE_BINARY_DIR}/units/${name}_${number}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${unit}")
    # This warning assumes that a file which is included is a header.
    set_source_files_properties(${file} PROPERTIES
        COMPILE_OPTIONS $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    list(APPEND files ${file})
  endforeach()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# knear_library(NAME [APART] [HEADERS a.hpp ...] [SOURCES a.cpp ...] [SOURCES_x86_64 b.cpp ...]
# [SOURCES_aarch64 c.cpp ...] LINKS knear::x ... [PRIVATE_LINKS
# y ...]) is the target knear::NAME of the folder knear/NAME. HEADERS are the public ones: they are
# installed under their path and stand in knear/knear.hpp. Without SOURCES it is a library of headers.
# One that is APART has none, is not installed and no part of knear::knear.
function(knear_library name)
  cmake_parse_arguments(ARG "APART" "" "HEADERS;SOURCES;SOURCES_x86_64;SOURCES_aarch64;LINKS;PRIVATE_LINKS" ${ARGN})
  knear_layer(layer ${name})
  foreach(link IN LISTS ARG_LINKS ARG_PRIVATE_LINKS)
    if(link MATCHES "^knear::(.*)")
      knear_layer(link_layer ${CMAKE_MATCH_1})
      if(layer EQUAL -1 OR link_layer EQUAL -1 OR NOT link_layer LESS layer)
        message(FATAL_ERROR "knear/${name} may not link to ${link}: see KNEAR_LAYERS")
      endif()
    endif()
  endforeach()

  if(ARG_SOURCES)
    knear_units(units ${name} ${ARG_SOURCES} ${ARG_SOURCES_${KNEAR_PROCESSOR}})
    add_library(knear_${name} STATIC ${units})
    set(scope PUBLIC)
    set_target_properties(knear_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(knear_${name} PRIVATE ${ARG_PRIVATE_LINKS})
    knear_flags(knear_${name})
  else()
    add_library(knear_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(knear::${name} ALIAS knear_${name})
  set_target_properties(knear_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(knear_${name} ${scope} ${ARG_LINKS})
  target_include_directories(knear_${name} ${scope} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(knear_${name} ${scope} cxx_std_20)
  target_sources(knear_${name} ${scope} FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                                        FILES ${ARG_HEADERS})

  if(NOT ARG_APART)
    set_property(GLOBAL APPEND PROPERTY KNEAR_LIBRARIES knear_${name})
  endif()
endfunction()

# Warnings, and no contraction: a product and a sum may become one rounding only where written so.
function(knear_flags target)
  # -Wrestrict of GCC 12 misfires on std::string (its bug 105651).
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wno-psabi
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                         -ffp-contract=off
                         $<$<BOOL:${KNEAR_WERROR}>:-Werror>)
endfunction()

# knear_tests(ROOM LINKS ... SOURCES folder/x_test.cpp ... [WITH other.cpp ...]): adds the GoogleTest
# program ROOM_tests, and one ctest entry x_test for each source, with the label ROOM. If
# KNEAR_TEST_NAMES names tests (x_test;...), other sources are left out, and programs without any.
set(KNEAR_TEST_NAMES "" CACHE STRING "Names of the tests to build (x_test;y_test); empty builds all")
# Most tests run for milliseconds, so they are compiled with -O1, which takes two thirds of the time of
# -O3. These keep the flags of the build type: at -O1 GCC 12 gives the first two a false warning, and
# the third tests that nothing touches its registers.
set(KNEAR_OPTIMISED_TESTS out_of_memory_test memory_limit_test warpgroup_test)
function(knear_tests room)
  cmake_parse_arguments(ARG "" "" "LINKS;SOURCES;WITH" ${ARGN})
  set(sources "")
  foreach(source IN LISTS ARG_SOURCES)
    set_property(GLOBAL APPEND PROPERTY KNEAR_TEST_SOURCES ${source})
    get_filename_component(name ${source} NAME_WE)
    if(NOT KNEAR_TEST_NAMES OR name IN_LIST KNEAR_TEST_NAMES)
      list(APPEND sources ${source})
      if(NOT name IN_LIST KNEAR_OPTIMISED_TESTS)
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O1>)
      endif()
    endif()
  endforeach()
  if(NOT sources)
    return()
  endif()
  if(NOT TARGET knear_test_main)
    add_library(knear_test_main OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/main.cpp)
    target_link_libraries(knear_test_main PUBLIC GTest::gtest)
    target_compile_features(knear_test_main PUBLIC cxx_std_20)
    knear_flags(knear_test_main)
    add_custom_target(test_programs)
  endif()
  add_executable(${room}_tests ${sources} ${ARG_WITH})
  target_link_libraries(${room}_tests PRIVATE knear_test_main ${ARG_LINKS})
  knear_flags(${room}_tests)
  add_dependencies(test_programs ${room}_tests)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    knear_test_entry(${name} ${room}_tests ${room} --source=${name})
  endforeach()
endfunction()

# knear_test_entry(NAME PROGRAM ROOM ARGUMENT ...): adds a ctest entry. Its cases go to a file that
# scripts/test_summary.py counts. Its cache folder is empty, so that plans use estimated peaks and not
# peaks that were measured on this machine.
function(knear_test_entry name program room)
  add_test(NAME ${name} COMMAND ${program} ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${room} ENVIRONMENT
    "XDG_CACHE_HOME=${PROJECT_BINARY_DIR}/no-cache;GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/test-results/${name}.xml")
endfunction()

# What the kernels are compiled for. Each kind of processor has sources of its own, which a folder's
# CMakeLists.txt lists as SOURCES_x86_64 and SOURCES_aarch64.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(KNEAR_PROCESSOR x86_64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  set(KNEAR_PROCESSOR aarch64)
elseif(PROJECT_NAME)  # and not a script
  message(FATAL_ERROR "knear has kernels for x86_64 and aarch64, but CMAKE_SYSTEM_PROCESSOR is '${CMAKE_SYSTEM_PROCESSOR}'")
endif()

# knear_isa_sources(STEM): gives STEM_avx2.cpp, STEM_avx512.cpp, ... of this folder, where they
# exist, the flags of their level; nothing else is compiled with them. Called before knear_library.
set(KNEAR_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(KNEAR_FLAGS_avx512 ${KNEAR_FLAGS_avx2} -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl
    -mprefer-vector-width=512)
set(KNEAR_FLAGS_avx512_vnni ${KNEAR_FLAGS_avx512} -mavx512vnni)
set(KNEAR_FLAGS_avx512_amx ${KNEAR_FLAGS_avx512_vnni} -mamx-tile -mamx-int8)
set(KNEAR_FLAGS_avx512_vbmi ${KNEAR_FLAGS_avx512} -mavx512vbmi)
set(KNEAR_FLAGS_avx512_popcnt ${KNEAR_FLAGS_avx512} -mavx512vpopcntdq)
# Scheduled before registers are given out, GCC 12 spills sums in the loops of SADALP and USMMLA.
set(KNEAR_FLAGS_neon -march=armv8-a $<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>)
set(KNEAR_FLAGS_neon_dot -march=armv8.2-a+dotprod)
set(KNEAR_FLAGS_neon_i8mm -march=armv8.2-a+dotprod+i8mm
    $<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>)
function(knear_isa_sources stem)
  foreach(level scalar portable avx2 avx512 avx512_vnni avx512_amx avx512_vbmi avx512_popcnt neon neon_dot neon_i8mm)
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${stem}_${level}.cpp)
      set_source_files_properties(${stem}_${level}.cpp PROPERTIES
                                  COMPILE_OPTIONS "${KNEAR_FLAGS_${level}}" KNEAR_ALONE ON)
    endif()
  endforeach()
endfunction()
