// What code that reads a YAML file may rely on, checked before it walks the file.
#pragma once

#include <string>

#include "base/status.h"

namespace YAML {
class Node;
}

namespace spate {

// The one document of the file `path`: its keys are texts, no text has a NUL, and its nodes have an end: neither an
// alias of itself nor aliases that grow tenfold with each line get further. An empty file is a null node. Errors begin
// with "NAME:LINE: ". May throw YAML::Exception.
Result<YAML::Node> load_yaml(const std::string& path);

// The line of `text` where a second document begins; 0: there is none. YAML::Load() would leave it out without a word.
// May throw YAML::Exception.
int second_document_line(const std::string& text);

}  // namespace spate
