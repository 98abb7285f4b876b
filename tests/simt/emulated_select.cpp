// select_rows() for the emulator.
#include "knear/select/warp/device_select.hpp"
#include "tests/simt/emulator.hpp"

namespace knear {
KNEAR_DEVICE_SELECT(template, HostQueue)
}
