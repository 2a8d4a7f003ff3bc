// node restart.mjs ENGINE: tests when the script of a live page (viewer/script/live.js) starts the engine's module. The last line is 'N passed, N failed'.
import { readFileSync } from "node:fs";

const source = readFileSync(new URL("../../viewer/script/live.js", import.meta.url), "utf8");
const { Engine } = new Function("say", "$", "make", `${source}; return { Engine };`)((text, ...values) => text.replace(/\{(\d)[^}]*\}/g, (_, at) => values[at]));
const base64 = readFileSync(process.argv[2]).toString("base64");
let passed = 0, failed = 0;

function claim(holds, what) {
  if (holds) return passed++;
  failed++;
  console.log(`FAILED: ${what}`);
}

const message = (promise) => promise.then(() => "no error", (error) => error.message);

// The files are damaged: the version must be compared before the module opens them.
const other = await message(Engine.unpack(base64, "AAAA", "0.0.1"));
claim(/^the engine belongs to polyhead \d+\.\d+\.\d+\S*, the page to polyhead 0\.0\.1$/.test(other), `another version: ${other}`);
const damaged = await message(Engine.unpack(base64, "AAAA"));
claim(damaged !== "no error" && !damaged.includes("belongs to"), `damaged files: ${damaged}`);

let starts = 0;
const start = Engine.prototype.start;
Engine.prototype.start = function () {
  starts++;
  return start.call(this);
};
const engine = await Engine.unpack(base64);
const rating = async () => (await engine.answer("sentiment", "good")).answer.rating > 0;
claim(starts === 1 && await rating(), "a module starts and answers");
for (const [task, text] of [["sentiment", "good ".repeat(300)], ["translate", "dog ".repeat(60)], ["sentiment", ""]]) {
  const json = await engine.answer(task, text).catch((error) => ({ thrown: error.message }));
  claim(json.error && (text ? json.tokens > json.longest : json.tokens === 0) && json.longest > 0 && !json.texts, `${text.length} bytes: ${JSON.stringify(json).slice(0, 200)}`);
}
claim(await rating() && starts === 1, `a text that is too long does not end the module: ${starts} were started`);

claim((await message(engine.answer("nonsense", "good"))).includes("nonsense"), "an unknown task is an error that names it");
let newest = false;
const calls = [engine.answer("sentiment", "bad", () => !newest), engine.answer("sentiment", "bad", () => !newest), engine.answer("sentiment", "good")];
const answers = await Promise.all(calls);
claim(starts === 2, `calls that wait share one new module: ${starts - 1} were started`);
claim(answers[0] === null && answers[1] === null && answers[2].answer.rating > 0, "outdated calls have no answer");

await message(engine.answer("nonsense", ""));
const [first, second] = await Promise.all([message(engine.answer("nonsense", "")), rating()]);
claim(first.includes("nonsense") && second && starts === 4, `a call that waited for a module that has ended gets a new one: ${starts}`);

Engine.prototype.start = () => Promise.reject(new Error("no memory"));
await message(engine.answer("nonsense", ""));
claim(await message(engine.answer("sentiment", "good")) === "no memory", "the error has the reason why a module does not start");
Engine.prototype.start = start;
claim(await rating(), "after a failed start the next call starts a module");

console.log(`${passed} passed, ${failed} failed`);
