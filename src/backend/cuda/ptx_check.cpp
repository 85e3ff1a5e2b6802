#include "backend/cuda/ptx_check.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <vector>

namespace spate::cuda {
namespace {

struct Instruction {
  std::string text;  // without predicate and ';'
  bool is_predicated = false;
};

struct Code {
  std::vector<Instruction> instructions;
  std::map<std::string, size_t, std::less<>> labels;  // index of the instruction that follows
};

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n\r");
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(" \t\n\r") - begin + 1);
}

// The text between the braces of a kernel, empty when it does not exist.
std::string_view body_of(std::string_view ptx, std::string_view kernel) {
  const size_t entry = ptx.find(fmt::format(".entry {}(", kernel));
  if (entry == ptx.npos) return {};
  const size_t begin = ptx.find("\n{", entry), end = ptx.find("\n}", begin);
  return begin == ptx.npos || end == ptx.npos ? std::string_view() : ptx.substr(begin + 2, end - begin - 2);
}

std::string without_comments(std::string_view body) {
  std::string text;
  while (!body.empty()) {
    const size_t line_end = std::min(body.find('\n'), body.size() - 1) + 1;
    const std::string_view line = body.substr(0, line_end);
    text += line.substr(0, line.find("//"));
    text += '\n';
    body.remove_prefix(line_end);
  }
  return text;
}

// Splits a body at ';', '{', '}' and ':'. Braces of a register list belong to their instruction; those of a block stand
// alone.
Code parse(std::string_view body) {
  Code code;
  const std::string text = without_comments(body);
  std::string statement;
  for (const char c : text) {
    const std::string_view so_far = trimmed(statement);
    if (c == ':' && so_far.starts_with("$")) {
      code.labels.emplace(so_far, code.instructions.size());
      statement.clear();
    } else if (c == ';') {
      Instruction instruction{.text = std::string(so_far)};
      if (so_far.starts_with("@")) {
        instruction.is_predicated = true;
        instruction.text = trimmed(so_far.substr(std::min(so_far.find_first_of(" \t"), so_far.size())));
      }
      if (!instruction.text.empty() && !instruction.text.starts_with(".")) code.instructions.push_back(instruction);
      statement.clear();
    } else if ((c == '{' || c == '}') && so_far.empty()) {
      continue;
    } else {
      statement += c;
    }
  }
  return code;
}

// Whose copies of five dimensions bring weights; those of others bring keys, which a kernel before may have written.
constexpr std::string_view kWeightsIn5d[] = {"linear_silu_wgmma", "expert_int8_down"};

// Whose copies by threads bring nothing but weights.
constexpr std::string_view kCopiesWeights[] = {"linear_chain",  "expert_chain", "expert_stream",
                                               "latent_values", "rms_norm",     "add_rms_norm"};

// What down of experts reads early: ids of a kernel that ended before the one ahead let it start, and the order that it
// makes of them in shared memory, by addresses without a state space.
bool reads_expert_ids(std::string_view opcode, std::string_view kernel) {
  const bool is_order = opcode == "ld.u32" || opcode == "ld.v2.u16" || opcode == "ld.v4.u32";
  return (opcode == "ld.relaxed.gpu.global.s32" || is_order) && kernel.starts_with("expert") &&
         kernel.find("down") != kernel.npos;
}

// Decode attention and the kernel ahead of it read before they wait where the launcher knows that nothing that still
// runs writes it (reads_early of their parameters). They store nothing there.
bool reads_step_early(std::string_view opcode, std::string_view kernel) {
  if (kernel.starts_with("qk_norm_rope_kv_write") || kernel == "latent_query") return opcode.starts_with("ld.global");
  return (kernel.starts_with("attention_decode_ring") || kernel.starts_with("attention_decode_cluster") ||
          kernel == "attention_latent_wgmma" || kernel == "attention_latent_wgmma_merge" || kernel == "latent_short") &&
         (opcode.starts_with("ld.global") || opcode.starts_with("cp.async.bulk.tensor."));
}

bool touches_global_memory(std::string_view text, std::string_view kernel) {
  const std::string_view opcode = text.substr(0, text.find_first_of(" \t"));
  // Bulk copies of weights to shared memory.
  if (opcode.starts_with("cp.async.bulk.tensor.2d.shared::cluster.global")) return false;
  if (opcode.starts_with("cp.async.bulk.shared::cluster.global")) return false;
  for (const std::string_view name : kWeightsIn5d) {
    if (opcode.starts_with("cp.async.bulk.tensor.5d.shared::cluster.global") && kernel.starts_with(name)) return false;
  }
  for (const std::string_view name : kCopiesWeights) {
    if (opcode.starts_with("cp.async.") && kernel.starts_with(name)) return false;
  }
  if (reads_expert_ids(opcode, kernel) || reads_step_early(opcode, kernel)) return false;
  for (const char* elsewhere : {".param", ".shared", ".local", ".const", "ld.global.nc"}) {
    if (opcode.find(elsewhere) != opcode.npos && !opcode.starts_with("cp.")) return false;
  }
  for (const char* access : {"ld.", "ldu.", "st.", "atom.", "red.", "cp.", "multimem.", "call"}) {
    if (opcode.starts_with(access)) return true;
  }
  return false;
}

}  // namespace

std::string access_before_wait(std::string_view ptx, std::string_view kernel) {
  const std::string_view body = body_of(ptx, kernel);
  if (body.empty()) return fmt::format("no kernel {}", kernel);
  const Code code = parse(body);
  std::set<size_t> seen;
  std::vector<size_t> starts = {0};
  while (!starts.empty()) {
    size_t i = starts.back();
    starts.pop_back();
    for (; seen.insert(i).second; ++i) {
      if (i == code.instructions.size()) return "the end of the kernel";
      const auto& [text, is_predicated] = code.instructions[i];
      if (text == "griddepcontrol.wait" && !is_predicated) break;
      if (text == "ret" || text == "exit" || touches_global_memory(text, kernel)) return text;
      if (text.starts_with("brx")) return text;  // an indirect branch: not followed
      if (!text.starts_with("bra")) continue;
      const std::string label = text.substr(text.find_last_of(" \t") + 1);
      const auto target = code.labels.find(label);
      // An assembly statement that waits for a barrier jumps back to its own start, which no compiler named.
      if (target == code.labels.end() && is_predicated && !label.starts_with("$")) continue;
      if (target == code.labels.end()) return text;
      starts.push_back(target->second);
      if (!is_predicated) break;
    }
  }
  return "";
}

}  // namespace spate::cuda
