# Toolchain of the arm64 preset: Debian's cross compiler, the libraries that tools/setup_arm64 unpacked, and QEMU for programs
# that run during the build and in tests. Headers without machine code (Boost, CLI11, doctest, ...) are those of this machine.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)

set(packages ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-packages)
get_filename_component(packages ${packages} ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH ${packages} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(ENV{PKG_CONFIG_LIBDIR} ${packages}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${packages})
# For libraries that are named without a path, and for those that these libraries need.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L${packages}/usr/lib/aarch64-linux-gnu -Wl,-rpath,${packages}/usr/lib/aarch64-linux-gnu")
