# NCCL, for sums between the GPUs of knear-dist's processes (KNEAR_NCCL). Debian has it in non-free, as
# libnccl-dev; PyPI as nvidia-nccl-cu13, whose folder is nvidia/nccl of site-packages, without the link
# libnccl.so.
if(NOT KNEAR_CUDA OR NOT KNEAR_MPI)
  message(FATAL_ERROR "KNEAR_NCCL needs KNEAR_CUDA and KNEAR_MPI, which are '${KNEAR_CUDA}' and '${KNEAR_MPI}'")
endif()
find_path(KNEAR_NCCL_INCLUDE nccl.h HINTS ${NCCL_ROOT}/include ${CUDAToolkit_INCLUDE_DIRS})
find_library(KNEAR_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${NCCL_ROOT}/lib)
if(NOT KNEAR_NCCL_INCLUDE OR NOT KNEAR_NCCL_LIBRARY)
  message(FATAL_ERROR "KNEAR_NCCL needs nccl.h and libnccl, which are not here: name their folder by -D NCCL_ROOT=FOLDER")
endif()
