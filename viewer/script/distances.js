// A small map of the distances between all heads. A click on a cell opens the comparison of its two heads.

// Orders heads so that similar heads are neighbours, by average-linkage clustering with nearest-neighbour chains (F. Murtagh, 1983).
function orderByLikeness(distances, count) {
  const between = Float64Array.from(distances, (bits) => (Number.isNaN(bits) ? 2 : bits));
  const members = Array.from({ length: count }, (_, at) => [at]);
  const left = new Set(members.keys());
  const chain = [];
  while (left.size > 1) {
    if (chain.length === 0) chain.push(left.values().next().value);
    const top = chain.at(-1), before = chain.at(-2);
    let nearest = before ?? -1;
    for (const other of left) if (other !== top && (nearest < 0 || between[top * count + other] < between[top * count + nearest])) nearest = other;
    if (nearest !== before) {
      chain.push(nearest);
      continue;
    }
    chain.length -= 2;
    const [a, b] = [members[before].length, members[top].length];
    for (const other of left) between[before * count + other] = between[other * count + before] = (a * between[before * count + other] + b * between[top * count + other]) / (a + b);
    members[before].push(...members[top]);
    left.delete(top);
  }
  return left.size ? members[left.values().next().value] : [];
}

// The distances between all pairs of heads. They equal those of divergenceOf(), but are computed as H((p + q) / 2) − (H(p) + H(q)) / 2, so that the entropy H
// of each row is computed only once.
class DistanceTable {
  // Largest number of terms in the sums for all pairs of heads, which takes a few seconds. For longer texts only every second, third … query is used.
  static mostTerms = 3e8;

  constructor(text) {
    this.text = text;
    this.count = text.layers * text.heads;
    const words = wordsThatLook(text), width = text.keys.size;
    this.step = Math.max(1, Math.ceil((this.count ** 2 / 2) * words.length * width / DistanceTable.mostTerms));
    this.words = words.filter((_, at) => at % this.step === 0);
    this.bits = new Float32Array(this.count ** 2);
    this.rows = [];  // for each head, the rows of its map, each divided by its sum
    this.entropies = [];
  }

  jobs() { return Array.from({ length: this.count }, (_, head) => () => this.#measure(head)); }

  #measure(head) {
    const width = this.text.keys.size, count = this.words.length;
    const { layer, head: place } = headsOf(this.text)[head];
    const map = this.text.map(layer, place);
    const mine = new Float32Array(count * width), entropies = new Float64Array(count);
    this.words.forEach((t, at) => {
      const row = rowOf(map, width, t);
      const sum = row.reduce((total, p) => total + p, 0);
      entropies[at] = sum === 0 ? -1 : 0;  // a row of zeros has the entropy -1 and is skipped later
      for (let s = 0; sum !== 0 && s < width; ++s) {
        const p = mine[at * width + s] = row[s] / sum;
        if (p !== 0) entropies[at] -= p * Math.log2(p);
      }
    });
    for (let other = 0; other < head; ++other) {
      const theirs = this.rows[other];
      let sum = 0, rows = 0;
      for (let at = 0; at < count; ++at) {
        const known = (entropies[at] + this.entropies[other][at]) / 2;
        if (entropies[at] === -1 || this.entropies[other][at] === -1) continue;
        let middle = 0;
        for (let i = at * width; i < (at + 1) * width; ++i) {
          const p = (mine[i] + theirs[i]) / 2;
          if (p !== 0) middle -= p * Math.log2(p);
        }
        sum += Math.max(0, middle - known);
        ++rows;
      }
      this.bits[head * this.count + other] = this.bits[other * this.count + head] = rows ? sum / rows : NaN;
    }
    this.rows.push(mine);
    this.entropies.push(entropies);
  }
}

class Distances {
  // compare(a, b) is called when the reader chooses two heads { layer, head } to compare; reorder(true) when similar heads shall be neighbours.
  constructor(element, compare, reorder) {
    this.element = element;
    this.tables = new Map();
    this.open = (spot) => spot && spot.row !== null && spot.column !== null && compare(headsOf(this.text)[spot.row], headsOf(this.text)[spot.column]);
    this.matrix = new Matrix({ hover: (spot) => this.#point(spot ?? this.pair), choose: this.open });
    this.told = make("p", { className: "told" });
    this.order = make("input", { type: "checkbox", id: "order" });
    this.order.addEventListener("change", () => reorder(this.order.checked));
    this.legend = make("canvas", { className: "bar-of-colours", width: 256, height: 1, aria: { hidden: true } });
    this.ticks = make("div", { className: "ticks" });
    this.note = make("p", { className: "quiet" });
    this.scroll = make("div", { className: "scroll" }, this.matrix.element);
    this.parts = [make("div", { className: "choices" }, make("label", {}, this.order, sayOn("Alike heads side by side", make("span")))), this.told, this.scroll, make("div", { className: "scale" }, this.legend, this.ticks), this.note];
    element.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.ready && this.#resize()).observe(element);
  }

  hide() {
    this.element.hidden = true;
    this.element.replaceChildren();
    this.ready = false;
    this.wanted = null;
  }

  // pair: the two heads [A, B] that are compared at the moment, or null
  async show(text, look, alike, pair) {
    if (this.element.hidden) this.element.replaceChildren(...this.parts);
    this.element.hidden = false;
    this.order.checked = alike;
    const place = ({ layer, head }) => (layer === MEAN || head === MEAN ? null : layer * text.heads + head);
    this.pair = pair && { row: place(pair[0]), column: place(pair[1]) };
    const wanted = this.wanted = {};
    if (!this.tables.has(text)) {
      this.ready = false;
      this.scroll.hidden = true;
      const table = new DistanceTable(text);
      await inSlices(table.jobs().map((job, head) => () => {
        this.told.textContent = say("Measuring: {0} of {1} heads", head, table.count);
        job();
      }), () => this.wanted !== wanted);
      if (this.wanted !== wanted) return;
      this.tables.set(text, { table, alike: orderByLikeness(table.bits, table.count) });
    }
    this.#draw(text, look, alike);
  }

  #draw(text, look, alike) {
    const { table, alike: order } = this.tables.get(text);
    const heads = headsOf(text), shown = alike ? order : [...heads.keys()];
    const tokens = new Tokens({ pieces: heads.map(({ layer, head }) => `${layer}·${head}`), special: [], segment: heads.map(({ layer }) => (alike ? 0 : layer)), words: true });
    tokens.note = (at) => titleOf(heads[at].layer, heads[at].head);
    const largest = table.bits.reduce((most, bits) => Math.max(most, bits || 0), 0);
    Object.assign(this, {
      text, table, tokens, ready: true, shown: { rows: shown, columns: shown },
      as: { ...sidesOf({}), queries: tokens, keys: tokens, decoder: { encoding: { number: (bits) => Number(bits.toFixed(5)) } } },
      map: table.bits.map((bits) => (bits === 0 ? TINY : bits)),
      look: { ...look, scale: { position: (bits) => (largest > 0 ? 1 - Math.sqrt(bits / largest) : 1), ticks: () => [[0, largest.toFixed(2)], [0.5, (largest / 4).toFixed(2)], [1, "0"]] } },
    });
    this.scroll.hidden = false;
    this.matrix.draw(this.as, this.map, this.shown, this.look);
    this.matrix.cells.setAttribute("aria-label", say("Distances between heads. Arrow keys move between pairs, Enter compares the two heads."));
    if (!alike) for (const labels of [this.matrix.queryLabels, this.matrix.keyLabels]) labels.forEach((label, at) => label.classList.toggle("first", heads[at].head === 0));
    paintBar(this.legend, this.ticks, look, [[0, say("{0} bits: unlike", largest.toFixed(2))], [0.5, (largest / 4).toFixed(2)], [1, say("0: alike")]]);
    const over = table.step === 1 ? say("the words that look") : say("{0} of the words that look, evenly chosen", table.words.length);
    this.note.textContent = say("Distance of two heads in bits: Jensen-Shannon divergence of their rows, mean over {0}. 0 bits: the same attention; 1 bit: no key in common.", over);
    this.#resize();
    this.#point(this.pair);
  }

  #resize() {
    this.matrix.resize({ width: Math.min(this.scroll.clientWidth, 110 + 12 * this.shown.rows.length), height: stageHeight() }, 0);
    this.matrix.light(this.spot);
  }

  #point(spot) {
    this.spot = spot;
    this.matrix.light(spot);
    const name = (at) => this.tokens.note(at);
    const one = spot && (spot.row ?? spot.column);
    if (!spot || one === null) this.told.textContent = say("Point at a pair of heads; a click compares them.");
    else if (spot.row === null || spot.column === null) this.told.textContent = say("Most like {0}: {1}", name(one), this.#nearest(one).map((at) => `${this.tokens.word(at)} (${this.#bits(one, at)})`).join(", "));
    else this.told.textContent = say("{0} and {1}: {2} bits", name(spot.row), name(spot.column), this.#bits(spot.row, spot.column));
  }

  #bits(a, b) { return this.table.bits[a * this.table.count + b].toFixed(3); }

  #nearest(one) {
    const bits = (at) => this.table.bits[one * this.table.count + at] || 0;
    return this.shown.rows.filter((at) => at !== one).sort((a, b) => bits(a) - bits(b)).slice(0, 4);
  }

  focus() { this.matrix.cells.focus(); }

  #key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!this.ready || event.target !== this.matrix.cells || event.ctrlKey || event.metaKey || event.altKey || !(step || event.key === "Enter")) return;
    event.preventDefault();
    event.stopPropagation();
    if (!step) return this.open(this.spot);
    const { rows } = this.shown;
    const move = (at, by) => rows[Math.min(rows.length - 1, Math.max(0, rows.indexOf(at ?? rows[0]) + by))];
    this.pair = { row: move(this.spot?.row, step[0]), column: move(this.spot?.column, step[1]) };
    this.#point(this.pair);
    this.matrix.reveal(this.pair);
    $("status").textContent = this.told.textContent;
  }
}
