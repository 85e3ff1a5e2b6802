// Ids that nobody can guess, of the kernel's random bytes.
#pragma once

#include <string>

namespace spate {

std::string random_hex(int num_digits);  // lower case

}  // namespace spate
