// Include this last in a test file: doctest, whose CHECK takes the place of base/check.h's from here on.
#pragma once

#include "base/check.h"
#undef CHECK
#include <doctest/doctest.h>
