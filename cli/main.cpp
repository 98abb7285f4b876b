// cli/main.cpp -- the program knear.
#include "cli/run.hpp"

int main(int argc, char** argv) { return knear::cli::run_program(argc, argv); }
