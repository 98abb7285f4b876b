// knear/core/version.hpp -- the version, in one place; CMake and the Python package read it from
// here.
#pragma once

#define KNEAR_VERSION "0.1.0"
