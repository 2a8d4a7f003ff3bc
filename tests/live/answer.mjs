// node answer.mjs ENGINE TASK TEXT...: prints what the engine of live pages answers, a line of JSON for each text. The engine is called by viewer/script/live.js, as in a page.
import { readFileSync } from "node:fs";

const source = readFileSync(new URL("../../viewer/script/live.js", import.meta.url), "utf8");
const { Engine } = new Function("say", "$", "make", `${source}; return { Engine };`)((text, ...values) => text.replace(/\{(\d)[^}]*\}/g, (_, at) => values[at]));
const [path, task, ...texts] = process.argv.slice(2);
const engine = await Engine.unpack(readFileSync(path).toString("base64"));
for (const text of texts) {
  const begin = performance.now();
  try {
    const json = await engine.answer(task, text);
    console.log(JSON.stringify({ ...json, milliseconds: performance.now() - begin }));
  } catch (error) {
    console.log(JSON.stringify({ error: error.message }));
  }
}
