/* spate.h: the C interface of Spate, a server of language models, inside a process of your own.
 *
 * It is the HTTP API without HTTP: a request is a path and a JSON body as in docs/api.md, an answer is JSON. What runs
 * behind it is the server's own engine: requests of all threads share its steps.
 *
 * Stable: functions are added, none changes. A struct is never passed. All texts are UTF-8, end with '\0', and are copied
 * before a call returns. Texts that come out belong to the caller, who gives them to spate_free().
 *
 * Threads: every function may be called from any thread; of one request, spate_next() by one thread at a time. No
 * function calls back.
 */
#ifndef SPATE_H
#define SPATE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SPATE_API __attribute__((visibility("default")))
#else
#define SPATE_API
#endif

#define SPATE_ABI_VERSION 1

typedef struct spate_engine spate_engine;
typedef struct spate_request spate_request;

/* What spate_next() gave. */
enum spate_event {
  SPATE_TIMEOUT = 0, /* nothing yet; *json is NULL */
  SPATE_CHUNK = 1,   /* of a request with "stream": true: one event's JSON; more will come */
  SPATE_DONE = 2,    /* the whole answer; NULL behind the last chunk of a stream */
  SPATE_FAILED = 3   /* {"error": {"message", "type", "param", "code"}} */
};

SPATE_API int spate_abi_version(void);      /* SPATE_ABI_VERSION of the library */
SPATE_API const char* spate_version(void);  /* "0.1.0"; do not free */
SPATE_API void spate_free(char* text);      /* NULL is fine */

/* Loads a model and starts its engine: seconds. `flags` are those of `spate serve` (docs/flags.md), the model first:
 * {"models/mini-qwen3", "--device", "cpu"}. Nothing listens: flags about sockets have no effect. NULL when it fails, and
 * *error says why. */
SPATE_API spate_engine* spate_open(const char* const* flags, size_t num_flags, char** error);

/* Ends what still runs. Requests of the engine must be freed before. NULL is fine. */
SPATE_API void spate_close(spate_engine* engine);

/* Starts a request: a path ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", ...) and its JSON body
 * ("" for /v1/models and its like). Never NULL; what is wrong with it, spate_next() tells. Returns when the engine has
 * the request: milliseconds. */
SPATE_API spate_request* spate_start(spate_engine* engine, const char* path, const char* body);

/* Waits for the next piece of the answer, at most so many seconds; below 0: without a limit. After SPATE_DONE or
 * SPATE_FAILED it must not be called again. */
SPATE_API int spate_next(spate_request* request, double timeout_seconds, char** json);

/* Ends the request early. spate_next() may still give what came before; then it gives SPATE_FAILED. */
SPATE_API void spate_cancel(spate_request* request);

/* Cancels what still runs. NULL is fine. */
SPATE_API void spate_request_free(spate_request* request);

#ifdef __cplusplus
}
#endif

#endif
