// The routes of the server: what answers which path. /openapi.json and docs/api.md list them from here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace spate {

enum class Endpoint {
  kChat,
  kCompletions,
  kMessages,
  kResponses,
  kTokensGenerate,
  kLlamaCompletion,
  kInfill,
  kEmbeddings,
  kLlamaEmbeddings,
  kScore,
  kRerank,
  kInvocations,  // make answers
  kModels,
  kModel,
  kTokenize,
  kDetokenize,
  kTokenizerInfo,
  kApplyTemplate,
  kProps,
  kAllowedTokens,
  kRenderChat,
  kRenderMessages,
  kRenderCompletion,
  kCountChatTokens,
  kCountResponseTokens,
  kCountTokens,
  kResponse,
  kDeleteResponse,
  kInputItems,
  kCancelResponse,  // need a model
  kRoot,
  kWebPage,
  kHealth,
  kLivez,
  kLoad,
  kServerVersion,
  kLoraAdapters,
  kSetLoraAdapters,
  kOpenApi,
  kMetrics,
  kLive,
  kSteps,
  kSlots,
  kLog,
  kAbort,
  kAbortRequests,
  kConfig,
  kAdminModels,
  kAdminLoad,
  kAdminUnload,
  kResetPrefixCache,
  kSleep,
  kWakeUp,
  kIsSleeping,  // ask for --enable-admin
};

struct Route {
  const char* path;
  const char* method;
  Endpoint endpoint;
  bool needs_key;
  const char* help;           // empty: another spelling of the route before
  uint32_t request_kind = 0;  // RequestKind of its body
};

std::span<const Route> routes();
std::span<const Route> id_routes();  // those with {id} in their path
// Null: there is no such path. A path under "/v1/models/" is the route of one model, whose id may contain slashes; one
// under "/v1/responses/" that of a stored response, one under "/ui/" the route of the page's files. Where a path takes
// several methods, the route is that of `method`, or the first.
const Route* find_route(std::string_view path, std::string_view method = {});
constexpr std::string_view kModelPrefix = "/v1/models/", kResponsePrefix = "/v1/responses/", kCancelSuffix = "/cancel",
                           kInputItemsSuffix = "/input_items";
constexpr std::string_view kWebPagePrefix = "/ui/";

// A path of another server that is not served here, for those who come from it.
struct ForeignPath {
  std::string_view path;  // with '*' at its end: and all that begin so
  const char* dialect;
  const char* help;  // what to use instead; a sentence
};
std::span<const ForeignPath> foreign_paths();
const ForeignPath* find_foreign_path(std::string_view path);

bool takes_method(const Route& route, std::string_view method);
std::string allowed_methods(const Route& route);  // for the header Allow
std::string taken_methods(const Route& route);    // for people: "GET and DELETE"
inline bool needs_model(Endpoint endpoint) { return endpoint < Endpoint::kRoot; }
inline bool is_messages(Endpoint endpoint) {
  return endpoint == Endpoint::kMessages || endpoint == Endpoint::kCountTokens || endpoint == Endpoint::kRenderMessages;
}
inline bool is_admin(Endpoint endpoint) { return endpoint >= Endpoint::kAdminModels; }
// Whose request says which model it wants: in its body, or with ?model= where it has none.
inline bool names_model(Endpoint endpoint) {
  return endpoint < Endpoint::kModels || (endpoint >= Endpoint::kTokenize && endpoint <= Endpoint::kCountTokens);
}
inline bool is_generation(Endpoint endpoint) { return endpoint < Endpoint::kModels; }

}  // namespace spate
