// The device's side of backend/product_tuning.h, and its table of tiles.
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "backend/cuda/cubin_cache.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/linear/wgmma_plan.h"
#include "backend/cuda/kernel_compiler.h"
#include "base/log.h"

namespace spate::cuda {
namespace {

// Any header of the kernels counts.
constexpr std::string_view kTunedProgram = "linear/linear_wgmma.cu";

std::string words_of(const TileChoice& choice) {
  return fmt::format("tiles of {} tokens, cut: {}", choice.tile_tokens, kTileCutNames[static_cast<size_t>(choice.cut)]);
}

}  // namespace

Status CudaDevice::read_tile_table(const GpuFacts& gpu) {
  int version = 0;
  api().cuDriverGetVersion(&version);
  ASSIGN_OR_RETURN(const std::string key, program_key(kAheadOfTime, modules_.sources(), kTunedProgram, architecture_));
  tile_table_key_ = {.device = gpu.name,
                     .driver_version = version,
                     .kernels = CubinCache(std::filesystem::path()).path_of(key).stem().string()};
  const std::filesystem::path folder = CubinCache::default_folder();
  if (is_deterministic_ || folder.empty()) return ok_status();
  const std::filesystem::path path = TileTable::path_of(folder, tile_table_key_);
  std::ifstream in(path, std::ios::binary);
  if (!in) return ok_status();
  std::ostringstream text;
  text << in.rdbuf();
  Result<TileTable> table = TileTable::parse(std::move(text).str(), tile_table_key_);
  if (!table.ok()) {
    log_warning("cuda", "{} is not used: {}; spate kernels tune makes it anew", path.string(),
                table.status().message());
    return ok_status();
  }
  tile_table_ = *std::move(table);
  log_info("cuda", "{} choices of tiles from {}", tile_table_.size(), path.string());
  return ok_status();
}

std::optional<TileChoice> CudaDevice::tile_choice(std::string_view kernel, int64_t out_features, int64_t num_steps,
                                                  int64_t num_tokens) const {
  if (is_deterministic_ || kernel.empty()) return std::nullopt;
  if (is_tuning_) {
    last_product_ = ProductShape{std::string(kernel), out_features, num_steps, num_tokens};
    if (tried_shape_ == last_product_) return tried_choice_;
  }
  return tile_table_.find(kernel, out_features, num_steps, num_tokens);
}

std::optional<ProductShape> CudaDevice::take_last_product() {
  is_tuning_ = !is_deterministic_;
  return std::exchange(last_product_, std::nullopt);
}

std::vector<std::string> CudaDevice::choices(const ProductShape& shape) const {
  std::vector<std::string> names = {"by rule"};
  for (const TileChoice& choice : tile_choices(num_sms_, shape.out_features, shape.num_tokens)) {
    names.push_back(words_of(choice));
  }
  return names;
}

void CudaDevice::try_choice(const ProductShape& shape, int choice_idx) {
  tried_shape_ = shape;
  tried_choice_.reset();
  if (choice_idx == 0) return;
  tried_choice_ = tile_choices(num_sms_, shape.out_features, shape.num_tokens)[static_cast<size_t>(choice_idx) - 1];
}

void CudaDevice::end_trials() {
  tried_shape_.reset();
  is_tuning_ = false;
}

void CudaDevice::keep_choice(const ProductShape& shape, int64_t min_num_tokens, int choice_idx) {
  std::optional<TileChoice> choice;
  if (choice_idx > 0) {
    choice = tile_choices(num_sms_, shape.out_features, shape.num_tokens)[static_cast<size_t>(choice_idx) - 1];
  }
  tile_table_.set(shape.kernel, shape.out_features, shape.num_steps, min_num_tokens, shape.num_tokens, choice);
}

Result<std::string> CudaDevice::save_choices() {
  const std::filesystem::path folder = CubinCache::default_folder();
  if (folder.empty()) return invalid_argument("there is no folder for compiled kernels: set SPATE_KERNEL_CACHE");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path path = TileTable::path_of(folder, tile_table_key_);
  std::filesystem::path partial = path;
  partial += fmt::format(".{}", getpid());
  std::ofstream out(partial, std::ios::binary);
  out << tile_table_.text(tile_table_key_);
  out.close();
  if (out) std::filesystem::rename(partial, path, error);
  if (!out || error) return unavailable("{} cannot be written", path.string());
  return path.string();
}

}  // namespace spate::cuda
