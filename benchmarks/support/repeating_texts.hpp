// SPDX-License-Identifier: MIT
// Texts whose ends repeat what came before, as answers of a model would, and one that does not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace measure {

struct RepeatingText {
  std::string_view name;
  std::string prompt;
  std::string answer;
};

inline std::vector<RepeatingText> repeating_texts();

// ---- Implementation: nothing below is API ----

inline constexpr std::string_view kFunction = R"(
/// The longest run of equal values, and where it begins.
struct Run {
  std::size_t begin = 0;
  std::size_t size = 0;
};

Run longest_run(const std::vector<int>& values) {
  Run best;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != values[begin]) {
      begin = i;
    }
    const std::size_t size = i - begin + 1;
    if (size > best.size) {
      best.begin = begin;
      best.size = size;
    }
  }
  return best;
}
)";

inline constexpr std::string_view kArticle =
    "The old harbour of the town has not seen a trading ship for sixty years. Where cranes once "
    "lifted coffee and timber, gulls sit on rusty bollards and children fish for crabs. Last "
    "spring the council decided to open the western basin again, not for freight but for small "
    "ferries that will carry commuters across the bay. \"A boat needs eleven minutes for a way "
    "that takes a bus fifty\", said the engineer who drew the plans. Two of the ferries are driven "
    "by batteries that are charged at the pier while passengers come aboard. Critics fear for the "
    "eelgrass that has grown in the quiet water and in which herring spawn every March. The "
    "council has promised to dredge only in autumn and to plant a second meadow behind the mole.";

inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

inline std::vector<RepeatingText> repeating_texts() {
  const std::string code(kFunction), article(kArticle);
  return {
      {"edit",
       "Rename `best` to `longest` in this code and let empty input return at once.\n" + code +
           "\n",
       replaced(replaced(code, "best", "longest"), "Run longest;\n",
                "Run longest;\n  if (values.empty()) return longest;\n")},
      {"summary",
       "Summarize the article in five sentences, with quotations.\n\n" + article + "\n\n",
       "A harbour comes back to life: \"the old harbour of the town has not seen a trading ship "
       "for "
       "sixty years\", but \"last spring the council decided to open the western basin again, not "
       "for freight but for small ferries that will carry commuters across the bay\". According to "
       "the engineer, \"a boat needs eleven minutes for a way that takes a bus fifty\". Two boats "
       "\"are driven by batteries that are charged at the pier while passengers come aboard\". "
       "There is criticism because of \"the eelgrass that has grown in the quiet water and in "
       "which "
       "herring spawn every March\", and so the council \"has promised to dredge only in autumn "
       "and "
       "to plant a second meadow behind the mole\"."},
      {"prose", "Continue this article.\n\n" + article,
       " Nobody knows whether seedlings take root there: an attempt further north failed after one "
       "winter storm. Meanwhile fishermen from neighbouring villages hope for cheap moorings, a "
       "museum wants its steam tug back on open sea, and three cafes have applied for licences. "
       "Work begins with new fenders, lamps and railings; divers must first clear scrap iron, "
       "bicycles and an unexploded shell. If everything goes according to schedule, tickets will "
       "be "
       "sold from next June onwards, at prices below those of parking downtown. Until then, "
       "patience is needed, along with rubber boots."},
  };
}

}  // namespace measure
