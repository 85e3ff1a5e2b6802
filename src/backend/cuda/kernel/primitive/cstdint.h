// What kernel sources mean by <cstdint>: NVRTC has no C++ library, so its programs get this file under that name.
// The host's compilers, nvcc among them, read their own <cstdint>.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
