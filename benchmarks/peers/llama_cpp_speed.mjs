// SPDX-License-Identifier: MIT
// Times a GGUF file on llama.cpp, as npm's node-llama-cpp packages it, on the CPU.
//
//   node llama_cpp_speed.mjs MODEL.gguf PREFILL_TOKENS DECODE_TOKENS THREADS
//
// Run from the folder that node-llama-cpp is installed in (compare.sh does). Prints one line of JSON:
// tokens/s of prefill and decode, after one warm-up of each.
import {openModel} from "./llama_cpp.mjs";

const [model, prefillTokens, decodeTokens, threads] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const weights = await openModel(model, threads);
// Arbitrary ids behind those of control tokens and bytes.
const tokens = Array.from({length: prefillTokens}, (_, i) => 300 + ((i * 7919) % 19000));

async function tokensPerSecond(count, work) {
  const start = performance.now();
  await work();
  return (count * 1000) / (performance.now() - start);
}

async function measureOnce() {
  const context = await weights.createContext({
    contextSize: prefillTokens + decodeTokens + 64, sequences: 1, threads, batchSize: 512
  });
  const sequence = context.getSequence();
  const prefill = await tokensPerSecond(prefillTokens, () =>
    sequence.evaluateWithoutGeneratingNewTokens(tokens));
  await sequence.clearHistory();
  const decode = await tokensPerSecond(decodeTokens, async () => {
    let count = 0;
    for await (const token of sequence.evaluate([5], {temperature: 0, yieldEogToken: true})) {
      if (token !== undefined && ++count >= decodeTokens) break;
    }
  });
  await context.dispose();
  return {prefill, decode};
}

await measureOnce();
console.log(JSON.stringify(await measureOnce()));
process.exit(0);
