// SPDX-License-Identifier: MIT
// The front door: every header of the library, in the order of its layers. A layer includes only
// itself and layers above it, so each header also works alone.
#pragma once

#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/checked.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
// quant
#include "kvick/quant/tensor_type.hpp"
