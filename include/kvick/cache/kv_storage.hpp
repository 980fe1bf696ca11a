// SPDX-License-Identifier: MIT
// What a forward pass needs of a cache of keys and values, whatever its layout in memory.
//
// A cache holds one row per token, layer and KV head, for a number of independent sequences. Rows
// of a sequence are counted from position 0:
//
//   0 ............ length ............ reserved ............ max_seq_len
//     committed          may be written          no room yet
//
// Whoever drives the model reserves room before a forward pass and commits the tokens after it. The
// forward pass itself only writes rows, layer by layer, and reads runs of them.
//
// Shapes    Rows given to write() are [tokens][num_kv_heads * head_dim] floats.
// Accuracy  Rows are stored in element_type(), rounded to nearest, ties to even; integers with a
//           scale per row, see RowStore.
// Errors    write() throws Error(kArgument) or Error(kShape) before it stores anything; run() does
//           not check.
// Threads   write() may run at once for different (layer, sequence, position) rows, run() at any
//           time. Rows that are read must have been written before.
// Layer     cache: may include core, kernels.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "kvick/cache/row_store.hpp"  // IWYU pragma: export
#include "kvick/core/element_type.hpp"
#include "kvick/core/error.hpp"
#include "kvick/core/matrix.hpp"
#include "kvick/core/version.hpp"
#include "kvick/kernels/attention_window.hpp"

namespace kvick::inline v0_1 {

/// The sizes of a cache; all must be at least 1.
struct KVCacheOptions {
  int num_layers = 0;
  int batch_size = 1;  ///< independent sequences
  int num_kv_heads = 0;
  int max_seq_len = 0;  ///< positions per sequence
  int head_dim = 0;
  bool touches_memory = false;  ///< all pages at construction, not when first written
};

class KVStorage {
 public:
  virtual ~KVStorage() = default;

  ElementType element_type() const noexcept { return element_type_; }
  int num_layers() const noexcept { return sizes_.num_layers; }
  int num_sequences() const noexcept { return sizes_.batch_size; }
  int num_kv_heads() const noexcept { return sizes_.num_kv_heads; }
  int max_seq_len() const noexcept { return sizes_.max_seq_len; }
  int head_dim() const noexcept { return sizes_.head_dim; }

  /// The positions that this cache keeps for queries; attention must see no others.
  const AttentionWindow& window() const noexcept { return window_; }

  /// Bytes that a token takes in all layers: keys, values and their scales.
  std::size_t bytes_per_token() const noexcept {
    return static_cast<std::size_t>(num_layers()) * static_cast<std::size_t>(num_kv_heads()) *
           RowStore::bytes_per_row(element_type_, head_dim());
  }

  /// Committed tokens of a sequence.
  virtual int length(int sequence) const = 0;

  /// End of the positions of a sequence that may be written, at least its length.
  virtual int reserved(int sequence) const = 0;

  /// Stores rows at `position` and after; all must lie in [length, reserved). A row may be written
  /// again until it is committed.
  virtual void write(int layer, int sequence, int position, ConstMatrixRef keys,
                     ConstMatrixRef values) = 0;

  /// The longest run of positions stored with one stride that starts at `position`. It reaches to
  /// `reserved` at most, over rows that are not committed or not even written: readers clip it.
  /// Requires indices in range and position < reserved(sequence).
  virtual KVRun run(int layer, int sequence, int kv_head, int position) const noexcept = 0;

 protected:
  /// Throws Error(kArgument) in the name of `operation` unless all sizes are at least 1.
  KVStorage(ElementType element_type, const KVCacheOptions& sizes, std::string_view operation,
            const AttentionWindow& window = {});
  KVStorage(KVStorage&&) = default;  // moved by the classes that own memory, never sliced
  KVStorage& operator=(KVStorage&&) = default;

  void check_layer(int layer, std::string_view operation) const;
  void check_sequence(int sequence, std::string_view operation) const;

  /// Checks all that write() asks of its arguments.
  void check_write(int layer, int sequence, int position, const ConstMatrixRef& keys,
                   const ConstMatrixRef& values, std::string_view operation) const;

 private:
  ElementType element_type_;
  KVCacheOptions sizes_;
  AttentionWindow window_;
};

// ---- Implementation: nothing below is API ----

inline KVStorage::KVStorage(ElementType element_type, const KVCacheOptions& sizes,
                            std::string_view operation, const AttentionWindow& window)
    : element_type_(element_type), sizes_(sizes), window_(window) {
  using Size = std::pair<std::string_view, int>;
  for (const auto& [size_name, value] :
       {Size{"num_layers", sizes.num_layers}, Size{"batch_size", sizes.batch_size},
        Size{"num_kv_heads", sizes.num_kv_heads}, Size{"max_seq_len", sizes.max_seq_len},
        Size{"head_dim", sizes.head_dim}}) {
    detail::require(value >= 1, ErrorCode::kArgument, operation, size_name,
                    " must be at least 1, got ", value);
  }
}

inline void KVStorage::check_layer(int layer, std::string_view operation) const {
  detail::require(layer >= 0 && layer < num_layers(), ErrorCode::kArgument, operation,
                  "layer must be in [0, ", num_layers(), "), got ", layer);
}

inline void KVStorage::check_sequence(int sequence, std::string_view operation) const {
  detail::require(sequence >= 0 && sequence < num_sequences(), ErrorCode::kArgument, operation,
                  "sequence must be in [0, ", num_sequences(), "), got ", sequence);
}

inline void KVStorage::check_write(int layer, int sequence, int position,
                                   const ConstMatrixRef& keys, const ConstMatrixRef& values,
                                   std::string_view operation) const {
  check_layer(layer, operation);
  check_sequence(sequence, operation);
  const Index width = Index{num_kv_heads()} * head_dim();
  detail::require(keys.cols() == width && values.cols() == width, ErrorCode::kShape, operation,
                  "keys and values must have ", num_kv_heads(), " heads * ", head_dim(), " = ",
                  width, " columns, got ", keys.cols(), " and ", values.cols());
  detail::require(keys.rows() == values.rows(), ErrorCode::kShape, operation,
                  "keys and values must have one row per token each, got ", keys.rows(), " and ",
                  values.rows(), " rows");
  const int first = length(sequence);
  const int end = reserved(sequence);
  detail::require(position >= first && position + keys.rows() <= end, ErrorCode::kArgument,
                  operation, "rows must lie in the reserved positions [", first, ", ", end,
                  ") of sequence ", sequence, ", got [", position, ", ", position + keys.rows(),
                  ")");
}

}  // namespace kvick::inline v0_1
