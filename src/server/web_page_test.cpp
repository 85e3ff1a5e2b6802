// Goal    Browsers get the page and its files under a policy that lets no foreign script run; others get a line of
// text. Method  The server over a socket. What the page does is tested in a browser: test/clients/web_page.mjs.
#include "server/web_page.h"

#include "server/server.h"
#include "server/test_client.h"
#include "server/test_model.h"

#include "base/test.h"

namespace spate {
namespace {

constexpr const char* kBrowser = "Accept: text/html,*/*\r\nAccept-Encoding: gzip, br\r\n";

ServerConfig page_config(bool ui) {
  ServerConfig config = test_server_config();
  config.api_key = {"secret"};
  config.ui = ui;
  return config;
}

TEST_CASE("a browser gets the page without a key, also while the model loads") {
  Server server(page_config(true));
  REQUIRE(server.listen().ok());
  TestClient client(server.port());
  const TestResponse page = client.get("/", kBrowser);
  CHECK(page.status == 200);
  CHECK(page.header("content-type") == "text/html; charset=utf-8");
  CHECK(page.header("content-encoding") == "gzip");
  CHECK(page.header("cache-control") == "no-cache");
  const std::string policy = page.header("content-security-policy");
  CHECK(policy.find("default-src 'none'; script-src 'self';") == 0);
  CHECK(policy.find("unsafe") == std::string::npos);
  CHECK(policy.find("http") == std::string::npos);
  CHECK(client.get("/").body.starts_with("Spate. The API is under /v1"));
  CHECK(client.get("/", "Accept: text/html\r\n").body.starts_with("Spate."));  // no gzip
}

TEST_CASE("the page's files are served from memory, and nothing else is") {
  Server server(page_config(true));
  REQUIRE(server.listen().ok());
  TestClient client(server.port());
  size_t num_bytes = 0;
  for (const WebPageFile& file : web_page_files()) {
    const TestResponse response = client.get("/ui/" + std::string(file.name) + "?1");
    CHECK(response.status == 200);
    CHECK(response.body == file.gzip);
    CHECK(response.body.starts_with("\x1f\x8b"));
    CHECK(response.header("x-content-type-options") == "nosniff");
    num_bytes += file.gzip.size();
  }
  CHECK(web_page_files().size() == 4);
  CHECK(num_bytes < 300'000);  // the budget of the page
  CHECK(client.get("/ui/").status == 404);
  CHECK(client.get("/ui/../server.h").status == 404);
  CHECK(client.get("/ui/app.js.gz").status == 404);
}

TEST_CASE("--no-ui leaves the line of text") {
  Server server(page_config(false));
  REQUIRE(server.listen().ok());
  TestClient client(server.port());
  CHECK(client.get("/", kBrowser).body.starts_with("Spate. The API is under /v1"));
  CHECK(client.get("/ui/app.js").status == 404);
}

}  // namespace
}  // namespace spate
