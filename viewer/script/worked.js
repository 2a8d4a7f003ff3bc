// Shows in four parts how one attention weight is computed: q and k as coloured squares, with their products and the sum of the products; the score; the
// softmax of the row; and the output of the head for the query, the sum of weight × value over the row.

class Worked {
  constructor(pickFeature) {
    this.body = $("worked-body");
    this.pickFeature = pickFeature;
  }

  // spot: the pinned pair, or null. map: the head's map in the page, whose weights have fewer digits than those computed here.
  show({ text, layer, head, map, spot, feature, style }) {
    const pair = spot && spot.row !== null && spot.column !== null;
    const reason = pair ? Worked.#reason(text, layer, head) : null;
    this.cell = pair && !reason ? { text, layer, head, ...spot, feature } : null;
    $("worked").hidden = !pair;
    $("worked-export").hidden = !this.cell;
    $("worked-note").hidden = !reason;
    $("worked-note").textContent = reason ?? "";
    if (!pair) return;
    $("worked-title").replaceChildren(...sayParts("“{0}” → “{1}”, worked out", word(text.queries.word(spot.row)), word(text.keys.word(spot.column))));
    this.body.replaceChildren();
    if (!this.cell) return;
    this.ramp = new Ramp(style, "--diverging");
    const worked = workedRow(text, layer, head, spot.row);
    this.cell.worked = worked;
    this.cell.feature = Math.min(feature, (worked.output?.length ?? 1) - 1);
    const off = Math.abs(worked.row[spot.column].weight - map[spot.row * text.keys.size + spot.column]);
    $("worked-note").hidden = off <= 1e-4;
    if (off > 1e-4) $("worked-note").textContent = say("The map has {0} here: it was computed or stored with fewer digits.", text.decoder.show(map[spot.row * text.keys.size + spot.column]));
    this.body.append(this.#products(), this.#steps(), this.#row(), whyPart(this), ...(worked.output ? [this.#output()] : []));
  }

  // Says why the weight of the pair cannot be computed; null if it can.
  static #reason(text, layer, head) {
    if (layer === ROLLOUT) return say("A rollout is a product over layers, which has no q and k of its own. Open a head to see how its attention weights are computed.");
    if (layer === MEAN || head === MEAN) return say("This map is a mean over heads, which has no q and k of its own. Open a head to see how its attention weights are computed.");
    if (text instanceof MergedText) return say("Attention weights are computed for pieces. To see how, do not merge pieces.");
    if (text.vectors) return null;
    if (text.leftOut) return say("q, k and v of this text are not in the page: they would take {0} MB, and at most {1} MB were allowed (polyhead view --vector-megabytes N).", text.leftOut < 1 ? text.leftOut.toPrecision(2) : text.leftOut.toFixed(1), data.limit);
    return say("This page has attention weights only. With q, k and v it shows how a weight is computed (polyhead.view(…, computation=polyhead.Computation(q, k, v))).");
  }

  #words() {
    const { text, row, column } = this.cell;
    return [text.queries.word(row), text.keys.word(column)];
  }

  // A strip of coloured squares, one for each number. The colour scale goes from -bound to bound.
  strip(numbers, bound, label) {
    const canvas = make("canvas", { className: "squares", role: "img", width: Math.max(1, numbers.length), height: 1, style: { count: numbers.length }, aria: { label } });
    const image = new ImageData(canvas.width, 1);
    const pixels = new Uint32Array(image.data.buffer);
    numbers.forEach((number, i) => { pixels[i] = this.colour(number, bound); });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  colour(number, bound) { return this.ramp.at(bound > 0 ? 0.5 + number / bound / 2 : 0.5); }

  scale(bound) {
    const steps = Array.from({ length: 65 }, (_, i) => bound * (i / 32 - 1));
    return make("p", { className: "quiet bounds", aria: { hidden: true } }, short(-bound), this.strip(bound > 0 ? steps : [0], bound, ""), short(bound));
  }

  part(name, title, ...children) { return make("div", { className: `part ${name}` }, make("h3", {}, ...title), ...children); }

  static table(names, rows, className = "") {
    const head = make("tr", {}, ...names.map((name) => (name ? make("th", { scope: "col", textContent: name }) : make("td"))));
    return make("table", { className }, make("thead", {}, head), make("tbody", {}, ...rows));
  }

  static line(cells, properties = {}) {
    const [first, ...rest] = cells.map((cell) => (cell instanceof Node ? cell : document.createTextNode(cell)));
    return make("tr", properties, make("th", { scope: "row" }, first), ...rest.map((cell) => make("td", {}, cell)));
  }

  static scroll(label, table) { return make("div", { className: "scroll", tabIndex: 0, role: "region", aria: { label } }, table); }

  #products() {
    const { worked, column } = this.cell;
    const [query, key] = this.#words();
    const q = [...worked.q], k = [...worked.keys[column]], products = q.map((x, i) => x * k[i]);
    const bound = largestSize([...q, ...k]), most = largestSize(products);
    const strips = [[say("q of “{0}”", query), q, bound], [say("k of “{0}”", key), k, bound], [say("q × k, feature by feature"), products, most]];
    const numbers = Worked.table([say("feature 0 to {0}", q.length - 1), "q", "k", "q × k"], q.map((x, i) => Worked.line([String(i), digits(x), digits(k[i]), digits(products[i])], { data: { feature: i } })).concat(Worked.line([say("sum"), "", "", digits(worked.row[column].dot)], { className: "total" })), "features");
    return this.part("products", [say("1. Products of q and k")],
                      ...strips.flatMap(([label, values, size]) => [make("p", { dir: "auto", textContent: label }), this.strip(values, size, label), ...(values === q ? [] : [this.scale(size)])]),
                      make("p", { id: "worked-dot" }, ...sayParts("Their sum: {0} = {1}", make("b", { textContent: "q · k" }), make("output", { textContent: digits(worked.row[column].dot) }))),
                      Worked.scroll(say("Numbers of q and k"), numbers));
  }

  // The steps from q and k to the weight. Each is [operation, result, name].
  steps() {
    const { text, worked, column } = this.cell;
    const key = worked.row[column], { vectors } = text;
    const steps = [["q · k", key.dot, "dot"]];
    steps.push([vectors.root ? `/ √${worked.q.length}` : `× ${digits(vectors.scale)}`, key.scaled, "scaled"]);
    if (key.bias !== undefined) steps.push([say("+ bias {0}", digits(key.bias)), key.scaled + key.bias, "biased"]);
    if (key.attend !== undefined) steps.push([key.attend ? say("mask: this key is kept") : say("mask: this key is left out"), key.score, "score"]);
    if (worked.sum === 0) return [...steps, [say("every key is masked: weight"), 0, "weight"]];
    steps.push([say("− {0}, the row's largest score (changes no weight)", digits(worked.largest)), key.score - worked.largest, "shifted"]);
    steps.push(["exp", key.exp, "exp"]);
    steps.push([say("/ {0}, the row's sum: weight", digits(worked.sum)), key.weight, "weight"]);
    return steps;
  }

  #steps() {
    const lines = this.steps().map(([what, number, name]) => Worked.line([what, make("output", { textContent: digits(number) })], { data: { step: name } }));
    return this.part("stepwise", [say("2. From q · k to the weight")], Worked.table([say("step"), say("number")], lines, "steps"));
  }

  #row() {
    const { text, worked, column } = this.cell;
    const lines = worked.row.map((key, s) => {
      const bar = make("span", { className: "bar-track", aria: { hidden: true } }, make("span", { className: "bar-fill", style: { part: key.weight } }));
      return Worked.line([word(text.keys.word(s)), digits(key.score), digitsOfShare(key.exp), digitsOfShare(key.weight), bar], { className: s === column ? "lit" : "", data: { key: s } });
    });
    const total = Worked.line([say("sum"), "", digits(worked.sum), digitsOfShare(worked.row.reduce((sum, { weight }) => sum + weight, 0)), ""], { className: "total" });
    const names = [say("key"), say("score"), say("exp(score − largest)"), say("weight"), ""];
    return this.part("row-of", sayParts("3. Softmax over all keys, query “{0}”", word(this.#words()[0])),
                      Worked.scroll(say("Scores of the row"), Worked.table(names, [...lines, total], "softmax")));
  }

  #output() {
    const { text, worked, column, feature } = this.cell;
    const shares = worked.row.map(({ weight }, s) => Array.from(worked.values[s], (x) => (weight === 0 ? 0 : weight * x)));
    const bound = Math.max(largestSize(worked.output), ...shares.map(largestSize));
    const lines = shares.map((share, s) => Worked.line(
        [word(text.keys.word(s)), this.strip(share, bound, say("weight × v of “{0}”", text.keys.word(s))), digitsOfShare(worked.row[s].weight), digits(worked.values[s][feature]), digits(share[feature])],
        { className: s === column ? "lit" : "", data: { key: s } }));
    const total = Worked.line([say("output"), this.strip(worked.output, bound, say("output of the head")), "", "", digits(worked.output[feature])], { className: "total" });
    const picked = make("input", { type: "number", id: "worked-feature", min: 0, max: worked.output.length - 1, value: feature });
    picked.addEventListener("change", () => {
      const place = Math.min(worked.output.length - 1, Math.max(0, Math.round(Number(picked.value)) || 0));
      this.pickFeature(String(place));
      $("worked-feature").focus();
    });
    const names = [say("key"), say("weight × v, all features"), say("weight"), `v[${feature}]`, `${say("weight")} × v[${feature}]`];
    return this.part("output-of", sayParts("4. Output of the head for “{0}”: the sum of weight × v", word(this.#words()[0])),
                      make("label", {}, ...sayParts("Numbers of feature {0}", picked)), this.scale(bound),
                      Worked.scroll(say("Weighted values"), Worked.table(names, [...lines, total], "values")));
  }

  title() { return say("“{0}” → “{1}”, worked out", ...this.#words()); }
}

const short = (bound) => (bound === 0 ? "0" : Number(bound.toPrecision(3)).toString());

const largestSize = (numbers) => numbers.reduce((most, number) => (Math.abs(number) > most ? Math.abs(number) : most), 0);
