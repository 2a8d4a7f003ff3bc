// Shows one head on the text itself. Words are tinted by the attention that the chosen word gives to them, or by the attention that they give to the chosen word.
// Further heads are shown below.

class Read {
  static long = 128;  // texts of at least this many tokens open in this view

  // events: hover(spot), choose(spot), chosen(), open(layer, head), set(changes of the state)
  // Kind: the class that shows the tokens: Running for text, Patches for an image.
  constructor(events, Kind = Running) {
    Object.assign(this, { events, Kind });
    const button = (reading) => make("button", { type: "button", data: { reading } });
    this.direction = make("span", { className: "joined", role: "group" }, button("looks"), button("looked"));
    this.beside = make("select");
    this.keep = make("button", { type: "button" });
    this.besideName = make("span");
    this.controls = make("div", { className: "choices" }, this.direction, make("label", {}, this.besideName, this.beside), this.keep);
    this.note = make("p", { className: "quiet" });
    this.sides = { row: new Kind(), column: new Kind() };
    this.body = make("div", { className: "read-body", tabIndex: 0, role: "application" });
    this.cards = make("div", { className: "cards" });
    this.element = make("div", { className: "read" }, this.controls, this.note, this.body, this.cards);
    this.drawing = 0;
    this.direction.addEventListener("click", (event) => event.target.dataset.reading && this.#turn(event.target.dataset.reading));
    this.beside.addEventListener("change", () => events.set({ beside: this.beside.value }));
    this.keep.addEventListener("click", () => events.set({ kept: this.#toggled(), beside: this.state.beside === "none" ? "kept" : this.state.beside }));
    for (const [side, running] of Object.entries(this.sides)) {
      running.element.addEventListener("pointermove", (event) => events.hover(this.#pointed(Running.at(event), side)));
      running.element.addEventListener("pointerleave", () => events.hover(null));
      running.element.addEventListener("click", (event) => this.#click(Running.at(event), side));
    }
    this.cards.addEventListener("click", (event) => {
      const title = event.target.closest("[data-head]");
      if (title) events.open(Number(title.dataset.layer), Number(title.dataset.head));
    });
  }

  // place: the members layer, head, reading, beside and kept of the state.
  draw(text, map, shown, look, title, place) {
    Object.assign(this, { text, map, shown, look, state: { ...place } });
    look.inks = inksOf(look.ramp);
    // True if queries and keys are different words: those of two texts, or of two segments of a text pair.
    this.two = text.keys !== text.queries || String(shown.rows) !== String(shown.columns);
    this.side = this.two ? this.side ?? "row" : place.reading === "looks" ? "row" : "column";
    this.original = { row: runningText(text.queries, text.text), column: this.two ? runningText(text.keys, text.text) : null };
    this.sides.row.build(text.queries, this.original.row, shown.rows, true, this.two ? null : text.blocked);
    if (this.two) this.sides.column.build(text.keys, this.original.column, shown.columns, true, text.blocked);
    this.body.replaceChildren(...(this.two
      ? [make("h3", { textContent: say("Words that look") }), this.sides.row.element, make("h3", { textContent: say("Words that are looked at") }), this.sides.column.element]
      : [this.sides.row.element]));
    this.body.setAttribute("aria-label", say("{0}: the text, tinted by {1}. Arrow keys move between words.", title, text.unit ? WEIGHTINGS.norm() : WEIGHTINGS.attention()));
    this.direction.hidden = this.two;
    this.direction.setAttribute("aria-label", say("Direction"));
    this.Kind.directions().forEach((name, at) => { this.direction.children[at].textContent = name; });
    this.besideName.textContent = say("Also show");
    for (const button of this.direction.children) button.setAttribute("aria-pressed", button.dataset.reading === place.reading);
    fillSelect(this.beside, [["none", say("no other heads")], ["layer", say("heads of the layer")], ["kept", say("kept heads")]]);
    this.beside.value = place.beside;
    const name = `${place.layer}.${place.head}`;
    this.keep.disabled = !/^\d+\.\d+$/.test(name);
    this.keep.textContent = keptOf(this.state).includes(name) ? say("Let go of this head") : say("Keep this head");
    this.#buildCards();
  }

  resize() {}

  #toggled() {
    const name = `${this.state.layer}.${this.state.head}`, kept = keptOf(this.state);
    return (kept.includes(name) ? kept.filter((one) => one !== name) : [...kept, name]).join(",");
  }

  // The further heads that are shown below, as [[layer, head], …]: those of the same layer, or those that the reader keeps.
  #others() {
    if (this.state.beside === "kept") return keptOf(this.state).map((name) => name.split(".").map(Number)).filter(([layer, head]) => layer < this.text.layers && head < this.text.heads);
    if (this.state.beside === "none" || isWhole(this.state.layer)) return [];
    return [...Array(this.text.heads).keys()].map((head) => [this.state.layer, head]);
  }

  // "row" if the query words are tinted, "column" if the key words are.
  get #tinted() { return this.two && this.side === "row" ? "column" : "row"; }

  #buildCards() {
    this.cardSide = this.#tinted;
    const tokens = this.cardSide === "column" ? this.text.keys : this.text.queries;
    const indices = this.cardSide === "column" ? this.shown.columns : this.shown.rows;
    this.others = this.#others().map(([layer, head]) => {
      const running = new this.Kind();
      running.build(tokens, this.original[this.cardSide], indices, false);
      const here = layer === this.state.layer && head === this.state.head;
      const title = make("button", { type: "button", textContent: titleOf(layer, head), data: { layer, head }, ...(here && { aria: { current: "true" } }) });
      return { layer, head, running, card: make("article", { className: "card" }, make("h3", {}, title), running.element) };
    });
    const empty = this.state.beside === "kept" && this.others.length === 0;
    this.cards.replaceChildren(...(empty ? [make("p", { className: "quiet", textContent: say("No head is kept. “Keep this head” keeps it here, whichever head is open.") })] : this.others.map(({ card }) => card)));
    this.tintedCards = null;
  }

  // The chosen word as { side, index }, or null if no word is chosen.
  #source(spot) {
    if (!spot) return null;
    const side = this.two && (spot.row === null || spot.column === null) ? (spot.row === null ? "column" : "row") : this.side;
    return spot[side] === null ? null : { side, index: spot[side] };
  }

  light(spot) {
    const source = this.#source(spot);
    if (this.two && source) this.side = source.side;
    const target = this.sides[this.#tinted];
    target.tint(this.#weights(this.map, source), this.look, this.#largest(this.map));
    if (this.two) this.sides[this.#tinted === "row" ? "column" : "row"].tint(null, this.look);
    const lit = (side) => (spot && spot[side] !== null ? [spot[side]] : []);
    this.sides.row.light(this.two ? lit("row") : [...lit("row"), ...lit("column")]);
    if (this.two) this.sides.column.light(lit("column"));
    this.note.textContent = !source ? this.Kind.hint()
      : source.side === "row" ? say("Tinted: where “{0}” looks.", this.text.queries.word(source.index)) : say("Tinted: who looks at “{0}”.", this.text.keys.word(source.index));
    const other = source?.side === "row" ? "column" : "row";
    for (const running of Object.values(this.sides)) if (this.two || running === this.sides.row) running.underline(new Set());
    if (source && this.text.links) target.underline(new Set([...this.text.links.sure, ...this.text.links.possible].filter((link) => link[source.side] === source.index).map((link) => link[other])));
    this.#tintCards(source);
  }

  #tintCards(source) {
    const key = JSON.stringify(source);
    if (this.tintedCards === key) return;
    if (this.cardSide !== this.#tinted) this.#buildCards();
    this.tintedCards = key;
    const drawing = ++this.drawing;
    const jobs = this.others.map(({ layer, head, running }) => () => {
      const map = this.text.map(layer, head);
      running.tint(this.#weights(map, source), this.look, this.#largest(map));
      if (!this.two && source) running.light([source.index]);
    });
    inSlices(jobs, () => drawing !== this.drawing, 4);  // if the pointer moves again before all jobs are done, the remaining jobs are dropped
  }

  #largest(map) { return this.look.scale.position === SCALES.own.position ? largestOf(map, this.text.keys.size, this.shown.rows, this.shown.columns) : 1; }

  // Returns a function from the index of a word to the weight with which the word is tinted. If no word is chosen, a key word has the mean of its weights in
  // all rows that are shown.
  #weights(map, source) {
    const width = this.text.keys.size, { rows } = this.shown;
    if (source?.side === "row") return (column) => map[source.index * width + column];
    if (source) return (row) => map[row * width + source.index];
    return (column) => rows.reduce((sum, row) => sum + map[row * width + column], 0) / rows.length;
  }

  #spot(side, index) { return { row: null, column: null, [side]: index }; }

  // The spot for a word under the pointer. If another word is chosen, the spot is the pair of the two words, so that the page shows their weight.
  #pointed(index, side) {
    if (index === null) return null;
    const chosen = this.#source(this.events.chosen());
    if (chosen && (!this.two || side !== chosen.side)) return { row: index, column: index, [chosen.side]: chosen.index };
    return this.#spot(this.two ? side : this.side, index);
  }

  #click(index, side) {
    if (index === null) return;
    const chosen = this.#source(this.events.chosen()), from = this.two ? side : this.side;
    this.events.choose(chosen && chosen.side === from && chosen.index === index ? null : this.#spot(from, index));
  }

  #turn(reading) {
    const chosen = this.#source(this.events.chosen());
    this.events.set({ reading });
    if (chosen) this.events.choose(this.#spot(this.side, chosen.index));
  }

  // The word that an arrow key chooses: the next or previous word, or the nearest word in the line above or below.
  moved(key) {
    const chosen = this.#source(this.events.chosen());
    const side = chosen?.side ?? (this.two ? "row" : this.side);
    const running = this.sides[this.two ? side : "row"], words = [...running.words];
    const at = chosen ? words.findIndex(([index]) => index === chosen.index) : -1;
    if (at < 0 || key === "Home") return this.#spot(side, words[0][0]);
    if (key === "End") return this.#spot(side, words.at(-1)[0]);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (step) {
      const against = getComputedStyle(running.element).direction === "rtl" ? -step : step;
      return this.#spot(side, words[Math.min(words.length - 1, Math.max(0, at + against))][0]);
    }
    const box = ([, element]) => element.getClientRects()[0], here = box(words[at]), down = key === "ArrowDown";
    const lines = words.filter((one) => (down ? box(one).top > here.bottom - 4 : box(one).bottom < here.top + 4));
    if (lines.length === 0) return this.#spot(side, words[at][0]);
    const line = down ? Math.min(...lines.map((one) => box(one).top)) : Math.max(...lines.map((one) => box(one).top));
    const off = (one) => (Math.abs(box(one).top - line) > here.height / 2 ? Infinity : Math.abs(box(one).left - here.left));
    return this.#spot(side, lines.reduce((best, one) => (off(one) < off(best) ? one : best))[0]);
  }

  reveal(spot) {
    const source = this.#source(spot);
    if (source) this.sides[this.two ? source.side : "row"].words.get(source.index)?.scrollIntoView({ block: "nearest" });
  }
}

// Draws the view as an SVG figure, with all words in the same places as on the screen.
function readFigure(figure, reader) {
  figure.legend(captionOf(reader.text));
  figure.line(reader.note.textContent, 13, 400);
  const outer = reader.element.getBoundingClientRect(), first = reader.body.getBoundingClientRect();
  const left = Figure.margin - outer.left, top = figure.y + 8 - first.top;
  for (const title of reader.element.querySelectorAll(".read-body h3, .card h3")) {
    const box = title.getBoundingClientRect();
    figure.add(figure.words(title.textContent, left + box.left, top + box.bottom - 4, { "font-weight": 600 }));
  }
  for (const image of reader.element.querySelectorAll("img")) {
    const box = image.getBoundingClientRect();
    figure.image(image.src, left + box.left, top + box.top, box.width, box.height);
  }
  for (const piece of reader.element.querySelectorAll(".piece")) {
    const style = getComputedStyle(piece), boxes = [...piece.getClientRects()];
    if (boxes.length === 0) continue;
    for (const box of boxes) {
      const lit = piece.classList.contains("lit"), patch = piece.textContent === "";
      if (patch || piece.style.background || lit)
        figure.add(draw("rect", { x: left + box.left, y: top + box.top, width: box.width, height: box.height, fill: patch && piece.classList.contains("none") ? HATCHING : piece.style.background ? hexOfCss(style.backgroundColor) : "none", stroke: lit ? figure.colour("accent") : patch ? figure.colour("edge") : "none", "stroke-width": lit ? 2 : 1 }));
    }
    const size = parseFloat(style.fontSize);
    figure.add(figure.words(piece.textContent, left + boxes[0].left + parseFloat(style.paddingLeft), top + boxes[0].bottom - 0.28 * boxes[0].height, { "font-size": size, fill: hexOfCss(style.color), "text-decoration": piece.classList.contains("unknown") ? "underline" : "none" }));
  }
  figure.reach(left + outer.right, top + reader.cards.getBoundingClientRect().bottom);
}

const hexOfCss = (colour) => `#${colour.match(/\d+/g).slice(0, 3).map((part) => Number(part).toString(16).padStart(2, "0")).join("")}`;
