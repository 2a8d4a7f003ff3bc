// A live page contains the library as a WebAssembly module, which computes the maps of the text that the reader types.

// The system functions that a WASI module imports. They offer no environment and no files: functions of files return error 8 (bad file descriptor), all others
// error 52 (not supported).
function systemOf(module, memory, failed) {
  const imports = { polyhead: { failed } };
  const none = (first, second) => {
    new DataView(memory().buffer).setUint32(first, 0, true);
    new DataView(memory().buffer).setUint32(second, 0, true);
    return 0;
  };
  const known = { environ_sizes_get: none, environ_get: () => 0, proc_exit: () => { throw new Error(say("the engine ended")); } };
  for (const { module: from, name } of WebAssembly.Module.imports(module)) {
    if (from === "polyhead") continue;
    imports[from] ??= {};
    imports[from][name] = known[name] ?? (() => (name.startsWith("fd_") ? 8 : 52));
  }
  return imports;
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

class Engine {
  // files: in base64, the model that the page carries besides the built-in ones; empty if there is none. Throws an Error unless the module is of polyhead
  // `version`; null allows any version.
  static async unpack(base64, files = "", version = null) {
    const packed = bytesOf(base64);
    const bytes = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
    const engine = new Engine();
    engine.files = files && bytesOf(files);
    engine.version = version;
    engine.module = await WebAssembly.compile(bytes);
    await engine.ready();
    return engine;
  }

  // Starts a module. Returns its exports, and `read`, which reads a text from its memory.
  async start() {
    let memory = null;
    const text = (at, bytes) => new TextDecoder().decode(new Uint8Array(memory.buffer, at, bytes));
    const failed = (at, bytes) => { throw new Error(text(at, bytes)); };
    const { exports } = await WebAssembly.instantiate(this.module, systemOf(this.module, () => memory, failed));
    memory = exports.memory;
    exports._initialize();
    const read = (at) => text(at, exports.bytes()), version = read(exports.version());
    if (version !== (this.version ?? version)) throw new Error(say("the engine belongs to polyhead {0}, the page to polyhead {1}", version, this.version));
    if (this.files) {
      const room = exports.room(this.files.length);
      new Uint8Array(exports.memory.buffer).set(this.files, room);
      exports.open();
    }
    return { ...exports, read };
  }

  // Returns the promise of a started module, which all calls share.
  ready() {
    if (!this.running) {
      const running = this.start();
      this.running = running;
      running.catch(() => this.#end(running));
    }
    return this.running;
  }

  // Drops the module, because it has thrown an error. The next call starts a new one.
  #end(running) {
    if (this.running === running) this.running = null;
  }

  // Returns the data of a page about the text, or {error, tokens, longest} if the text has no token or too many. Returns null if outdated() is true when the
  // module is ready. If the library throws an error, this function throws an Error with the same message, and the next call starts a new module.
  async answer(task, text, outdated = () => false) {
    let running, exports;
    do {
      running = this.ready();
      exports = await running;
      if (outdated()) return null;
    // Repeat this if another call, which waited for the same module, has ended the module in the meantime.
    } while (running !== this.running);
    const encoder = new TextEncoder(), named = encoder.encode(task), given = encoder.encode(text);
    try {
      const room = exports.room(named.length + given.length);
      const bytes = new Uint8Array(exports.memory.buffer);
      bytes.set(named, room);
      bytes.set(given, room + named.length);
      return JSON.parse(exports.read(exports.answer(named.length)));
    } catch (error) {
      this.#end(running);
      throw error;
    }
  }
}

// The line in which the reader types, and the sentences about the model's answer. The first sentence names the words that the model does not know.
class Live {
  constructor({ typed, answered }) {
    this.answered = answered;
    this.engine = null;
    this.asked = 0;
    $("live").hidden = false;
    $("live").addEventListener("submit", (event) => event.preventDefault());
    $("say").addEventListener("input", () => typed({ say: $("say").value }));
    const own = data.live.model;
    if (own) $("task").prepend(make("option", { value: "model", textContent: own.name, translate: false }));
    $("task").addEventListener("change", () => typed({ task: $("task").value }));
  }

  async start(base64, files, version) {
    try {
      this.engine = await Engine.unpack(base64, files, version);
    } catch (error) {
      this.#refuse(say("The engine of this page does not run here: {0}.", error.message));
    }
  }

  // Computes the maps of a text. A call that is still waiting when a later call comes is dropped without an answer.
  async ask(task, text) {
    if (!this.engine) return;
    const asked = ++this.asked;
    if ($("say").value !== text) $("say").value = text;
    $("task").value = task;
    if (text.trim() === "") return this.#refuse(say("Type a sentence."));
    const outdated = () => asked !== this.asked;
    await new Promise((done) => setTimeout(done));  // let the browser first handle keys that were pressed while the last answer was computed
    if (outdated()) return;
    let json = null;
    try {
      json = await this.engine.answer(task, text, outdated);
    } catch (error) {
      if (!outdated()) this.#refuse(say("No answer: {0}.", error.message));
      return;
    }
    if (outdated()) return;
    if (json.error) return this.#refuse(say("No answer: {0}.", json.tokens === 0 ? say("the text has no token") : say("the text has {0} tokens; the model takes at most {1}", json.tokens, json.longest)));
    document.body.classList.remove("unanswered");
    this.last = json.answer;
    this.tell();
    this.answered(json);
  }

  // Shows a message and hides the old maps: a reader would take them for the maps of the text in the input line.
  #refuse(message) {
    this.last = null;
    document.body.classList.add("unanswered");
    $("live-unknown").hidden = $("live-note").hidden = true;
    $("live-answer").textContent = message;
  }

  tell() {
    if (!this.last) return;
    this.#note();
    if (this.last.task === "model") {
      $("live-unknown").hidden = true;
      $("live-answer").textContent = say("{0} {0|token|tokens}.", this.last.tokens);
      return;
    }
    const { task, unknown, omitted } = this.last, rates = task === "sentiment", quoted = (all) => all.map((one) => `“${one}”`).join(", "), words = quoted(unknown);
    $("live-unknown").hidden = unknown.length === 0;
    $("live-unknown").textContent = unknown.length === 0 ? "" : rates && this.last.known_terms === 0 ? say("The model knows no word of this text, so the rating means nothing. Unknown: {0}.", words)
      : rates ? say("Unknown to the model, which has no score for {1|this word|these words}: {0}.", words, unknown.length)
      : say("Unknown to the model: {0}. A word in [ ] replaces what the model invents for it.", words) + (omitted.length ? ` ${say("The translation has nothing for {0}.", quoted(omitted))}` : "");
    const parts = (list) => list.map((part) => part.toFixed(2)).join(", ");
    const side = this.last.rating > 0 ? say("positive") : this.last.rating < 0 ? say("negative") : say("neither");
    $("live-answer").replaceChildren(...(rates
      ? [make("b", { textContent: say("Rating {0}, {1}", this.last.rating.toFixed(2), side) }), " ", say("To the rating, the pooling heads add {0}; the scores of words, starts of words and word pairs add {1}.", parts(this.last.parts), this.last.score_part.toFixed(2))]
      : [make("b", { textContent: this.last.translation, lang: "fr", translate: false }), ...(this.last.complete ? [] : [" ", say("(cut off)")])]));
  }

  // Shows how much the results of the page's own model differ from those without rounding to int8. Differences are rounded up, the cosine is rounded down.
  #note() {
    const rounding = this.last.task === "model" ? data.live.model.rounding : null;
    $("live-note").hidden = !rounding;
    if (!rounding) return;
    const { texts, largest, mean, cosine } = rounding;
    $("live-note").textContent = say("This page has the model's matrices as int8. Over {0} sentences its attention weights differ from those of the given parameters by at most {1}, by {2} on average; the cosine of a sentence's vector with the exact one is at least {3}.", texts, (Math.ceil(largest * 1e4) / 1e4).toFixed(4), mean.toFixed(5), (Math.floor(cosine * 1e4) / 1e4).toFixed(4));
  }
}

// The functions below change the state of the page, which page.js defines.

// Handles a new text that the reader typed, or the choice of another model.
function typed(changes) {
  Object.assign(state, changes);
  live.ask(state.task, state.say);  // ask first: a browser may refuse to change the address
  writeAddress(addressOf(state), false);
}

// Shows the engine's answer: sentences with their maps. They replace the previous answer at the front of `texts`; the texts of other pages that the reader has
// opened follow. If the model has changed, the page opens the view that the answer names, as a page of `polyhead try` does.
function answered(json) {
  const own = json.texts.map((one) => new Text(one, decoder)), before = answered.count ?? 0, other = answered.task !== json.answer.task;
  texts.splice(0, before, ...own);
  mergedTexts.splice(0, before, ...own.map((text) => new MergedText(text)));
  spreads.clear();
  Object.assign(answered, { count: own.length, task: json.answer.task });
  data.model = $("model").textContent = json.model;
  const { task, say, theme, lang, letters, scale } = state;
  if (before === 0) Object.assign(state, stateOf(location.hash.includes("layer=") ? location.hash : json.start ?? "", texts));
  else if (other) Object.assign(state, stateOf(json.start ?? "", texts));
  else if (state.text >= own.length) Object.assign(state, { text: 0, row: null, column: null });
  Object.assign(state, { task, say, theme, lang, letters, scale });
  if (other) writeAddress(addressOf(state), false);
  fillTexts();
  // Updates everything that depends on the text. After the first answer also fills the lists, because the page's language is known only now.
  show(before === 0 ? {} : { ...state, text: null });
}
