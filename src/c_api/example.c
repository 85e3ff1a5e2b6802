/* The C interface in use, and its test: a completion, a stream, a bad request.
 *   spate_example MODEL [FLAG...]
 */
#include <stdio.h>
#include <string.h>

#include "spate.h"

/* Runs one request to its end and prints what comes; gives the last event. */
static int run(spate_engine* engine, const char* path, const char* body, int* num_chunks) {
  spate_request* request = spate_start(engine, path, body);
  int event;
  char* json = NULL;
  *num_chunks = 0;
  do {
    event = spate_next(request, -1, &json);
    printf("%s %s\n", event == SPATE_CHUNK ? "chunk" : event == SPATE_DONE ? "done" : "failed", json ? json : "");
    *num_chunks += event == SPATE_CHUNK;
    spate_free(json);
  } while (event == SPATE_CHUNK);
  spate_request_free(request);
  return event;
}

int main(int argc, char** argv) {
  char* error = NULL;
  int num_chunks = 0, failed = 0;
  spate_engine* engine;
  if (argc < 2 || spate_abi_version() != SPATE_ABI_VERSION) {
    fprintf(stderr, "usage: %s MODEL [FLAG...]\n", argv[0]);
    return 2;
  }
  engine = spate_open((const char* const*)argv + 1, (size_t)(argc - 1), &error);
  if (engine == NULL) {
    fprintf(stderr, "%s\n", error);
    spate_free(error);
    return 1;
  }
  failed |= run(engine, "/v1/completions", "{\"prompt\": \"The river\", \"max_tokens\": 8}", &num_chunks) != SPATE_DONE;
  failed |= num_chunks != 0;
  failed |= run(engine, "/v1/chat/completions",
                "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"max_tokens\": 8, \"stream\": true}",
                &num_chunks) != SPATE_DONE;
  failed |= num_chunks < 2;
  failed |= run(engine, "/v1/completions", "{\"prompt\": \"x\", \"temperature\": 9}", &num_chunks) != SPATE_FAILED;
  failed |= run(engine, "/v1/nothing", "{}", &num_chunks) != SPATE_FAILED;
  spate_close(engine);
  printf(failed ? "FAILED\n" : "ok\n");
  return failed;
}
