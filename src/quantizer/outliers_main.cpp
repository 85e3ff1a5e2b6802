// spate-outliers: writes a model of the same function with large channels, to see what a number format makes of them.
//
//   spate-outliers MODEL OUT [--strength 256] [--channels 3] [--seed 1]
//   spate eval OUT --quantization int8
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "quantizer/outlier_model.h"

namespace spate {
namespace {

int usage() {
  std::fprintf(stderr, "usage: spate-outliers MODEL OUT [--strength 256] [--channels 3] [--seed 1]\n");
  return 2;
}

template <typename Number>
bool read_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

int run_program(int argc, char** argv) {
  OutlierOptions options;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--")) {
      paths.emplace_back(word);
      continue;
    }
    if (i + 1 == argc) return usage();
    const std::string_view value = argv[++i];
    const bool good = word == "--strength"   ? read_number(value, options.strength)
                      : word == "--channels" ? read_number(value, options.channels)
                      : word == "--seed"     ? read_number(value, options.seed)
                                             : false;
    if (!good) return usage();
  }
  if (paths.size() != 2) return usage();
  const Status status = write_outlier_model(paths[0], options, paths[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace spate

int main(int argc, char** argv) { return spate::run_program(argc, argv); }
