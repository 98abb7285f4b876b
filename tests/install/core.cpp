// Links to one folder of the library only, and to what that folder needs.
#include <knear/core/threads.hpp>

int main() { return knear::available_threads() >= 1 ? 0 : 1; }
