// Which drafts relaxed acceptance may keep, token by token.
#include "engine/relaxed_drafts.h"

#include "base/test.h"

namespace spate {
namespace {

constexpr int32_t kBegin = 90, kEnd = 91, kStop = 92;

// A sequence with a prompt of three tokens and these behind it.
class RelaxedDraftsTest {
 public:
  RelaxedDraftsTest() {
    group_.request.prompt_token_ids = {1, kBegin, 3};  // a marker in the prompt says nothing
    group_.request.relaxed = {.top_k = 5, .delta = 0.5f, .begin_id = kBegin, .end_id = kEnd};
    group_.stop_ids = {kStop};
    seq_.group = &group_;
    seq_.prompt_len = 3;
    seq_.has_started = true;
    seq_.token_ids = group_.request.prompt_token_ids;
  }
  int count(std::vector<int32_t> new_tokens, std::vector<int32_t> drafts) {
    seq_.token_ids.insert(seq_.token_ids.end(), new_tokens.begin(), new_tokens.end());
    seq_.drafts = std::move(drafts);
    return num_relaxable_drafts(seq_);
  }
  RelaxedAcceptance& relaxed() { return group_.request.relaxed; }
  Sequence& seq() { return seq_; }

 private:
  SequenceGroup group_;
  Sequence seq_;
};

TEST_CASE_FIXTURE(RelaxedDraftsTest, "drafts are relaxed from the first token's marker to the end marker") {
  CHECK(count({kBegin}, {4, 5, 6}) == 3);
  CHECK(count({4, 5}, {}) == 0);
  CHECK(count({}, {4, kEnd, 6}) == 1);
  CHECK(count({}, {kEnd, 6}) == 0);
  CHECK(count({}, {4, 5, kStop}) == 2);
  CHECK(count({}, {kBegin, 5}) == 0);
  CHECK(count({7, kEnd}, {4, 5}) == 0);
  CHECK(count({kBegin, 8}, {4, 5}) == 0);  // an answer reasons once
}

TEST_CASE_FIXTURE(RelaxedDraftsTest, "drafts are relaxed from the start where the prompt ends inside the reasoning") {
  relaxed().has_begun = true;
  CHECK(count({4}, {5, 6}) == 2);
  CHECK(count({kEnd, 4}, {5, 6}) == 0);
}

TEST_CASE_FIXTURE(RelaxedDraftsTest, "an answer that does not begin with the marker reasons nowhere") {
  CHECK(count({4}, {5, 6}) == 0);
  CHECK(count({kBegin, 4}, {5, 6}) == 0);
}

TEST_CASE_FIXTURE(RelaxedDraftsTest, "nothing is relaxed unless asked for, nor behind tokens that are not known yet") {
  relaxed().has_begun = true;
  seq().max_pending_tokens = 1;
  CHECK(count({4}, {5, 6}) == 0);
  seq().max_pending_tokens = 0;
  CHECK(count({}, {5, 6}) == 2);
  relaxed().top_k = 0;
  CHECK(count({}, {5, 6}) == 0);
}

}  // namespace
}  // namespace spate
