// SPDX-License-Identifier: MIT
// What compare.sh has measured, as one Markdown table.
//
//   node table.mjs LOG.jsonl
//
// Lines of the log are {"who", "model", "prefill", "decode"}, tokens/s of a round, kvick's and the
// peer's in the same order; and perhaps one of kvick-linear-speed --peers --json.
import {readFileSync} from "node:fs";

const lines = readFileSync(process.argv[2], "utf8").trim().split("\n").map((line) => JSON.parse(line));

function median(values) {
  const sorted = values.slice().sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const short = (value) => value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
const spread = (values) =>
  `${short(median(values))} [${short(Math.min(...values))}, ${short(Math.max(...values))}]`;

const rows = [];
function addRow(what, peer, ours, theirs, unit) {
  const ratios = ours.map((value, i) => value / theirs[i]);
  rows.push([what, spread(ours), peer, spread(theirs), unit, spread(ratios)]);
}

const runs = lines.filter((line) => line.who);
for (const model of new Set(runs.map((run) => run.model))) {
  const of = (who, phase) => runs.filter((run) => run.model === model && run.who === who).map((run) => run[phase]);
  for (const [phase, name] of [["prefill", "prefill of 512 tokens"], ["decode", "decode of 64 tokens"]]) {
    addRow(`${model}, ${name}`, "llama.cpp", of("kvick", phase), of("llama.cpp", phase), "tokens/s");
  }
}

// Each library's product beside ours of its kind.
for (const {probes} of lines.filter((line) => line.probes)) {
  const rates = (name) => {
    const probe = probes.find((candidate) => candidate.name === name);
    if (!probe) return undefined;
    // Work per call is the same in every round, so the median gives it.
    const work = probe.rates[0].median * median(probe.seconds);
    return probe.seconds.map((seconds) => work / seconds);
  };
  for (const [what, ours, peer] of [
    ["layer, int8, a scale per 32", "q8_0, 512 rows", "oneDNN int8, one scale"],
    ["layer, int8, a scale per channel", "channel8, 512 rows", "oneDNN int8, one scale"],
    ["layer, f32", "f32, 512 rows", "oneDNN f32"],
    ["layer, f32", "f32, 512 rows", "OpenBLAS f32"],
    ["layer, f32", "f32, 512 rows", "Eigen f32, 1 thread"]
  ]) {
    if (rates(peer)) addRow(what, peer, rates(ours), rates(peer), "Gop/s");
  }
}

console.log("| | kvick | peer | the peer's | unit | kvick over the peer |");
console.log("| --- | --- | --- | --- | --- | --- |");
for (const row of rows) console.log(`| ${row.join(" | ")} |`);
