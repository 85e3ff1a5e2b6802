// WHAT       One token a logits row: bias, masked stop ids, penalties, temperature, min_p, top_k, top_p, then the
//            largest logit + gumbel (temperature 0: the largest logit), or a draft that relaxed acceptance keeps in its
//            place. backend/ops.h SampleParams has the exact order.
// SHAPES     logits [num_logits, vocab_size] f32, unchanged; the running state as in RowState.
// LAYOUT     Row-major.
// NUMERICS   Adjusted logits in fp32 without contraction, in the order of ops.h, so greedy ties are those of every
//            back-end. Probabilities relative to the largest in fp64; their sums as integers of 2^-40, which add in any
//            order to the same bits. Gumbel noise and the last comparison in fp64: candidates are found with fp32
//            noise, which is off by less than 3e-6, and those within 2e-4 of the best are compared exactly.
// WORK       A cluster of 8 CTAs a row; each reads its slice once and keeps it, adjusted and divided by the
// temperature,
//            in shared memory: 64 KB up to 131,072 tokens, 80 KB up to 163,840, 176 KB up to 360,448, else in the
//            workspace. Greedy rows are one pass. A cut (the last token that is kept) is found by radix selection over
//            56-bit keys (logit, id), 8 bits a pass over the slice, until one token is left: some 5 passes for top_k
//            and 5 for top_p. Below sm_90: one CTA a row, values in the workspace.
// ROOFLINE   Memory: 4 * vocab_size bytes a row once. Expected for 1 / 32 / 128 rows of 128,256 on an H200, not
// measured:
//            greedy 5 / 8 / 20 us (the bytes: 0.1 / 3.5 / 14), temperature 15 / 25 / 70, top_k and top_p 35 / 60 / 180.
// WARM       3 s: always
// LIMITS     vocab_size < 2^24.
// TESTS      spate-conformance --backend cuda --filter sample
#include "backend/cuda/kernel/sample/sample_row.h"

namespace spate::cuda {

extern "C" __global__ void __launch_bounds__(kSampleThreads, 1) sample(const __grid_constant__ SampleKernelParams p) {
  sample_row<1>(p, nullptr);
}
extern "C" __global__ void __launch_bounds__(kSampleThreads, 1) SPATE_CLUSTER
    sample_cluster(const __grid_constant__ SampleKernelParams p) {
  sample_row<kSampleClusterCtas>(p, nullptr);
}

}  // namespace spate::cuda
