// Shows two heads side by side, and their difference A − B. B may be in another layer, another text, or another page that the reader opens.

// Parses the name of a head: "3.1" is layer 3, head 1 of the text shown; "3.1.2" is the same head of text 2.
function otherHeadOf(name, texts, shown) {
  const [, layer, head, text] = /^(\d+|mean|rollout)\.(\d+|mean)(?:\.(\d+))?$/.exec(name ?? "") ?? [];
  const place = { text: text === undefined ? shown : Number(text), layer: placeOf(layer), head: placeOf(head), named: text !== undefined };
  const of = texts[place.text];
  const fits = (index, count) => index === MEAN || (index === ROLLOUT ? hasRollout(of) : index < count);
  return layer !== undefined && of && !of.pooled && fits(place.layer, of.layers) && fits(place.head, of.heads) && (!isWhole(place.layer) || place.head === MEAN) ? place : null;
}

const nameOfOther = ({ layer, head, text, named }) => [layer, head, ...(named ? [text] : [])].join(".");

// The difference of two maps. It is exactly 0, and drawn with hatching, only where both weights are 0.
function differenceOf(a, b) {
  return Float32Array.from(a, (weight, i) => (weight === b[i] && weight !== 0 ? TINY : weight - b[i]));
}

// Makes a scale for differences from a scale for attention weights: a difference of 0 has the colour in the middle of the ramp.
function mirrored(scale) {
  // leave out ticks whose labels would touch each other
  const ticks = scale.ticks().filter(([at], place, all) => at === 1 || (at > 0.25 && 1 - at > 0.25 && !(all[place - 1][0] > 0.25)));
  return {
    position: (difference, largest) => 0.5 + 0.5 * Math.sign(difference) * scale.position(Math.abs(difference), largest),
    ticks: () => [...ticks.map(([at, name]) => [0.5 - at / 2, `−${name}`]), [0.5, "0"], ...ticks.map(([at, name]) => [0.5 + at / 2, `+${name}`])],
    note: scale.note && (() => say("Relative to the largest difference.")),
  };
}

// The text for a difference of two weights. Its number of digits is that of the page, A's or B's, that stores weights less exactly.
function showDifference(difference, exact) {
  if (Number.isNaN(difference)) return "NaN";
  const size = Math.abs(difference);
  const digits = exact ? size.toFixed(4) : `${Number(size.toPrecision(2))}`;
  const sign = Number(digits) === 0 ? "" : difference < 0 ? "−" : "+";
  return `${exact ? "" : "≈ "}${sign}${digits}`;
}

class Compare {
  // partner: the controls that choose B
  constructor(events, partner) {
    this.legend = make("canvas", { className: "bar-of-colours", width: 256, height: 1, aria: { hidden: true } });
    this.ticks = make("div", { className: "ticks" });
    this.note = make("p", { className: "note" });
    this.panes = ["a", "b", "difference"].map((side) => {
      const matrix = new Matrix(side === "b" ? { hover: (spot) => this.#hover(spot, events), choose: (spot) => this.same && events.choose(spot) } : events);
      const title = make("h3", { id: `compare-${side}` });
      const told = make("p", { className: "quiet told" });
      const scroll = make("div", { className: "scroll" }, matrix.element);
      scroll.addEventListener("scroll", () => this.#follow(scroll));
      return { side, matrix, title, told, scroll, element: make("section", { className: `pane ${side}`, aria: { labelledby: `compare-${side}` } }, title, told, scroll) };
    });
    this.panes[2].element.append(make("div", { className: "scale" }, this.legend, this.ticks), make("p", { className: "quiet ends" }, sayOn("B looks more", make("span")), sayOn("A looks more", make("span"))));
    this.element = make("div", { className: "compare" }, partner.element, this.note, make("div", { className: "panes" }, ...this.panes.map(({ element }) => element)));
  }

  // The element that receives the keyboard events of this view.
  get body() { return this.panes[0].matrix.cells; }

  // b: head B as { text, map, shown, title }; draw() receives the same for head A. names: the names of the two texts, if A and B belong to different texts.
  choose(b, names) { Object.assign(this, { b, names }); }

  draw(text, map, shown, look, title) {
    const a = { text, map, shown, title }, b = this.b;
    const size = ({ text }) => `${text.queries.size} × ${text.keys.size}`;
    this.a = a;
    this.same = a.text.queries.size === b.text.queries.size && a.text.keys.size === b.text.keys.size;
    this.exact = [a, b].every(({ text }) => text.decoder.encoding !== ENCODINGS.logarithmic8);
    const sides = a.text.keys === a.text.queries ? ["queries"] : ["queries", "keys"];
    const words = this.same ? sides.flatMap((side) => a.text[side].pieces.filter((one, at) => one !== b.text[side].pieces[at])).length : 0;
    this.otherWords = words > 0;
    this.note.hidden = this.same && words === 0;
    this.note.textContent = this.same ? say("The texts differ in {0} {0|word|words}; words at the same place are compared.", words)
      : say("The maps have different sizes (A: {0}, B: {1} tokens), so no difference is shown.", size(a), size(b));
    this.difference = this.same ? differenceOf(a.map, b.map) : null;
    this.look = { ...look, ramp: look.diverging, scale: mirrored(look.scale) };
    [a, b].forEach((one, at) => {
      const { title, told, matrix } = this.panes[at];
      title.textContent = `${"AB"[at]}: ${one.title}`;
      told.textContent = this.names?.[at] ?? "";
      told.hidden = !this.names;
      matrix.draw(one.text, one.map, one.shown, look, title.textContent);
    });
    const last = this.panes[2];
    last.element.hidden = !this.same;
    if (!this.same) return;
    last.title.textContent = "A − B";
    last.told.textContent = say("Distance: {0} (Jensen-Shannon divergence, mean over the words that look)", this.#distance(divergenceOf(a.text, a.map, b.map)));
    last.matrix.draw(a.text, this.difference, a.shown, this.look, "A − B");
    paintBar(this.legend, this.ticks, this.look, this.look.scale.ticks());
  }

  #distance(bits) { return Number.isNaN(bits) ? "NaN" : say("{0} bits", bits.toFixed(3)); }

  resize({ height }, zoom) {
    const sizes = this.panes.filter(({ element }) => !element.hidden).map(({ matrix, scroll }) => matrix.resize({ width: scroll.clientWidth, height }, zoom));
    this.size = sizes[0];
    return this.size;
  }

  light(...spots) {
    this.panes[0].matrix.light(...spots);
    if (!this.same) return this.panes[1].matrix.light(null);
    this.panes[1].matrix.light(...spots);
    this.panes[2].matrix.light(...spots);
  }

  reveal(spot) { for (const { matrix } of this.same ? this.panes : this.panes.slice(0, 1)) matrix.reveal(spot); }

  // What the lists beside the maps show: the difference of A and B instead of a weight, if the maps of A and B have the same shape.
  get reading() {
    const { a, b } = this;
    if (!this.same) return {};
    const width = a.text.keys.size;
    return {
      map: this.difference,
      show: (value) => showDifference(value, this.exact),
      suffix: ": A − B",
      ofRow: (row) => say("Distance of the two rows: {0}", this.#distance(divergenceOfRows(rowOf(a.map, width, row), rowOf(b.map, width, row)))),
      weight: ({ row, column }) => {
        const at = row * width + column;
        const pair = this.otherWords ? ` (B: ${b.text.queries.word(row)} → ${b.text.keys.word(column)})` : "";
        return `A ${a.text.decoder.show(a.map[at])} · B ${b.text.decoder.show(b.map[at])} · A − B ${showDifference(this.difference[at], this.exact)}${pair}`;
      },
    };
  }

  // Moves the cursor. If the maps of A and B have the same shape, both show one cursor; else each map has a separate cursor.
  #hover(spot, events) {
    if (this.same) return events.hover(spot);
    const { text, map } = this.b;
    const { matrix, told } = this.panes[1];
    matrix.light(spot);
    const whole = spot && spot.row !== null && spot.column !== null;
    told.hidden = false;
    told.textContent = whole ? `${text.queries.word(spot.row)} → ${text.keys.word(spot.column)} ${text.decoder.show(map[spot.row * text.keys.size + spot.column])}` : this.names?.[1] ?? "";
  }

  // If all maps have the same shape, scrolls the other panes to the place to which the reader has scrolled this pane.
  #follow(scrolled) {
    if (this.same) for (const { scroll } of this.panes) if (scroll !== scrolled) scroll.scrollTo(scrolled.scrollLeft, scrolled.scrollTop);
  }
}
