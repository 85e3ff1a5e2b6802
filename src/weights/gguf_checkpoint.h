// GGUF files as a model: its tensors under the names that Hugging Face gives them, its config from the metadata.
//
// A large model may be split: <name>-00001-of-00003.gguf and so on; any one of them names the model. The architectures
// are llama (also Mistral and Mixtral), qwen2, qwen2moe, qwen3, qwen3moe, ernie4_5, ernie4_5-moe, deepseek2 (V2, V3)
// and glm4moe. Experts, which lie in one tensor a layer, are shown one by one (weights/gguf_names.h).
//
// llama.cpp keeps q and k of Llama with the two halves of each head interleaved; rows come back in the order of Hugging
// Face. Types: weights/gguf/gguf_blocks.h. Threads: as WeightSource.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/pooling.h"
#include "weights/generation_config.h"
#include "weights/gguf/gguf.h"
#include "weights/model_config.h"
#include "weights/safetensors.h"

namespace spate {

struct GgufFormat;
struct GgufTensorName;

class GgufCheckpoint final : public WeightSource {
 public:
  // Errors list all problems of the tensors: a type that is not read, bytes outside of the file, rows of no whole
  // blocks, tensors that overlap or leave a gap.
  static Result<std::unique_ptr<GgufCheckpoint>> open(const std::filesystem::path& path);
  // `files`: their bytes, the first with the metadata; they outlive the result.
  static Result<std::unique_ptr<GgufCheckpoint>> parse(const std::vector<std::string_view>& files);

  // Errors name the key of the metadata, or of the config.json that it stands for.
  Result<ModelConfig> model_config() const;
  Result<GenerationConfig> generation_config() const;
  Result<PoolingConfig> pooling_config() const;

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override;
  const std::string& file_name(int file_idx) const override { return file_names_[static_cast<size_t>(file_idx)]; }
  std::string_view layout() const override { return "gguf"; }
  std::vector<SourceFile> files() const override { return source_files_; }
  Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const override;
  Result<QuantizedHostRows> quantized_rows(const TensorEntry& entry, int64_t begin, int64_t end) const override;
  void release(const TensorEntry& entry, int64_t begin, int64_t end) const override;

 private:
  struct Place {
    const GgufFormat* format = nullptr;
    int64_t num_heads = 0;  // rows lie interleaved by head; 0: in order
    int64_t row_bytes = 0;
  };
  GgufCheckpoint() = default;
  Status read_tensors();
  Result<TensorEntry> read_tensor(const GgufTensorInfo& info, int file_idx, const GgufTensorName& name,
                                  Place& place) const;
  static void add_shown(const TensorEntry& whole, const GgufTensorName& name, Place place,
                        std::vector<std::pair<TensorEntry, Place>>& shown);
  // Where a row lies.
  const char* row_data(const TensorEntry& entry, const Place& place, int64_t row) const;
  const Place& place_of(const TensorEntry& entry) const;

  std::vector<MappedFile> mappings_;      // empty after parse()
  std::vector<std::string_view> bytes_;   // of each file
  std::vector<SourceFile> source_files_;  // empty after parse()
  std::vector<GgufFile> files_;
  std::vector<std::string> file_names_;
  std::vector<TensorEntry> entries_;
  std::vector<Place> places_;                         // of entries_
  std::map<std::string, size_t, std::less<>> index_;  // name -> entries_
  std::vector<float> rope_factors_;                   // rope_freqs.weight
};

}  // namespace spate
