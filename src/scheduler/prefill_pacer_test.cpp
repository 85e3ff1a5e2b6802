// Goal: with a cost of a fixed time a step and a time a prompt token, the pacer's steps stay within the stall, which
// grows where more wait than run; without a limit or knowledge it does not hold anything back.
#include "scheduler/prefill_pacer.h"

#include "base/test.h"

namespace spate {
namespace {

TEST_CASE("steps fit the stall once the costs are known") {
  PrefillPacer pacer(0.100, 2048);
  CHECK(pacer.max_prefill_tokens(64, 64, 1) == 2048);  // nothing is known
  const auto seconds = [](int num_decode_tokens, int num_prefill_tokens) {
    return (num_decode_tokens > 0 ? 0.030 : 0.0) + num_prefill_tokens * 0.0005;
  };
  pacer.record(0, 512, seconds(0, 512));
  for (int i = 0; i < 20; ++i) {
    pacer.record(8, 0, seconds(8, 0));
    const int tokens = pacer.max_prefill_tokens(8, 8, 8);
    pacer.record(8, tokens, seconds(8, tokens));
  }
  CHECK(pacer.max_prefill_tokens(8, 8, 8) == doctest::Approx(140).epsilon(0.02));  // (100 - 30) ms / 0.5 ms
  // More wait than run: so many times the stall, up to a bound.
  CHECK(pacer.max_prefill_tokens(8, 8, 24) == doctest::Approx(540).epsilon(0.02));
  CHECK(pacer.max_prefill_tokens(1, 1, 1000) ==
        doctest::Approx((100 * PrefillPacer::kMaxFactor - 30) / 0.5).epsilon(0.02));
  CHECK(pacer.max_prefill_tokens(24, 24, 8) == pacer.max_prefill_tokens(8, 8, 8));
}

TEST_CASE("prompts get half the time where decoding alone takes longer than the stall") {
  PrefillPacer pacer(0.010, 2048);
  pacer.record(64, 0, 0.5);
  pacer.record(64, 100, 0.6);  // 0.3 s of it is counted as decoding: at least half a step is the prompt's
  CHECK(pacer.max_prefill_tokens(64, 64, 1) == doctest::Approx(0.5 / 0.003).epsilon(0.01));
  PrefillPacer slow(0.010, 2048);  // a prompt token costs more than the time there is
  slow.record(4, 0, 0.02);
  slow.record(0, 8, 8.0);
  CHECK(slow.max_prefill_tokens(64, 64, 1) == PrefillPacer::kMinTokens);
  PrefillPacer tiny(0.010, 4);  // a step smaller than the least share
  tiny.record(1, 0, 0.5);
  tiny.record(0, 8, 0.6);
  CHECK(tiny.max_prefill_tokens(64, 64, 1) == 4);
}

TEST_CASE("paced steps of several tiles have whole ones") {
  PrefillPacer pacer(0.100, 8192);
  pacer.record(64, 0, 0.020);
  pacer.record(0, 1000, 0.050);
  CHECK(pacer.max_prefill_tokens(64, 64, 1) == 1536 - 64);  // (100 - 20) ms / 50 us: 1,600
  CHECK(pacer.max_prefill_tokens(64, 200, 1) == 1792 - 200);
  PrefillPacer small(0.100, 8192);
  small.record(64, 0, 0.020);
  small.record(0, 1000, 0.100);
  CHECK(small.max_prefill_tokens(64, 64, 1) == 800);  // 864 in all: less than four tiles
}

TEST_CASE("no limit, and an executor that tells no times") {
  PrefillPacer unlimited(0, 512);
  unlimited.record(0, 512, 100);
  CHECK(unlimited.max_prefill_tokens(64, 64, 1) == 512);
  PrefillPacer blind(0.1, 512);
  blind.record(0, 512, 0);
  CHECK(blind.max_prefill_tokens(64, 64, 1) == 512);
}

}  // namespace
}  // namespace spate
