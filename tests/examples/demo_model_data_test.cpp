// SPDX-License-Identifier: MIT
// The stories and the tokenizer of the demo models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "demo_model/bpe_trainer.hpp"
#include "demo_model/demo_vocabulary.hpp"
#include "demo_model/story_grammar.hpp"
#include "kvick/core/error.hpp"
#include "kvick/text/tokenizer.hpp"

namespace {

using demo_model::ChoiceKind;
using demo_model::make_story;
using demo_model::Story;

/// Makes given choices, the first option where none is given, and notes how many options there
/// were.
struct Script {
  std::vector<int> choices;
  std::vector<int> num_options = {};

  int operator()(int count, ChoiceKind) {
    const std::size_t i = num_options.size();
    num_options.push_back(count);
    return i < choices.size() ? choices[i] : 0;
  }
};

bool is_vowel(char c) { return std::string_view("aeiouAEIOU").find(c) != std::string_view::npos; }

TEST(StoryGrammar, TellsTheSameStoryForTheSameSeedAndIndex) {
  EXPECT_EQ(make_story(7, 123).text, make_story(7, 123).text);
  EXPECT_NE(make_story(7, 123).text, make_story(7, 124).text);
  EXPECT_NE(make_story(7, 123).text, make_story(8, 123).text);
  std::set<std::string> texts;
  for (std::uint64_t i = 0; i < 2000; ++i) texts.insert(make_story(1, i).text);
  EXPECT_EQ(texts.size(), 2000u);
}

TEST(StoryGrammar, HasFarMoreThanTensOfMillionsOfStories) {
  // Counted by walking each plot: the options at each choice do not depend on earlier ones.
  demo_model::StoryCount count = 0;
  for (int plot = 0; plot < static_cast<int>(demo_model::kPlots.size()); ++plot) {
    Script script{{plot}};
    demo_model::tell_story(script);
    demo_model::StoryCount product = 1;
    for (std::size_t i = 1; i < script.num_options.size(); ++i) {
      product *= static_cast<unsigned>(script.num_options[i]);
    }
    count += product;
  }
  EXPECT_TRUE(count == demo_model::count_stories());
  EXPECT_GT(static_cast<double>(count), 1e18);
}

TEST(StoryGrammar, TellsAnotherTextForEachOptionOfEachChoice) {
  for (int plot = 0; plot < static_cast<int>(demo_model::kPlots.size()); ++plot) {
    Script probe{{plot}};
    demo_model::tell_story(probe);
    for (std::size_t choice = 1; choice < probe.num_options.size(); ++choice) {
      std::set<std::string> texts;
      for (int option = 0; option < probe.num_options[choice]; ++option) {
        std::vector<int> choices(probe.num_options.size(), 0);
        choices[0] = plot;
        choices[choice] = option;
        texts.insert(demo_model::tell_story(Script{choices}).text);
      }
      EXPECT_EQ(static_cast<int>(texts.size()), probe.num_options[choice])
          << demo_model::kPlots[static_cast<std::size_t>(plot)].name << ", choice " << choice;
    }
  }
}

TEST(StoryGrammar, GivesTheLogarithmOfTheProductOfProbabilities) {
  // The first of n wordings has probability 2 / (n + 1), a row or plot 1 / n.
  double expected = 0;
  const Story story = demo_model::tell_story([&](int n, ChoiceKind kind) {
    expected += std::log(kind == ChoiceKind::kEqual ? 1.0 / n : 2.0 / (n + 1));
    return 0;
  });
  EXPECT_NEAR(story.log_probability, expected, 1e-9);
}

TEST(StoryGrammar, DrawsStoriesAsOftenAsItsEntropySays) {
  constexpr int kNumStories = 4000;
  double sum = 0;
  double sum_of_squares = 0;
  for (std::uint64_t i = 0; i < kNumStories; ++i) {
    const double nats = -make_story(5, i).log_probability;
    sum += nats;
    sum_of_squares += nats * nats;
  }
  const double mean = sum / kNumStories;
  const double deviation = std::sqrt(sum_of_squares / kNumStories - mean * mean);
  EXPECT_NEAR(mean, demo_model::story_entropy(), 5 * deviation / std::sqrt(kNumStories));
}

TEST(StoryGrammar, AgreesInArticlesAndFillsEverySlot) {
  for (std::uint64_t i = 0; i < 4000; ++i) {
    const std::string text = make_story(3, i).text;
    ASSERT_EQ(text.find_first_of("[]"), std::string::npos) << text;
    ASSERT_EQ(text.find("  "), std::string::npos) << text;
    for (const std::string article : {" a ", " A ", "\"A ", "\"a "}) {
      for (std::size_t at = text.find(article); at != std::string::npos;
           at = text.find(article, at + 1)) {
        ASSERT_FALSE(is_vowel(text[at + article.size()])) << text.substr(at, 20);
      }
    }
    for (const std::string article : {" an ", " An "}) {
      for (std::size_t at = text.find(article); at != std::string::npos;
           at = text.find(article, at + 1)) {
        ASSERT_TRUE(is_vowel(text[at + article.size()])) << text.substr(at, 20);
      }
    }
    const auto num_words = 1 + std::count(text.begin(), text.end(), ' ');
    ASSERT_GE(num_words, 100) << text;
    ASSERT_LE(num_words, 250) << text;
  }
}

TEST(StoryGrammar, RefusesAnUnknownSlot) {
  const demo_model::Plot plot{"test", {{"hero", &demo_model::kChildren}}, {}};
  demo_model::detail::Bindings bindings(plot);
  bindings.bind(0);
  EXPECT_EQ(demo_model::detail::expand("[Hero.he], [a hero.kind]", bindings), "She, a girl");
  EXPECT_THROW(demo_model::detail::expand("[villain]", bindings), kvick::Error);
  EXPECT_THROW(demo_model::detail::expand("[hero.age]", bindings), kvick::Error);
}

TEST(BpeTrainer, MergesTheMostFrequentPairsFirst) {
  // " abab" and " ab": a b occurs 3 times, then mark + ab twice, then (mark ab) ab once.
  demo_model::BpeTrainer trainer;
  trainer.add_text("abab ab");
  const auto vocabulary = trainer.train(259 + 3 + 3);
  const std::string mark(kvick::kSpaceMark);
  const std::vector<std::string> text(vocabulary.pieces.begin() + 259, vocabulary.pieces.end());
  EXPECT_EQ(text, (std::vector<std::string>{"ab", mark + "ab", mark + "abab", "a", "b", mark}));
  EXPECT_EQ(vocabulary.scores[259], 0.0f);
  EXPECT_EQ(vocabulary.scores[260], -1.0f);
  EXPECT_EQ(vocabulary.types[258], kvick::TokenType::kByte);
  EXPECT_EQ(vocabulary.pieces[258], "<0xFF>");
  EXPECT_THROW(trainer.train(300), kvick::Error);  // there are only three merges
  EXPECT_THROW(trainer.train(260), kvick::Error);
}

TEST(BpeTrainer, MergesWithinWordsOnly) {
  const auto vocabulary = demo_model::make_vocabulary(1024);
  ASSERT_EQ(vocabulary.pieces.size(), 1024u);
  for (std::size_t i = 259; i < vocabulary.pieces.size(); ++i) {
    EXPECT_EQ(vocabulary.pieces[i].find(kvick::kSpaceMark, 1), std::string::npos);
  }
}

TEST(DemoVocabulary, GivesBack10000Stories) {
  const kvick::Tokenizer tokenizer(demo_model::make_vocabulary(1024));
  std::size_t num_tokens = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const std::string text = make_story(2, i).text;
    const auto tokens = tokenizer.encode(text);
    ASSERT_EQ(tokenizer.decode(tokens), text);
    ASSERT_LT(tokens.size(), 512u);
    num_tokens += tokens.size();
  }
  EXPECT_LT(num_tokens, 10000u * 280) << "most words must be one token";
  const std::string other = "Zwölf Boxkämpfer, 1024 ♥\n\t<s>";  // bytes where no piece fits
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(other)), other);
}

}  // namespace
