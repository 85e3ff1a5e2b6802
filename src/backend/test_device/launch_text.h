// The parameters of ops as text, complete: two launches do the same if and only if their texts are equal.
//
// Each overload names all members of its struct in a structured binding, so that a new member does not compile until it
// is named here too.
#pragma once

#include <string>

#include "backend/ops.h"

namespace spate {

std::string launch_text(const EmbeddingParams& p);
std::string launch_text(const LinearParams& p);
std::string launch_text(const RmsNormParams& p);
std::string launch_text(const AddParams& p);
std::string launch_text(const SiluAndMulParams& p);
std::string launch_text(const RopeParams& p);
std::string launch_text(const KvWriteParams& p);
std::string launch_text(const AttentionPagedParams& p);
std::string launch_text(const GatherRowsParams& p);
std::string launch_text(const ScatterRowsParams& p);
std::string launch_text(const ApplyUpdatesParams& p);
std::string launch_text(const BeginStepParams& p);
std::string launch_text(const SampleParams& p);
std::string launch_text(const LogprobsParams& p);
std::string launch_text(const FinishStepParams& p);
std::string launch_text(const KvCopyBlocksParams& p);
std::string launch_text(const RouteExpertsParams& p);
std::string launch_text(const ExpertMlpParams& p);
std::string launch_text(const LatentWriteParams& p);
std::string launch_text(const AttentionLatentParams& p);
std::string launch_text(const AttentionLatentExpandedParams& p);
std::string launch_text(const LinearHeadsParams& p);
std::string launch_text(const AddRmsNormParams& p);
std::string launch_text(const ExpertMlpAddNormParams& p);
std::string launch_text(const LatentNormRopeWriteParams& p);
std::string launch_text(const QkNormRopeKvWriteParams& p);
std::string launch_text(const QkNormRopeAttentionParams& p);
std::string launch_text(const LinearSiluAndMulParams& p);
std::string launch_text(const StepKey& key);

}  // namespace spate
