// SPDX-License-Identifier: MIT
// The front door: every header of the library, in the order of its layers. A layer includes only
// itself and layers above it, so each header also works alone.
#pragma once

#include "kvick/core/aligned_buffer.hpp"
#include "kvick/core/checked.hpp"
#include "kvick/core/cpu.hpp"
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/fp_environment.hpp"
#include "kvick/core/half.hpp"
#include "kvick/core/math.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/random.hpp"
#include "kvick/core/thread_count.hpp"
#include "kvick/core/thread_pool.hpp"
#include "kvick/core/version.hpp"

#include "kvick/kernels/contract.hpp"
#include "kvick/kernels/kernel_table.hpp"

#include "kvick/reference/attention.hpp"
#include "kvick/reference/common.hpp"
#include "kvick/reference/linear.hpp"
#include "kvick/reference/mlp.hpp"
#include "kvick/reference/rms_norm.hpp"
#include "kvick/reference/rope.hpp"

#include "kvick/quant/block_formats.hpp"
#include "kvick/quant/tensor_type.hpp"
#include "kvick/quant/weight_view.hpp"

#include "kvick/cache/contiguous_kv_cache.hpp"
#include "kvick/cache/kv_cache.hpp"
#include "kvick/cache/kv_storage.hpp"
#include "kvick/cache/kv_view.hpp"

#include "kvick/nn/attention.hpp"
#include "kvick/nn/context.hpp"
#include "kvick/nn/linear.hpp"
#include "kvick/nn/mlp.hpp"
#include "kvick/nn/rms_norm.hpp"
#include "kvick/nn/rope.hpp"

#include "kvick/gguf/byte_cursor.hpp"
#include "kvick/gguf/gguf_file.hpp"
#include "kvick/gguf/gguf_parser.hpp"
#include "kvick/gguf/gguf_tensor.hpp"
#include "kvick/gguf/gguf_value.hpp"
#include "kvick/gguf/gguf_writer.hpp"
#include "kvick/gguf/mapped_file.hpp"

#include "kvick/text/end_tokens.hpp"
#include "kvick/text/piece_index.hpp"
#include "kvick/text/special_matcher.hpp"
#include "kvick/text/spm_tokenizer.hpp"
#include "kvick/text/stop_matcher.hpp"
#include "kvick/text/streaming_decoder.hpp"
#include "kvick/text/tokenizer.hpp"
#include "kvick/text/utf8.hpp"
#include "kvick/text/vocabulary.hpp"

#include "kvick/model/batch.hpp"
#include "kvick/model/language_model.hpp"
#include "kvick/model/model_config.hpp"
#include "kvick/model/transformer.hpp"
#include "kvick/model/weights.hpp"

#include "kvick/sampling/check_logits.hpp"
#include "kvick/sampling/evaluation.hpp"
#include "kvick/sampling/logit_rules.hpp"
#include "kvick/sampling/logprobs.hpp"
#include "kvick/sampling/sampler.hpp"
#include "kvick/sampling/sampling_options.hpp"

