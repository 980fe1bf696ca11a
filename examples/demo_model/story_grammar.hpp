// SPDX-License-Identifier: MIT
// Tells short stories for children: the training text of the demo models, in any quantity.
//
// A story draws one of the plots, then a row of a table for each variable of the plot, then a
// wording for each step. Plots and rows are equally likely; of n wordings the first has weight n,
// the last weight 1. Different choices give different texts, so the probability of its choices is
// the probability of a text, and the entropy of the choices is what no model's loss can be below.
//
// Accuracy  A story is a function of (seed, index), the same on every machine.
// Errors    Error(kArgument) for a template with a slot that no variable fills.
// Threads   Pure functions.
// Layer     example.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvick/core/error.hpp"
#include "kvick/core/random.hpp"
#include "story_plots.hpp"

namespace demo_model {

struct Story {
  std::string text;            ///< one paragraph
  double log_probability = 0;  ///< natural logarithm
};

/// The number of stories, exactly.
__extension__ using StoryCount = unsigned __int128;

enum class ChoiceKind {
  kEqual,   ///< all options are equally likely
  kFalling  ///< option i of n has weight n - i
};

/// Story `index` of the endless series that `seed` names.
inline Story make_story(std::uint64_t seed, std::uint64_t index);

/// The story of the choices made by `choose(num_options, kind)`, which returns an option.
template <class Choose>
Story tell_story(Choose&& choose);

/// How many different stories there are.
inline StoryCount count_stories();

/// Mean of -log_probability over all stories, in nats per story.
inline double story_entropy();

// ---- Implementation: nothing below is API ----

namespace detail {

inline double log_probability_of(int option, int num_options, ChoiceKind kind) {
  const double n = num_options;
  if (kind == ChoiceKind::kEqual) return -std::log(n);
  return std::log((n - option) / (n * (n + 1) / 2));
}

inline double choice_entropy(int num_options, ChoiceKind kind) {
  double entropy = 0;
  for (int i = 0; i < num_options; ++i) {
    const double log_p = log_probability_of(i, num_options, kind);
    entropy -= std::exp(log_p) * log_p;
  }
  return entropy;
}

inline int num_rows_to_draw(const Variable& variable) {
  return static_cast<int>(variable.table->rows.size()) - (variable.differs_from.empty() ? 0 : 1);
}

/// The rows drawn for the variables of a plot.
class Bindings {
 public:
  explicit Bindings(const Plot& plot) : plot_(plot) {}

  /// Binds the next variable to its `option`th row that is allowed.
  void bind(int option) {
    const Variable& variable = plot_.variables[rows_.size()];
    if (!variable.differs_from.empty() && option >= rows_[index_of(variable.differs_from)]) {
      ++option;
    }
    rows_.push_back(option);
  }

  /// The cell that a slot such as "hero.he" or "hero" means.
  std::string_view cell(std::string_view slot) const {
    const std::size_t dot = slot.find('.');
    const std::size_t variable = index_of(slot.substr(0, dot));
    const Table& table = *plot_.variables[variable].table;
    std::size_t column = 0;
    if (dot != std::string_view::npos) {
      while (column < table.columns.size() && table.columns[column] != slot.substr(dot + 1)) {
        ++column;
      }
    }
    require(column < table.columns.size(), slot);
    return table.rows[static_cast<std::size_t>(rows_[variable])][column];
  }

 private:
  std::size_t index_of(std::string_view name) const {
    std::size_t index = 0;
    while (index < rows_.size() && plot_.variables[index].name != name) ++index;
    require(index < rows_.size(), name);
    return index;
  }
  void require(bool ok, std::string_view name) const {
    kvick::detail::require(ok, kvick::ErrorCode::kArgument, "tell_story", "the plot ",
                           kvick::detail::in_quotes(plot_.name), " must fill the slot ",
                           kvick::detail::in_quotes(name));
  }

  const Plot& plot_;
  std::vector<int> rows_;
};

constexpr bool is_upper(char c) noexcept { return c >= 'A' && c <= 'Z'; }
constexpr char to_upper(char c) noexcept {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}
constexpr char to_lower(char c) noexcept {
  return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c;
}
constexpr bool is_vowel(char c) noexcept {
  return std::string_view("aeiou").find(to_lower(c)) != std::string_view::npos;
}

inline std::string expand(std::string_view wording, const Bindings& bindings);

/// The text of one slot: [hero.he], [Hero.he], [a trait], [An other].
inline std::string expand_slot(std::string slot, const Bindings& bindings) {
  const bool is_capital = is_upper(slot.front());
  slot.front() = to_lower(slot.front());
  std::string_view name = slot;
  const bool has_article = name.starts_with("a ") || name.starts_with("an ");
  if (has_article) name.remove_prefix(name.find(' ') + 1);
  std::string text = expand(bindings.cell(name), bindings);
  if (has_article) text.insert(0, is_vowel(text.front()) ? "an " : "a ");
  if (is_capital) text.front() = to_upper(text.front());
  return text;
}

inline std::string expand(std::string_view wording, const Bindings& bindings) {
  std::string text;
  for (;;) {
    const std::size_t open = wording.find('[');
    text += wording.substr(0, open);
    if (open == std::string_view::npos) return text;
    const std::size_t close = wording.find(']', open);
    text += expand_slot(std::string(wording.substr(open + 1, close - open - 1)), bindings);
    wording.remove_prefix(close + 1);
  }
}

}  // namespace detail

template <class Choose>
Story tell_story(Choose&& choose) {
  Story story;
  const auto draw = [&](std::size_t num_options, ChoiceKind kind) {
    const int option = choose(static_cast<int>(num_options), kind);
    story.log_probability +=
        detail::log_probability_of(option, static_cast<int>(num_options), kind);
    return option;
  };
  const Plot& plot = kPlots[static_cast<std::size_t>(draw(kPlots.size(), ChoiceKind::kEqual))];
  detail::Bindings bindings(plot);
  for (const Variable& variable : plot.variables) {
    const auto num_rows = static_cast<std::size_t>(detail::num_rows_to_draw(variable));
    bindings.bind(draw(num_rows, ChoiceKind::kEqual));
  }
  for (const Step& step : plot.steps) {
    const auto option = static_cast<std::size_t>(draw(step.size(), ChoiceKind::kFalling));
    if (!story.text.empty()) story.text += ' ';
    story.text += detail::expand(step[option], bindings);
  }
  return story;
}

inline Story make_story(std::uint64_t seed, std::uint64_t index) {
  kvick::PhiloxStream random(seed, index);
  return tell_story([&](int num_options, ChoiceKind kind) {
    const auto n = static_cast<std::uint32_t>(num_options);
    if (kind == ChoiceKind::kEqual) return static_cast<int>(random.next_below(n));
    std::uint32_t drawn = random.next_below(n * (n + 1) / 2);
    std::uint32_t option = 0;
    for (; drawn >= n - option; ++option) drawn -= n - option;
    return static_cast<int>(option);
  });
}

inline StoryCount count_stories() {
  StoryCount total = 0;
  for (const Plot& plot : kPlots) {
    StoryCount count = 1;
    for (const Variable& variable : plot.variables) {
      count *= static_cast<StoryCount>(detail::num_rows_to_draw(variable));
    }
    for (const Step& step : plot.steps) count *= step.size();
    total += count;
  }
  return total;
}

inline double story_entropy() {
  const auto num_plots = static_cast<double>(kPlots.size());
  double entropy = std::log(num_plots);
  for (const Plot& plot : kPlots) {
    double of_plot = 0;
    for (const Variable& variable : plot.variables) {
      of_plot += std::log(static_cast<double>(detail::num_rows_to_draw(variable)));
    }
    for (const Step& step : plot.steps) {
      of_plot += detail::choice_entropy(static_cast<int>(step.size()), ChoiceKind::kFalling);
    }
    entropy += of_plot / num_plots;
  }
  return entropy;
}

}  // namespace demo_model
