// cli/info_program.hpp -- what `knear info` says without files: of this knear and this machine.
#pragma once

namespace knear::cli {

// Version, instruction sets, CUDA and GPUs, as text or as one JSON object. Throws InvalidArgument
// where KNEAR_ISA is no level of this machine.
void describe_program(bool json);

}  // namespace knear::cli
