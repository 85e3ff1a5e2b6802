// Include this last in a test file: doctest, whose CHECK takes the place of base/check.h's from here on (in a unity
// build also in the test files behind it).
#pragma once

#include "base/check.h"
#undef CHECK
#include <doctest/doctest.h>
