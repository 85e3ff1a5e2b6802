#include "model/mtp_modules.h"

#include <utility>

namespace spate {

Result<std::vector<MtpModule>> make_mtp_modules(const PartFactory& make,
                                                const std::function<Result<DecoderLayer>(int64_t i)>& make_layer) {
  const ModelConfig& config = make.config();
  std::vector<MtpModule> modules;
  for (int64_t i = 0; i < config.num_mtp_layers; ++i) {
    const std::string name = fmt::format("model.layers.{}", config.num_layers + i);
    if (i >= make.num_mtp_layers()) {
      make.parameters().ignore(name + ".*");
      continue;
    }
    ASSIGN_OR_RETURN(RmsNorm enorm, make.rms_norm(name + ".enorm"));
    ASSIGN_OR_RETURN(RmsNorm hnorm, make.rms_norm(name + ".hnorm"));
    ASSIGN_OR_RETURN(Linear eh_proj, Linear::whole(make.parameters(), name + ".eh_proj", config.hidden_size,
                                                   2 * config.hidden_size, false));
    ASSIGN_OR_RETURN(DecoderLayer layer, make_layer(config.num_layers + i));
    ASSIGN_OR_RETURN(RmsNorm norm, make.rms_norm(name + ".shared_head.norm"));
    make.parameters().ignore(name + ".embed_tokens.weight");
    make.parameters().ignore(name + ".shared_head.head.weight");
    modules.push_back({.enorm = std::move(enorm),
                       .hnorm = std::move(hnorm),
                       .eh_proj = std::move(eh_proj),
                       .layer = std::move(layer),
                       .norm = std::move(norm)});
  }
  return modules;
}

}  // namespace spate
