// Shows step by step how a head computes its attention weights and its output from the layer's input. The shapes are those of the shown model; the numbers are those
// of the shown text, if the page has q, k and v. Each step is an animation of several frames. A step that the reader opens shows its last frame.

// All numbers of a head in float64, as rows: q, k, v; dots, scaled, biased and score [T][S]; weights [T][S]; out [T][V]. Those that the page does not hold are
// absent.
function headNumbers(text, layer, head) {
  if (!text.vectors) return null;
  const { q, k, v, bias, attend } = headRows(text, layer, head);
  const rows = (make) => q.map((_, t) => Float64Array.from(k, (_, s) => make(t, s)));
  const dots = rows((t, s) => q[t].reduce((sum, x, i) => sum + x * k[s][i], 0));
  const scaled = rows((t, s) => dots[t][s] * text.vectors.scale);
  const biased = bias && rows((t, s) => scaled[t][s] + bias[t][s]);
  const score = rows((t, s) => (attend && attend[t][s] === 0 ? -Infinity : (biased ?? scaled)[t][s]));
  const weights = score.map((row) => softmaxOf(row).weights);
  return { q, k, v, bias, attend, dots, scaled, biased, score, weights, out: v && weights.map((row) => sumOfValues(row, v)) };
}

// Computes only the output [T][V] of a head, one row after the other, so that no [T][S] matrices of the other heads are stored.
function outOf(text, layer, head) {
  const { q, k, v, bias, attend } = headRows(text, layer, head);
  return q.map((row, t) => {
    const score = Float64Array.from(k, (key, s) => (attend && attend[t][s] === 0 ? -Infinity : row.reduce((sum, x, i) => sum + x * key[i], 0) * text.vectors.scale + (bias ? bias[t][s] : 0)));
    return sumOfValues(softmaxOf(score).weights, v);
  });
}

// The output of a head times its gate. The gate has one number for each number of the output, or one for each query. Null if the gate has another width.
function gatedOut(text, layer, head, out) {
  const gate = text.gate(layer, head), width = text.gateWidth;
  if (!gate) return out;
  return width === 1 || width === (out[0]?.length ?? width) ? out.map((row, t) => row.map((x, i) => x * gate[t * width + (width === 1 ? 0 : i)])) : null;
}

// Puts the rows of all heads side by side, as a layer stores them: [rows][heads * width].
const beside = (parts) => parts[0].map((_, at) => Float64Array.from(parts.flatMap((rows) => [...rows[at]])));

class Walk {
  // Durations in ms. frame: all frames of a step together. least and most: the limits for a single frame. rest: the last frame.
  static pace = { frame: 2400, least: 80, most: 400, rest: 1600 };

  constructor(changed) {
    this.changed = changed;  // called with the number of the new step
    this.body = $("walk-body");
    this.playing = null;
    for (const button of document.querySelectorAll("[data-walk]")) button.addEventListener("click", () => this.#do(button.dataset.walk));
    $("walk-steps").addEventListener("click", (event) => { if (event.target.dataset.place) this.#go(Number(event.target.dataset.place)); });
    $("walk").addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("visibilitychange", () => { if (document.hidden && this.playing) this.#pause(); });
  }

  // step: the number of the step as text; "" closes the walk. spot: the pinned pair, or null.
  show({ text, layer, head, spot, step, style }) {
    const reason = Walk.#reason(text, layer, head);
    $("walk-note").textContent = reason ?? "";
    $("walk-note").hidden = !reason;
    const open = step !== "" && !reason;
    $("walk-open").setAttribute("aria-expanded", String(open));
    $("walk-open").textContent = open ? say("Close") : say("Show");
    $("walk-open").disabled = Boolean(reason);
    for (const one of [$("walk-controls"), $("walk-steps"), this.body]) one.hidden = !open;
    if (!open) {
      this.stop();
      return this.body.replaceChildren();
    }
    const of = `${layer}.${head}`;
    if (this.text !== text || this.of !== of) Object.assign(this, { text, of, layer, head, numbers: headNumbers(text, layer, head), joined: undefined });
    this.ramps = { signed: new Ramp(style, "--diverging"), weight: new Ramp(style) };
    const free = [...text.queries.pieces.keys()].find((index) => !text.queries.special.has(index)) ?? 0;
    this.row = spot?.row ?? free;
    this.column = spot?.column ?? null;
    this.steps = this.#steps();
    this.step = Math.min(this.steps.length - 1, Number(step));
    if (!this.playing) this.frame = this.#frames() - 1;
    this.#draw();
  }

  static #reason(text, layer, head) {
    if (isWhole(layer) || head === MEAN) return say("This map is a mean over heads. Open a single head to see its steps.");
    if (text.learnedQueries) return say("These heads have a learned query and no layer, so no steps of a layer are shown.");
    return text instanceof MergedText ? say("The steps are those of pieces. To see them, do not merge pieces into words.") : null;
  }

  // ---- The steps ----

  // Replaces the letters of a shape by the sizes of the shown model. A letter whose size the page does not know stays.
  #extent(letters) {
    const { text, numbers } = this;
    const known = { T: text.queries.size, S: text.keys.size, N: text.heads, K: text.vectors?.k[0].length ?? "K", H: numbers?.q[0]?.length ?? "H", V: numbers?.v?.[0]?.length ?? (text.gateWidth > 1 ? text.gateWidth : "V"), E: text.width ?? "E" };
    const one = (letter) => letter.split("·").map((part) => known[part] ?? part).reduce((a, b) => (typeof a === "number" && typeof b === "number" ? a * b : `${a}·${b}`));
    return letters.map(one);
  }

  // A matrix of a step. letters: its shape in the layer without the batch, with two letters, or with three if the matrix is that of one head. rows: its
  // numbers, or null. marks: what is marked, such as a row, a column or a slice of columns [first, last), and how many numbers of the marked row are filled in.
  #matrix(name, letters, rows, marks = {}) { return { name, letters, rows, ...marks }; }

  #allHeads(name, count) {
    const kept = this.text.vectors;
    return this.numbers && kept[name] ? beside(kept[name][kept[name].length > 1 ? this.layer : 0].map((_, at, all) => rowsOf(kept[name], this.layer, at, all.length, count))) : null;
  }

  #joined() {
    const { text, layer } = this;
    if (this.joined === undefined) {
      const outs = this.numbers?.out ? Array.from({ length: text.heads }, (_, head) => gatedOut(text, layer, head, head === this.head ? this.numbers.out : outOf(text, layer, head))) : [null];
      this.joined = outs.includes(null) ? null : beside(outs);
    }
    return this.joined;
  }

  // Which columns belong to this head, if the columns of all heads are side by side.
  #slice(count) {
    const at = Math.floor((this.head * count) / this.text.heads);
    return { slice: [at / count, (at + 1) / count] };
  }

  #steps() {
    const { text, numbers: n, row: t } = this;
    const self = text.keys === text.queries, scale = n ? (text.vectors.root ? `1/√${n.q[0].length}` : digits(text.vectors.scale)) : say("scale");
    const query = text.queries.word(t), key = (s) => text.keys.word(s), shared = text.vectors?.k[0].length ?? null, keys = text.keys.size;
    const map = n?.weights ?? Array.from({ length: text.queries.size }, (_, row) => text.map(this.layer, this.head).subarray(row * keys, (row + 1) * keys));
    const plain = (s) => (n ? digits(s) : "");
    const scores = (name, rows, marks) => this.#matrix(name, ["N", "T", "S"], rows, { row: t, ...marks });
    const q = this.#matrix("q", ["N", "T", "H"], n?.q), k = this.#matrix("k", ["K", "S", "H"], n?.k), v = this.#matrix("v", ["K", "S", "V"], n?.v);
    const gateOf = text.gate(this.layer, this.head), gate = gateOf && Array.from(text.queries.pieces, (_, row) => gateOf.subarray(row * text.gateWidth, (row + 1) * text.gateWidth));
    const gated = this.#matrix(gate ? say("gated") : "out", ["N", "T", "V"], n?.out && gatedOut(text, this.layer, this.head, n.out), { row: t });
    const steps = [
      { name: say("Input"), formula: self ? "x" : "x, m", matrices: () => [this.#matrix("x", ["T", "E"], null), ...(self ? [] : [this.#matrix("m", ["S", "E"], null)])],
        note: self ? say("One vector for each of the {0} tokens, as wide as the model.", text.queries.size) : say("Queries come from {0} tokens, keys and values from {1} others.", text.queries.size, keys) },
      { name: say("Projection"), formula: self ? "q = x W_Qᵀ   k = x W_Kᵀ   v = x W_Vᵀ" : "q = x W_Qᵀ   k = m W_Kᵀ   v = m W_Vᵀ",
        matrices: () => [this.#matrix("q", ["T", "N·H"], this.#allHeads("q", text.queries.size), this.#slice(text.heads)), this.#matrix("k", ["S", "K·H"], this.#allHeads("k", keys), shared ? this.#slice(shared) : {}), this.#matrix("v", ["S", "K·V"], this.#allHeads("v", keys), shared ? this.#slice(shared) : {})],
        note: [say("Three linear layers. The formulas leave out their biases, which some models have."),
               !n ? say("The columns of all {0} query heads are beside each other; the frame marks this head's. The page does not know how many heads of keys and values there are.", text.heads)
                 : shared === text.heads ? say("The columns of all {0} heads are beside each other; the frame marks this head's.", text.heads) : say("{0} query heads share {1} {1|head|heads} of keys and values; the frame marks this head's columns.", text.heads, shared),
               ...(n ? [say("If the model norms or rotates q and k, their numbers here come after that.")] : [])].join(" ") },
      { name: say("Split into heads"), formula: `q_${this.head} = q[:, ${this.head}·H : ${this.head + 1}·H]`, matrices: () => [q, k, v],
        note: say("From here on each head computes with its own columns, without the others.") },
      { name: "q · k", formula: "(q · k)[t,s] = Σ q[t,i] k[s,i]", frames: keys,
        matrices: (s, filled) => [{ ...q, row: t }, { ...k, row: s }, scores("q · k", n?.dots, { column: s, filled })],
        told: (s) => say("“{0}” · “{1}” = {2}", query, key(s), plain(n?.dots[t][s])), note: say("The row of one query with the row of every key: one number for each key.") },
      { name: say("Scale"), formula: `× ${scale}`, matrices: () => [scores("q · k", n?.dots), scores(say("scaled"), n?.scaled)], told: (s) => say("“{0}” · “{1}”: {2} → {3}", query, key(s), plain(n?.dots[t][s]), plain(n?.scaled[t][s])),
        note: n ? say("Without the factor, scores grow with the width of a head and softmax becomes a hard choice.") : say("Most layers multiply by 1/√H, some by another number, some not at all.") },
      ...(n?.bias ? [{ name: say("Bias"), formula: `+ ${say("bias")}[t,s]`, matrices: () => [scores(say("scaled"), n.scaled), scores(say("bias"), n.bias), scores(say("score"), n.biased)], note: say("The model adds a number for each pair, which depends on the distance of the two words, for example.") }] : []),
      ...(n?.attend ? [{ name: say("Mask"), formula: `${say("score")}[t,s] = −∞`, matrices: () => [scores(say("before"), n.biased ?? n.scaled), scores(say("score"), n.score)], note: say("Keys that this query may not attend to are left out, as if they did not exist. They are hatched.") }] : []),
      { name: "softmax", formula: `p[t,s] = exp(${say("score")}[t,s]) / Σ exp(${say("score")}[t,s'])`, frames: keys,
        matrices: (s, filled) => [...(n ? [scores(say("score"), n.score, { column: s })] : []), scores("p", map, { column: s, filled, weight: true })],
        told: (s) => say("“{0}” → “{1}”: {2}", query, key(s), digitsOfShare(map[t][s])), note: n ? say("Each row becomes attention weights: positive numbers that sum to 1.") : say("Each row becomes attention weights: positive numbers that sum to 1, or to less if the layer has a sink.") },
      { name: say("Times v"), formula: "out[t] = Σ p[t,s] v[s]", frames: keys,
        matrices: (s, filled) => [this.#matrix("p", ["N", "T", "S"], map, { row: t, column: s, weight: true }), { ...v, row: s }, this.#matrix("out", ["N", "T", "V"], n?.out && n.out.map((out, at) => (at === t ? sumOfValues(map[t], n.v, filled) : out)), { row: t })],
        told: (s) => say("{0} × v of “{1}”", digitsOfShare(map[t][s]), key(s)), note: say("The output of the head for a query is the sum of all value rows, each times its weight.") },
      ...(gate ? [{ name: say("Gate"), formula: `out[t,i] × ${say("gate")}[t${text.gateWidth === 1 ? "" : ",i"}]`, matrices: () => [this.#matrix("out", ["N", "T", "V"], n?.out, { row: t }), this.#matrix(say("gate"), ["N", "T", text.gateWidth === 1 ? "1" : "V"], gate, { row: t }), gated],
        note: say("The output of the head is multiplied by its gate, whose numbers lie between 0 and 1.") }] : []),
      { name: say("Join the heads"), formula: "[out_0, out_1, …]", matrices: () => [gated, this.#matrix(say("joined"), ["T", "N·V"], this.#joined(), { row: t, ...this.#slice(text.heads) })],
        note: say("The outputs of all {0} heads are put beside each other; the frame marks this head's.", text.heads) },
      { name: say("Output projection"), formula: "y = [out_0, out_1, …] W_Oᵀ", matrices: () => [this.#matrix(say("joined"), ["T", "N·V"], this.#joined(), { row: t, ...this.#slice(text.heads) }), this.#matrix("y", ["T", "E"], null, { row: t })],
        note: `${say("One more linear layer mixes the heads. Its result goes to the residual connection and the rest of the layer.")} ${say("The formula leaves out a bias, which some models have.")}` },
    ];
    return steps;
  }

  // ---- Drawing ----

  #frames() { return Math.max(1, this.steps[this.step].frames ?? 1); }

  #draw() {
    const step = this.steps[this.step], at = Math.min(this.frame, this.#frames() - 1), whole = at === this.#frames() - 1;
    const key = whole && !this.playing ? this.column ?? at : at;  // mark the chosen key, unless the animation plays
    const matrices = step.matrices(key, at + 1);
    const names = this.steps.map(({ name }, place) => `${place + 1}. ${name}`);
    if (this.listed !== names.join()) $("walk-steps").replaceChildren(...names.map((name, place) => make("li", {}, make("button", { type: "button", textContent: name, data: { place } }))));
    this.listed = names.join();
    for (const button of $("walk-steps").querySelectorAll("button")) button.toggleAttribute("aria-current", Number(button.dataset.place) === this.step);
    $("walk-play").textContent = this.playing ? say("Pause") : say("Play");
    $("walk-back").disabled = this.step === 0;
    $("walk-next").disabled = this.step === this.steps.length - 1;
    this.body.replaceChildren(
        make("h3", {}, ...sayParts("{0} of {1}: {2}", this.step + 1, this.steps.length, step.name)), make("p", { className: "formula", textContent: step.formula }), make("p", { textContent: step.note }),
        make("div", { className: "matrices" }, ...matrices.map((matrix) => this.#figure(matrix, whole))),
        make("p", { className: "told", textContent: step.told && this.numbers ? step.told(key) : "" }),
        make("p", { className: "quiet", textContent: this.numbers ? say("Row of “{0}”. A click on a cell of the map above chooses another.", this.text.queries.word(this.row)) : say("This page has no q, k and v of this text, so the steps show shapes, and numbers only for the attention weights. The page does not know this layer's scale, mask, bias, softcap or sink.") }));
  }

  #figure({ name, letters, rows, row, column, slice, filled, weight }, whole) {
    const extents = this.#extent(letters), [height, width] = extents.slice(-2), shape = `[B, ${letters.join(", ")}] = [1, ${extents.join(", ")}]`;
    const [down, across] = rows ? [rows.length, rows[0]?.length ?? 0] : [height, width].map((extent) => (typeof extent === "number" ? extent : 24));
    const canvas = make("canvas", { width: Math.max(1, across), height: Math.max(1, down), role: "img", aria: { label: `${name} ${shape}` } });
    if (rows) {
      const image = new ImageData(canvas.width, canvas.height), pixels = new Uint32Array(image.data.buffer);
      const bound = rows.reduce((most, one) => one.reduce((all, x) => (Math.abs(x) > all && Math.abs(x) < Infinity ? Math.abs(x) : all), most), 0);
      const colour = (x) => (x === -Infinity || (weight && x === 0) ? 0 : weight ? this.ramps.weight.at(Math.sqrt(x)) : this.ramps.signed.at(bound > 0 ? 0.5 + x / bound / 2 : 0.5));
      rows.forEach((one, t) => one.forEach((x, s) => { pixels[t * canvas.width + s] = !whole && filled !== undefined && (t !== row || s >= filled) ? 0 : colour(x); }));
      canvas.getContext("2d").putImageData(image, 0, 0);
    }
    const part = (from, to, of) => ({ first: from / of, size: (to - from) / of });
    const bands = [["row", row, down], ["column", column, across]].filter(([, place]) => place !== undefined).map(([side, place, of]) => make("div", { className: `band ${side}`, style: part(place, place + 1, of) }));
    if (slice) bands.push(make("div", { className: "band column", style: part(...slice, 1) }));
    const side = (extent, least) => `${Math.min(280, Math.max(least, extent * Math.max(2, Math.min(14, 280 / Math.max(1, extent)))))}px`;
    return make("figure", {}, make("figcaption", {}, make("b", { textContent: name }), ` ${shape}`, make("br"), make("span", { className: "quiet", textContent: letters.length > 2 ? say("this head: [{0}, {1}]", height, width) : "" })), make("div", { className: rows ? "numbers" : "numbers none", style: { width: side(across, 24), height: side(down, 14) } }, canvas, ...bands));
  }

  // ---- Playing ----

  #do(what) {
    if (what === "open") return this.changed(this.body.hidden ? "0" : "");
    if (what === "play") return this.playing ? this.#pause() : this.#play();
    this.#go(this.step + (what === "next" ? 1 : -1));
  }

  #key(event) {
    if (this.body.hidden || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select")) return;
    const action = { ArrowLeft: () => this.#go(this.step - 1), ArrowRight: () => this.#go(this.step + 1), Home: () => this.#go(0), End: () => this.#go(this.steps.length - 1), ...(event.target === this.body && { " ": () => this.#do("play") }) }[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  // Opens the step that the reader has chosen, and shows its last frame.
  #go(step) {
    if (step < 0 || step >= this.steps.length) return;
    this.stop();
    this.#enter(step, Infinity);
    $("status").textContent = `${this.steps[step].name}. ${this.steps[step].note}`;
  }

  // Shows a step. Keyboard focus in the list of steps moves to this step; focus on a button that is now disabled moves to the body of the walk.
  #enter(step, frame) {
    const focused = document.activeElement;
    this.step = step;
    this.frame = Math.min(frame, this.#frames() - 1);
    this.changed(String(step));
    if (focused?.dataset.place !== undefined) $("walk-steps").querySelector(`[data-place="${step}"]`)?.focus();
    else if (focused?.disabled) this.body.focus();
  }

  #play() {
    const restart = this.step === this.steps.length - 1 && this.frame >= this.#frames() - 1;
    this.playing = setTimeout(() => this.#tick(), Walk.pace.least);
    this.#enter(restart ? 0 : this.step, this.#still() ? Infinity : this.frame >= this.#frames() - 1 ? 0 : this.frame);
  }

  #pause() {
    this.stop();
    this.#draw();
  }

  stop() {
    clearTimeout(this.playing);
    this.playing = null;
  }

  // True if the reader has asked the system for less motion. Each step then shows only its last frame.
  #still() { return matchMedia("(prefers-reduced-motion: reduce)").matches; }

  #tick() {
    const last = this.frame >= this.#frames() - 1, end = this.step === this.steps.length - 1;
    if (last && end) return this.#pause();
    const wait = last ? Walk.pace.rest : Math.min(Walk.pace.most, Math.max(Walk.pace.least, Walk.pace.frame / this.#frames()));
    this.playing = setTimeout(() => {
      if (last) this.#enter(this.step + 1, this.#still() ? Infinity : 0);
      else ++this.frame, this.#draw();
      this.#tick();
    }, this.#still() ? 2 * Walk.pace.rest : wait);
  }
}
