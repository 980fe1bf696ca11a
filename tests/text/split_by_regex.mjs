// SPDX-License-Identifier: MIT
// The oracle of pre_tokenizer_test.cpp: splits texts by the regular expressions that models publish,
// with JavaScript's engine. Reads a JSON list of [rule, text] and prints a JSON list of the words
// of each. A text is UTF-8 without lone surrogates.

const contraction = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const spaces = String.raw`\s*[\r\n]+|\s+(?!\S)|\s+`;
const gpt2 = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
const llama3 = (digits) => contraction +
  String.raw`|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}${digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + spaces;
const upper = String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, lower = String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`;
const cased = (end, digits) =>
  String.raw`[^\r\n\p{L}\p{N}]?${upper}*${lower}+${end}|[^\r\n\p{L}\p{N}]?${upper}+${lower}*${end}|` +
  String.raw`\p{N}${digits}| ?[^\s\p{L}\p{N}]+[\r\n\/]*|` + spaces;
const bloom = String.raw` ?[^\(\s\|.,!?…。，、।۔،\)]+`;

const rules = {
  gpt2: [gpt2],
  starcoder: [String.raw`\p{N}`, gpt2],
  llama3: [llama3("{1,3}")],
  qwen2: [llama3("")],
  qwen35: [contraction + String.raw`|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` + spaces],
  tekken: [cased("", "")],
  gpt4o: [cased(contraction + "?", "{1,3}")],
  "deepseek-llm": [
    String.raw`[\r\n]`,
    String.raw`\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af` +
      String.raw`\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5` +
      String.raw`\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba` +
      String.raw`\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45` +
      String.raw`\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe` +
      String.raw`\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc` +
      String.raw`\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139` +
      String.raw`\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3` +
      String.raw`\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06` +
      String.raw`\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}` +
      String.raw`\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+`,
    String.raw`\s?[!-\/:-~！-／：-～‘-‟　-。]+`,
    String.raw`\s+$`,
    String.raw`[一-龥\u0800-一가-\ud7ff]+`,
    String.raw`\p{N}+`,
  ],
  "deepseek-coder": [
    String.raw`[\r\n]`, String.raw`\s?\p{L}+`, String.raw`\s?\p{P}+`, String.raw`[一-龥\u0800-一가-\ud7ff]+`,
    String.raw`\p{N}`,
  ],
  deepseek3: [
    String.raw`\p{N}{1,3}`,
    String.raw`[一-龥\u3040-ゟ゠-ヿ]+`,
    String.raw`[!"#$%&'()*+,\-.\/:;<=>?@\[\\\]^_\u0060{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|` +
      String.raw` ?[\p{P}\p{S}]+[\r\n]*|` + spaces,
  ],
  falcon: [String.raw`[\p{P}$+<=>^~|\u0060]+`, gpt2, "[0-9][0-9][0-9]"],
  bloom: [bloom],
  viking: [bloom, String.raw`\p{N}`],
};

// JavaScript's \s has U+FEFF and lacks U+0085; elsewhere \s is the property White_Space.
const compile = (source) => new RegExp(
  source.replaceAll(String.raw`\s`, String.raw`\p{White_Space}`).replaceAll(String.raw`\S`, String.raw`\P{White_Space}`),
  "gu");
const compiled = Object.fromEntries(Object.entries(rules).map(([name, list]) => [name, list.map(compile)]));

function split(text, regex) {
  const words = [];
  let begin = 0;
  for (const match of text.matchAll(regex)) {
    if (begin < match.index) words.push(text.slice(begin, match.index));
    words.push(match[0]);
    begin = match.index + match[0].length;
  }
  if (begin < text.length) words.push(text.slice(begin));
  return words;
}

let input = "";
process.stdin.setEncoding("utf8");
for await (const chunk of process.stdin) input += chunk;
console.log(JSON.stringify(JSON.parse(input).map(([rule, text]) =>
  compiled[rule].reduce((parts, regex) => parts.flatMap((part) => split(part, regex)), [text]))));
