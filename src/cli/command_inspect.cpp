// spate inspect: what a model is and what it needs, without reading its weights.
#include <cstdio>
#include <filesystem>

#include "backend/kv_storage.h"
#include "base/system_memory.h"
#include "cli/commands.h"
#include "cli/llm_arguments.h"
#include "model/checkpoint_summary.h"
#include "weights/gguf/gguf_path.h"
#include "weights/open_weights.h"
#include "weights/quantization_config.h"

namespace spate {
namespace {

void print_line(const char* what, const std::string& value) { std::printf("  %-26s %s\n", what, value.c_str()); }

}  // namespace

Result<int> run_inspect(const Arguments& arguments) {
  const ModelArguments& m = arguments.model;
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(m.model));
  const DType act_dtype = act_dtype_of(m);
  ASSIGN_OR_RETURN(Quantization quantization, quantization_of(m));
  const BackEnd* named = find_back_end(m.device);
  const BackEnd& back_end = named != nullptr ? *named : host_back_end();
  const BackEndDefaults& defaults = back_end.defaults;
  const int max_num_batched_tokens = m.max_num_batched_tokens > 0 ? m.max_num_batched_tokens : defaults.max_num_batched_tokens;
  const int max_num_seqs = m.max_num_seqs > 0 ? m.max_num_seqs : defaults.max_num_seqs;
  const int64_t max_model_len = m.max_model_len > 0 ? m.max_model_len : config.max_position_embeddings;
  std::unique_ptr<WeightSource> weights;
  if (m.load_format != "dummy") {
    ASSIGN_OR_RETURN(weights, open_weights(m.model));
    RETURN_IF_ERROR(check_layout(quantization, weights->layout()));
  } else if (!is_gguf_path(m.model)) {
    const std::filesystem::path path = m.model;
    ASSIGN_OR_RETURN(quantization, dummy_quantization(std::filesystem::is_directory(path) ? path : path.parent_path(),
                                                      quantization, act_dtype == DType::kF32));
  }
  ASSIGN_OR_RETURN(const ModelMemory memory, Model::memory(config, {.rank = 0, .size = m.tensor_parallel_size},
                                                           {.act_dtype = act_dtype,
                                                            .kv_dtype = kv_dtype_of(m),
                                                            .quantization = quantization,
                                                            .source = weights.get(),
                                                            .limits = {.max_model_len = static_cast<int>(max_model_len),
                                                                       .max_num_seqs = max_num_seqs,
                                                                       .max_num_batched_tokens = max_num_batched_tokens,
                                                                       .max_num_logits = defaults.max_num_logits,
                                                                       .kv_block_size = m.block_size}}));
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, back_end.make_device({.num_threads = 1}));
  const int64_t block_bytes = kv_block_bytes(*device, memory.kv_layers);
  std::printf("%s\n", config.architecture.c_str());
  print_line("parameters", fmt::format("{:.3f} billion", static_cast<double>(memory.num_parameters) / 1e9));
  print_line("layers", fmt::format("{} x hidden {} x intermediate {}", config.num_layers, config.hidden_size,
                                   config.intermediate_size));
  print_line("heads",
             fmt::format("{} query, {} kv, head_dim {}", config.num_heads, config.num_kv_heads, config.head_dim));
  print_line("vocabulary",
             fmt::format("{}{}", config.vocab_size, config.tie_word_embeddings ? ", tied embeddings" : ""));
  print_line("rope", fmt::format("{}, theta {:g}", rope_type_name(config.rope.type), config.rope.theta));
  print_line("length", fmt::format("{} tokens", config.max_position_embeddings));

  if (weights != nullptr) std::printf("tensors\n%s", format_checkpoint_summary(summarize_checkpoint(*weights)).c_str());

  const char* per_rank = m.tensor_parallel_size > 1 ? " a rank" : "";
  const int64_t kv_bytes = (max_model_len + m.block_size - 1) / m.block_size * block_bytes;
  const int64_t need = memory.weight_bytes + memory.workspace_bytes + kv_bytes;
  const int64_t free_bytes = system_memory().available_bytes;
  std::printf("memory%s (%s)\n", per_rank, act_dtype == DType::kBf16 ? "bfloat16" : "float32");
  print_line("weights", format_bytes(memory.weight_bytes));
  print_line("workspace",
             fmt::format("{} for steps of {} tokens", format_bytes(memory.workspace_bytes), max_num_batched_tokens));
  print_line("KV cache", fmt::format("{} a token, {} for one sequence of {} tokens, {} for {}",
                                     format_bytes(block_bytes / m.block_size), format_bytes(kv_bytes), max_model_len,
                                     format_bytes(kv_bytes * max_num_seqs), max_num_seqs));
  if (need <= free_bytes) {
    print_line("fits this machine", fmt::format("yes: one full sequence needs {}, {} are free", format_bytes(need),
                                                format_bytes(free_bytes)));
  } else {
    const int64_t num_blocks = std::max<int64_t>(0, free_bytes - need + kv_bytes) / block_bytes;
    print_line("fits this machine",
               fmt::format("no: one full sequence needs {}, {} are free; {}", format_bytes(need), format_bytes(free_bytes),
                           num_blocks > 0 ? fmt::format("try --max-model-len {}", num_blocks * m.block_size)
                                          : "weights and workspace alone take more"));
  }
  return 0;
}

}  // namespace spate
