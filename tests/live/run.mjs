// node run.mjs PROGRAM.wasm ARGUMENT...: runs a program that the CMake preset "wasm" builds. An exception of the program ends node with the exception's message.
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";

const [path, ...rest] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [path, ...rest], env: process.env, returnOnExit: true });
let memory;
const failed = (at, bytes) => { throw new Error(new TextDecoder().decode(new Uint8Array(memory.buffer, at, bytes))); };
// A wrapper around each system function, because V8 calls those of node directly ("fast API call"): there a garbage collection may start, which such a call
// does not allow, and node then crashes after the program (https://github.com/nodejs/node/issues/46777).
const wrapped = Object.fromEntries(Object.entries(wasi.wasiImport).map(([name, call]) => [name, (...given) => call(...given)]));
const { instance } = await WebAssembly.instantiate(readFileSync(path), { wasi_snapshot_preview1: wrapped, polyhead: { failed } });
memory = instance.exports.memory;
process.exitCode = wasi.start(instance);
