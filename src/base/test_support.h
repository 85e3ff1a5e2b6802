// What unit tests share: seeded random tensors, poisoned outputs, the place of test data.
#pragma once

#include <pthread.h>

#include <filesystem>
#include <initializer_list>
#include <string>

#include "base/rng.h"
#include "base/status.h"
#include "base/tensor.h"

namespace spate {

// Fixed unless the environment variable SPATE_TEST_SEED is set; print it in failures.
uint64_t test_seed();

// Gaussian values of standard deviation `scale`, in a float dtype.
HostTensor random_tensor(Rng& rng, DType dtype, std::initializer_list<int64_t> dims, float scale = 1.0f);
// Filled with NaN (floats) or the lowest value (integers), so that an element nobody wrote fails.
HostTensor poisoned_tensor(DType dtype, std::initializer_list<int64_t> dims);
HostTensor copy_tensor(const Tensor& tensor);  // contiguous copy, same dtype

// The repository root (tests run from anywhere inside the build).
// TSan makes a program ten times slower: what one thread computes for minutes is shortened there.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kIsThreadSanitized = true;
#else
inline constexpr bool kIsThreadSanitized = false;
#endif

std::filesystem::path repo_root();
std::filesystem::path quantized_golden(const std::string& name);  // a model of test/goldens/quantized
// Data of others beside the checkout, or empty when the folder is absent: the test then prints
// "SKIPPED <reason>" by skip_test and passes; tools/run_tests counts those lines.
std::filesystem::path shared_data();
void skip_test(const std::string& reason);

std::string read_file_or_die(const std::filesystem::path& path);
void write_file_or_die(const std::filesystem::path& path, const std::string& bytes);  // makes its folder, too

bool says(const Status& status, const std::string& text);  // the message contains it

// While it lives, every new thread wants a stack that no address space holds.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, size_t{1} << 48);
    ::pthread_setattr_default_np(&attributes);
    ::pthread_attr_destroy(&attributes);
  }
  ~NoMoreThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

// A fresh folder under the system's temporary folder, removed with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace spate
