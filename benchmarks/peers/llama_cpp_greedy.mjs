// SPDX-License-Identifier: MIT
// The greedy text of a GGUF file on llama.cpp: a line of token ids for each line of prompt ids.
//
//   node llama_cpp_greedy.mjs MODEL.gguf PROMPTS NEW_TOKENS
//
// Run from the folder that node-llama-cpp is installed in (same_text.sh does). An end token ends a
// text and is not printed.
import {readFileSync} from "node:fs";
import {openModel} from "./llama_cpp.mjs";

const [model, prompts, newTokens] = process.argv.slice(2);
const weights = await openModel(model, 1);
for (const line of readFileSync(prompts, "utf8").trim().split("\n")) {
  const ids = line.split(",").map(Number);
  const context = await weights.createContext({contextSize: ids.length + Number(newTokens) + 64, sequences: 1, threads: 1});
  const text = [];
  for await (const token of context.getSequence().evaluate(ids, {temperature: 0, yieldEogToken: true})) {
    if (weights.isEogToken(token)) break;
    text.push(token);
    if (text.length >= Number(newTokens)) break;
  }
  console.log(text.join(","));
  await context.dispose();
}
process.exit(0);
