// make_mtp_modules(): the layers for multi-token prediction that lie behind a model's last layer, as DeepSeek-V3 has
// them. Those that nobody wants are ignored.
#pragma once

#include <functional>
#include <vector>

#include "model/decoder.h"
#include "model/part_factory.h"

namespace spate {

// `make_layer` makes the decoder layer of number i, counted on from the last layer. The modules' copies of the embedding
// and of lm_head are the model's own.
Result<std::vector<MtpModule>> make_mtp_modules(const PartFactory& make,
                                                const std::function<Result<DecoderLayer>(int64_t i)>& make_layer);

}  // namespace spate
