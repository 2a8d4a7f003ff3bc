// node run.mjs PROGRAM.wasm ARGUMENT...: runs a program that the CMake preset "wasm" builds. An exception of the program ends node with the exception's message.
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";

const [path, ...rest] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [path, ...rest], env: process.env, returnOnExit: true });
let memory;
const failed = (at, bytes) => { throw new Error(new TextDecoder().decode(new Uint8Array(memory.buffer, at, bytes))); };
const { instance } = await WebAssembly.instantiate(readFileSync(path), { ...wasi.getImportObject(), polyhead: { failed } });
memory = instance.exports.memory;
process.exitCode = wasi.start(instance);
