// Links to one folder of the library only, and to the folders that it needs.
#include <knear/core/matrix.hpp>

int main() { return knear::Matrix<float>(2, 3).view().cols() == 3 ? 0 : 1; }
