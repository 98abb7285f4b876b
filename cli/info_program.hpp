// cli/info_program.hpp -- what `knear info` says without files: about this knear and this machine.
#pragma once

namespace knear::cli {

// Prints version, instruction sets, CUDA and GPUs, as text or as one JSON object. Throws
// InvalidArgument where KNEAR_ISA is no level of this machine.
void describe_program(bool json);

}  // namespace knear::cli
