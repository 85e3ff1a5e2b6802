// The listener that answers a request of /v1/responses.
#pragma once

#include <functional>
#include <memory>

#include "server/api_response.h"
#include "server/responses_request.h"

namespace spate {

class ResponsesAnswer : public ChatListener {
 public:
  // How a background answer is ended by its id. Once, when the generation runs.
  virtual void set_cancel(std::function<void()> cancel) = 0;
};

std::shared_ptr<ResponsesAnswer> make_responses_answer(ResponsesRequest request, ResponseInfo info,
                                                       std::shared_ptr<HttpResponder> responder,
                                                       std::shared_ptr<ResponseStore> store);

}  // namespace spate
