// What every back-end may assume of an op's parameters, said once: shapes, dtypes and aliasing as in ops.h.
// A back-end calls check_params(params) at the start of an op; a violation is a bug of the caller and stops the program
// with the op's name, the tensor and both shapes. Costs some 0.2 us an op.
#pragma once

#include "backend/ops.h"

namespace spate {

void check_params(const EmbeddingParams& p);
void check_params(const LinearParams& p);
void check_params(const RmsNormParams& p);
void check_params(const AddParams& p);
void check_params(const SiluAndMulParams& p);
void check_params(const RopeParams& p);
void check_params(const KvWriteParams& p);
void check_params(const AttentionPagedParams& p);
void check_params(const GatherRowsParams& p);
void check_params(const ScatterRowsParams& p);
void check_params(const ApplyUpdatesParams& p);
void check_params(const BeginStepParams& p);
void check_params(const SampleParams& p);
void check_params(const LogprobsParams& p);
void check_params(const FinishStepParams& p);
void check_params(const KvCopyBlocksParams& p);
void check_params(const RouteExpertsParams& p);
void check_params(const ExpertMlpParams& p);
void check_params(const LatentWriteParams& p);
void check_params(const AttentionLatentParams& p);
void check_params(const AttentionLatentExpandedParams& p);
void check_params(const LinearHeadsParams& p);
void check_params(const AddRmsNormParams& p);
void check_params(const ExpertMlpAddNormParams& p);
void check_params(const LatentNormRopeWriteParams& p);
void check_params(const QkNormRopeKvWriteParams& p);
void check_params(const QkNormRopeAttentionParams& p);
void check_params(const LinearSiluAndMulParams& p);

}  // namespace spate
