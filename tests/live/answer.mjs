// node answer.mjs ENGINE TASK TEXT..., or node answer.mjs ENGINE model FOLDER TEXT...: prints what the engine of live pages answers, a line of JSON for each text. The page's own script (viewer/script/live.js) calls the engine.
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";

const source = readFileSync(new URL("../../viewer/script/live.js", import.meta.url), "utf8");
const { Engine } = new Function("say", "$", "make", `${source}; return { Engine };`)((text, ...values) => text.replace(/\{(\d)[^}]*\}/g, (_, at) => values[at]));
const [path, task, ...texts] = process.argv.slice(2);

// The files of a folder as a page carries them (apps/polyhead/page_files.h).
function packed(folder) {
  const parts = [];
  let size = 0;
  const add = (bytes) => { parts.push(bytes); size += bytes.length; };
  const pad = (to) => add(Buffer.alloc((to - (size % to)) % to));
  const files = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile()).map(({ name }) => [name, readFileSync(join(folder, name))]);
  for (const [name, contents] of [...files, ["name", Buffer.from(basename(folder))]]) {
    const sizes = Buffer.alloc(8);
    sizes.writeUInt32LE(Buffer.byteLength(name), 0);
    sizes.writeUInt32LE(contents.length, 4);
    add(sizes);
    add(Buffer.from(name));
    pad(64);
    add(contents);
    pad(4);
  }
  return Buffer.concat(parts);
}

const files = task === "model" ? packed(texts.shift()).toString("base64") : "";
const engine = await Engine.unpack(readFileSync(path).toString("base64"), files);
for (const text of texts) {
  const begin = performance.now();
  try {
    const json = await engine.answer(task, text);
    console.log(JSON.stringify({ ...json, milliseconds: performance.now() - begin }));
  } catch (error) {
    console.log(JSON.stringify({ error: error.message }));
  }
}
