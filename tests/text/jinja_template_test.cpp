// SPDX-License-Identifier: MIT
#include "kvick/text/jinja_template.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "text/text_support.hpp"

namespace kvick {
namespace {

using Messages = std::vector<ChatMessage>;

const Messages kHi = {{"user", "Hi"}};

std::string joined(const std::vector<ChatText>& parts) {
  std::string text;
  for (const ChatText& part : parts) text += part.text;
  return text;
}

std::string run(std::string_view source, const Messages& messages = kHi) {
  return joined(JinjaTemplate(source).render(messages, {"<s>", "</s>"}));
}

/// What the error says.
std::string problem(std::string_view source, const Messages& messages = kHi) {
  try {
    run(source, messages);
  } catch (const Error& error) {
    return std::string(error.message());
  }
  return "";
}

void expect_cases(const std::vector<std::pair<const char*, const char*>>& cases) {
  for (const auto& [source, want] : cases) {
    EXPECT_NO_THROW({ EXPECT_EQ(run(source), want) << source; }) << source;
  }
}

TEST(JinjaTemplate, WritesMessages) {
  EXPECT_EQ(
      run("{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{{ eos_token "
          "}}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
          {{"user", "Hi"}, {"assistant", "Yes?"}}),
      "<s><user>Hi</s><assistant>Yes?</s><assistant>");
}

// By Jinja's documentation: trim_blocks, lstrip_blocks, and - or + in a tag.
TEST(JinjaTemplate, TreatsWhiteSpaceAsChatTemplatesExpect) {
  expect_cases({
      {"a\n{% if true %}\nb\n{% endif %}\nc", "a\nb\nc"},
      {"  {% if true %}  b  {% endif %}  ", "  b    "},
      {"a  {% if true %}b{% endif %}", "a  b"},
      {"a \n  {%+ if true %}b{% endif %}", "a \n  b"},
      {"{% if true +%}\nb{% endif %}", "\nb"},
      {"a \n {%- if true -%} \n b \n {%- endif %}", "ab"},
      {"a\n{{ 'b' }}\nc", "a\nb\nc"},
      {" a {{- 'b' -}} c ", " abc "},
      {"a{# comment {{ x }} #}b{#- c -#} d", "abd"},
      {"  {# c #}\nb", "b"},
      {"a\n", "a"},
      {"a\n\n", "a\n"},
      {"a\r\nb\r\n", "a\nb"},
      {"{% if true %}\n  {% if true %}\nx{% endif %}{% endif %}", "x"},
      {"{ {a} %} }} #}", "{ {a} %} }} #}"},
  });
}

TEST(JinjaTemplate, KnowsTheOperators) {
  expect_cases({
      {"{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "3 3 -4 2 3.5"},
      {"{{ 'a' + 'b' ~ 1 ~ none ~ true }} {{ 'ab' * 2 }} {{ 'a' 'b' }}", "ab1NoneTrue abab ab"},
      {"{{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ 2 < 10 }} {{ 'b' >= 'a' }}", "True True True True"},
      {"{{ 'a' in 'bar' }} {{ 1 not in [1, 2] }} {{ 'k' in {'k': 1} }}", "True False True"},
      {"{{ not true or true and false }} {{ '' or 'x' }} {{ 'x' and 'y' }}", "False x y"},
      {"{{ 'a' if false else 'b' }} {{ 'a' if false }}|", "b |"},
      {"{{ 'a' if true else 'b' if true else 'c' }}", "a"},
      {"{{ [1, 2, 3][-1] }} {{ 'abc'[1] }} {{ [1][5] }}|{{ {'a': {'b': 2}}.a['b'] }} {{ {3: "
       "'x'}[3] }}",
       "3 b |2 x"},
      {"{{ [1, 2, 3][1:] | join(',') }} {{ 'äbc'[:-1] }} {{ 'abc'[::-1] }} {{ [1, 2][5:] | length "
       "}}",
       "2,3 äb cba 0"},
      {"{{ 'abc'[-9:2] }} {{ 'abc'[1:-1] }} {{ [1, 2, 3][:-4] | length }}", "ab b 0"},
      {"{{ (1, 2) | length }} {{ () | length }} {{ -1 | abs }} {{ 3 is number }}", "2 0 1 True"},
      {"{{ \"it's\" }} {{ 'a\\n\\t\\\\\\'\\d' }}", "it's a\n\t\\'\\d"},
      {"{{ x }}{{ x is defined }} {{ x | default('d') }} {{ '' | default('d', true) }}",
       "False d d"},
  });
}

TEST(JinjaTemplate, KnowsTheStatements) {
  expect_cases({
      {"{% if 0 %}a{% elif '' %}b{% elif 1 %}c{% else %}d{% endif %}", "c"},
      {"{% for x in [] %}a{% else %}none{% endfor %}", "none"},
      {"{% for x in nothing %}a{% else %}none{% endfor %}", "none"},
      {"{% for x in [1, 2, 3, 4] if x is even %}{{ loop.index }}:{{ x }}{% if not loop.last %},{% "
       "endif %}{% endfor %}",
       "1:2,2:4"},
      {"{% for x in 'abc' %}{{ loop.previtem }}{{ x }}{{ loop.nextitem }}{{ loop.index0 }}{{ "
       "loop.revindex }} {% endfor %}",
       "ab03 abc12 bc21 "},
      {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"},
      {"{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break "
       "%}{% "
       "endif %}{{ x }}{% endfor %}",
       "02"},
      // A variable that a loop sets ends with it; a namespace does not.
      {"{% set x = 1 %}{% set ns = namespace(x=1) %}{% for i in [2] %}{% set x = i %}{% set ns.x = "
       "i "
       "%}{{ x }}{% endfor %}{{ x }}{{ ns.x }}",
       "212"},
      {"{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "2"},
      {"{% set a, b = [1, 2] %}{{ b }}{% set t %}<{{ a }}>{% endset %}{{ t | length }}", "23"},
      {"{% macro f(a, b='y') %}[{{ a }}{{ b }}{{ loop }}]{% endmacro %}{% for i in [1] %}{{ f('x') "
       "}}{{ "
       "f(b='z', a='w') }}{% endfor %}",
       "[xy][wz]"},
      {"{% filter upper | replace('A', 'b') %}ac{% endfilter %}", "bC"},
      {"{% generation %}a{% endgeneration %}", "a"},
      {"{% set ns = namespace() %}{% set ns.a = [1] %}{{ (ns.a + [2]) | length }}", "2"},
  });
}

TEST(JinjaTemplate, KnowsFiltersTestsAndMethods) {
  expect_cases({
      {"{{ 'xax' | trim('x') }} {{ {'a': [1]} == {'a': [1]} }} {{ {'a': 1} != {'a': 2} }} {{ {} == "
       "{} }}",
       "a True True True"},
      {"{{ 100000.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 10000000000000000.0 }} {{ 2.5 }} {{ {3: 1} | "
       "tojson }}",
       "100000.0 0.0001 1e-05 1e+16 2.5 {\"3\": 1}"},
      {"{{ ' a ' | trim }}|{{ 'aB' | upper }}{{ 'aB' | lower }}{{ 'ab c' | title }}{{ 'aB' | "
       "capitalize "
       "}}",
       "a|ABabAb CAb"},
      {"{{ 'xaxbx'.strip('x') }} {{ ' a'.lstrip() }} {{ 'a\n\n'.rstrip('\n') }}|", "axb a a|"},
      {"{{ 'a,b,c'.split(',') | join('+') }} {{ 'a,b,c'.split(',', 1)[1] }} {{ ' a  b '.split() | "
       "length }}",
       "a+b+c b,c 2"},
      {"{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'aXbX'.replace('X', '--') "
       "}}",
       "True True a--b--"},
      {"{{ 'äb'.find('b') }} {{ '{}-{}'.format('a', 1) }} {{ ', '.join(['a', 'b']) }}",
       "1 a-1 a, b"},
      {"{{ {'a': [1, none, true, 'q\"\\n'], 'b': 1.5} | tojson }}",
       "{\"a\": [1, null, true, \"q\\\"\\n\"], \"b\": 1.5}"},
      {"{{ [1, {'a': 2}] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": 2\n  }\n]"},
      {"{{ [{'a': 1}, {'a': 2}, {}] | selectattr('a', 'equalto', 2) | list | length }}", "1"},
      {"{{ [{'a': 1}, {}] | rejectattr('a', 'defined') | list | length }}", "1"},
      {"{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | join(',') }} {{ ['x'] | map('upper') | "
       "first }}",
       "1,2 X"},
      {"{{ {'b': 1, 'a': 2} | dictsort | first | first }} {{ {'a': 1}.get('b', 'c') }}", "a c"},
      {"{{ none is none }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ x is "
       "undefined "
       "}} {{ 4 is divisibleby 2 }} {{ 1 is not string }}",
       "True True True True True True True"},
      {"{{ strftime_now('%d %b %Y') }} {{ '12' | int }} {{ 3.0 | string }}", "26 Jul 2024 12 3.0"},
  });
}

TEST(JinjaTemplate, TellsMarkupFromMessagesWhateverIsDoneWithThem) {
  const auto parts = [](std::string_view source, const std::string& content) {
    std::string marked;  // messages in [ ]
    for (const ChatText& part :
         JinjaTemplate(source).render(Messages{{"user", content}}, {"<s>", "</s>"})) {
      marked += part.is_markup ? part.text : "[" + part.text + "]";
    }
    return marked;
  };
  constexpr char kSet[] = "{% set c = messages[0].content %}";
  const auto with_content = [&](const std::string& rest, const std::string& content) {
    return parts(kSet + rest, content);
  };
  EXPECT_EQ(with_content("<a>{{ c }}<b>", "<x>"), "<a>[<x>]<b>");
  EXPECT_EQ(with_content("{{ '<a>' + c | trim + '<b>' }}", " <x> "), "<a>[<x>]<b>");
  EXPECT_EQ(with_content("{{ c.split('|')[-1].upper() ~ c[:1] }}", "a|<x>"), "[<X>a]");
  EXPECT_EQ(with_content("{{ c.replace('x', '<m>') }}", "axb"), "[a]<m>[b]");
  EXPECT_EQ(with_content("{{ c | tojson }}", "a\"<x>"), "\"[a\\\"<x>]\"");
  EXPECT_EQ(with_content("{{ ['<a>', c] | join('-') }}", "<x>"), "<a>-[<x>]");
  EXPECT_EQ(with_content("{% set t %}<a>{{ c }}{% endset %}{{ t }}", "<x>"), "<a>[<x>]");
  EXPECT_EQ(with_content("{% for x in c %}{{ x }}{% endfor %}", "<x>"), "[<x>]");
  EXPECT_EQ(with_content("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(c) }}", "|x|"), "<[|x|]>");
  EXPECT_EQ(with_content("{{ '{}</s>'.format(c) }}", "</s>"), "[</s>]</s>");
  EXPECT_EQ(with_content("{{ messages[0].role }}", ""), "user");
}

TEST(JinjaTemplate, RefusesWhatItDoesNotKnow) {
  for (const char* const source :
       {"{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% raw %}{% endraw %}",
        "{{ x | no_such }}",
        "{{ 1 is no_such }}",
        "{{ 'a'.no_such() }}",
        "{{ no_such() }}",
        "{{ [].no_such() }}",
        "{{ {}.no_such() }}",
        "{% for x in [1] recursive %}{% endfor %}",
        "{{ 1 < 2 < 3 }}",
        "{{ [1] }}",
        "{{ {} }}",
        "{{ 'a' + 1 }}",
        "{{ 'a' < 1 }}",
        "{{ none + 1 }}",
        "{{ x.y }}",
        "{{ x[0] }}",
        "{% for x in none %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ 1 % 0 }}",
        "{{ 4294967296 * 4294967296 }}",
        "{{ 99999999999999999999 }}",
        "{{ strftime_now('%j') }}",
        "{{ 'a'.split('') | length }}",
        "{{ 'a'.replace('', 'b') }}",
        "{{ [1, 2][::2] | length }}",
        "{% set a, b = [1] %}",
        "{% set x.y = 1 %}",
        "{{ 'a' | tojson(separators=1) }}",
        "{% macro f() %}{% endmacro %}{{ f(1) }}",
        "{% macro f() %}{% endmacro %}{{ f(x=1) }}",
        "{{ '\\u1234' }}",
        "{{ range(1, 2, 0) | length }}",
        "{{ '{0}'.format(1) }}",
        "{{ 'aXX'.replace('X', 'y', 1) }}",
        "{{ 'aba'.find('a', 1) }}",
        "{{ 'ab'.startswith('b', 1) }}",
        "{{ 'x' | int(5) }}",
        "{{ 'a' | upper(1) }}",
        "{{ {'a': 1} | dictsort(reverse=true) | length }}",
        "{{ [{}] | map(attribute='a', default=1) | length }}",
        "{% for x in [1] %}{% set t %}{% break %}{% endset %}{% endfor %}"}) {
    EXPECT_EQ(support::error_code([&] { run(source); }), ErrorCode::kUnsupported) << source;
  }
}

TEST(JinjaTemplate, RefusesWhatIsNoTemplate) {
  for (const char* const source : {"{{",
                                   "{{ 'a",
                                   "{{ a",
                                   "{% if",
                                   "{% if true %}",
                                   "{% endif %}",
                                   "{% else %}",
                                   "{% for x %}",
                                   "{% for x in y %}",
                                   "{#",
                                   "{{ }}",
                                   "{{ a b }}",
                                   "{{ (a }}",
                                   "{{ [a }}",
                                   "{{ a[ }}",
                                   "{{ f(a=1, 2) }}",
                                   "{% break %}",
                                   "{% set %}",
                                   "{% set a, b %}{% endset %}",
                                   "{{ $ }}",
                                   "{% macro f( %}",
                                   "{% if true %}{% endfor %}",
                                   "{{ a. }}",
                                   "{{ a | }}",
                                   "{{ a is }}",
                                   "{{ {1} }}",
                                   "{% %}",
                                   "{{ not }}",
                                   "{{ - }}",
                                   "{% for 1 in x %}{% endfor %}"}) {
    EXPECT_EQ(support::error_code([&] { run(source); }), ErrorCode::kUnsupported) << source;
  }
}

TEST(JinjaTemplate, ARefusalIsTheCallersError) {
  EXPECT_EQ(support::error_code([] { run("{{ raise_exception('no system role') }}"); }),
            ErrorCode::kArgument);
  EXPECT_NE(problem("{{ raise_exception('no system role') }}").find("no system role"),
            std::string::npos);
}

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

/// Evaluates `last` after ns.v and ns.w took the values of two expressions many times.
std::string doubled(const std::string& v, const std::string& w, const std::string& last,
                    int times = 40) {
  return "{% set ns = namespace(v=[1], w=[1]) %}{% for i in range(" + std::to_string(times) +
         ") %}{% set ns.v = " + v + " %}{% set ns.w = " + w + " %}{% endfor %}{{ " + last + " }}";
}

TEST(JinjaTemplate, HostileTemplatesComeToAnEnd) {
  for (const std::string& source :
       {// Nested without end, in every way.
        "{{ " + repeated("(", 100'000) + "1" + repeated(")", 100'000) + " }}",
        "{{ " + repeated("[", 100'000), "{{ " + repeated("not ", 100'000) + "1 }}",
        "{{ " + repeated("-", 100'000) + "1 }}", "{{ 1" + repeated(" + 1", 100'000) + " }}",
        "{{ a" + repeated(".a", 100'000) + " }}", "{{ 'a'" + repeated(" | trim", 100'000) + " }}",
        "{{ 1" + repeated(" if 1 else 1", 50'000) + " }}",
        repeated("{% if 1 %}", 50'000) + repeated("{% endif %}", 50'000),
        "{% if 0 %}" + repeated("{% elif 0 %}", 50'000) + "{% endif %}",
        repeated("{% for x in [1] %}", 20'000), repeated("{% set x %}", 50'000),
        std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        std::string("{% macro f(x) %}{{ g(x) }}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro "
                    "%}{{ f(1) }}"),
        // Without end in time or memory.
        std::string(
            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
        std::string("{{ range(4000000000) | length }}"),
        std::string("{{ range(-1, 0, 9999999999) | length }}"),
        std::string("{{ 'a' * 2000000000 }}"),
        std::string(
            "{% set ns = namespace(s='aaaaaaaa') %}{% for a in range(99) %}{% set ns.s = ns.s + "
            "ns.s %}{% endfor %}"),
        std::string(
            "{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = ns.l + ns.l "
            "%}{% endfor %}"),
        std::string(
            "{% for a in range(100000) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' * "
            "1000 }}{% endfor %}"),
        // Values that contain themselves.
        std::string("{% set l = [] %}{{ l.append(l) }}{{ l | tojson }}"),
        std::string(
            "{% set l = [] %}{{ l.append(l) }}{% set m = [] %}{{ m.append(m) }}{{ l == m }}"),
        std::string("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}"),
        // Few values that are many when they are followed.
        doubled("[ns.v, ns.v]", "[ns.w, ns.w]", "ns.v == ns.w"),
        doubled("{'a': ns.v, 'b': ns.v}", "{'a': ns.w, 'b': ns.w}", "ns.v == ns.w"),
        doubled("[ns.v, ns.v]", "1", "ns.v | tojson | length"),
        doubled("[ns.v, ns.v]", "ns.w", "[ns.v] | map('tojson') | list | length"),
        // Long texts that are read again and again, or searched for long ones.
        doubled("',' if ns.v is not string else ns.v + ns.v", "1", "ns.v.split(',') | length", 24),
        doubled("'a' if ns.v is not string else ns.v + ns.v",
                "'a' if ns.w is not string else ns.w + ns.w",
                "(ns.v + 'b' + ns.v) in (ns.v + ns.w)", 20),
        doubled("'a' if ns.v is not string else ns.v + ns.v", "1",
                "1 }}{% for a in range(1000000) %}{{ ns.v | length }}{% endfor %}{{ 1", 24),
        std::string("{% set l = ['a'] %}{{ l.append(l) }}{{ 'b'.startswith(l) }}"),
        std::string(2 << 20, 'a')}) {
    EXPECT_EQ(support::error_code([&] { run(source); }), ErrorCode::kUnsupported)
        << source.substr(0, 80);
  }
}

TEST(JinjaTemplate, RandomTagsAreRefusedOrRun) {
  constexpr std::uint64_t kSeed = 17;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  support::Rng rng(kSeed);
  const std::vector<std::string> alphabet = {
      "{{ ",      " }}",    "{% ",    " %}",      "{%- ", " -%}", "{# ",  " #}",  "if ",
      "endif",    "for ",   "in ",    "x",        " = ",  "set ", "else", "m",    ".",
      "(",        ")",      "[",      "]",        "'a'",  "1",    " | ",  "trim", " ~ ",
      " + ",      "endfor", "loop",   "\n",       " ",    ",",    "not ", "is ",  "defined",
      "messages", ":",      "macro ", "endmacro", "f",    "-",    "{",    "}",    "%"};
  int num_run = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string source = support::random_text(rng, alphabet, support::below(rng, 16));
    const auto refusal = support::error_code([&] { run(source); });
    ASSERT_TRUE(!refusal || *refusal == ErrorCode::kUnsupported) << source;
    num_run += !refusal;
  }
  EXPECT_GT(num_run, 1000);
}

}  // namespace
}  // namespace kvick
