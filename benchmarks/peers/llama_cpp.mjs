// SPDX-License-Identifier: MIT
// Opens a GGUF file with llama.cpp, as npm's node-llama-cpp packages it, on the CPU.
//
// Programs that import this run from the folder that node-llama-cpp is installed in.
import {createRequire} from "node:module";
import {join} from "node:path";
import {pathToFileURL} from "node:url";

export async function openModel(path, threads) {
  const resolve = createRequire(join(process.cwd(), "package.json")).resolve;
  const {getLlama, LlamaLogLevel} = await import(pathToFileURL(resolve("node-llama-cpp")).href);
  const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: threads});
  return llama.loadModel({modelPath: path});
}
