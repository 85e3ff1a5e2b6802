// Functions of headers that the host's launchers and kernels share.
#pragma once

#ifdef __CUDACC__
#define SPATE_HOST_DEVICE __host__ __device__
#else
#define SPATE_HOST_DEVICE
#endif
