// All heads as thumbnails. By default there is a row for each layer and a column for each head; the mean over the heads of a layer is on the right, and the
// mean over all heads and the rollout over all layers are below. The reader may also sort the heads by a measure.

class Grid {
  static thumbnailPixels = 96;

  constructor(element, open) {
    this.element = element;
    this.open = open;
    this.drawing = 0;
    this.canvas = make("canvas");
    element.addEventListener("click", (event) => this.#click(event));
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("focusin", (event) => this.#rove(event.target));
  }

  build(text) {
    this.text = text;
    this.heads = [...Array(text.heads).keys(), MEAN];
    this.layers = [...Array(text.layers).keys(), MEAN, ...(hasRollout(text) ? [ROLLOUT] : [])];
    setStyle(this.element, {columns: this.heads.length, layers: text.layers, aspect: Math.min(4, Math.max(0.25, text.keys.size / text.queries.size || 1))});
    this.table = this.layers.map((layer) => this.heads.map((head) => (isWhole(layer) && head !== MEAN ? null : this.#thumb(layer, head))));
    this.thumbs = this.table.flat().filter(Boolean);
    this.element.classList.toggle("many", text.heads > 8);
    this.shown = null;
  }

  // Orders the thumbnails by layer or by a measure. chosen: { measure: name or "none", sort, least: heads below this share of the largest value are hidden }.
  // source: the Text or Spread that measures the heads.
  arrange(chosen, source) {
    const key = JSON.stringify(chosen);
    if (this.shown === key) return;
    this.shown = key;
    const focused = document.activeElement;
    const measured = (thumb) => (thumb.dataset.layer === ROLLOUT ? undefined : source.measures(...Grid.place(thumb))[chosen.measure]);
    const value = (thumb) => (chosen.measure === "none" ? NaN : meanOf(measured(thumb)) ?? NaN);
    const values = new Map(this.thumbs.map((thumb) => [thumb, value(thumb)]));
    const heads = this.thumbs.filter((thumb) => thumb.dataset.head !== MEAN);
    this.threshold = chosen.measure === "none" ? 0 : chosen.least * (MEASURES[chosen.measure].unit ? Math.max(0, ...heads.map(value).filter((one) => !Number.isNaN(one))) : 1);
    const within = (thumb) => chosen.least === 0 || values.get(thumb) >= this.threshold;
    this.count = heads.filter(within).length;
    for (const thumb of this.thumbs) {
      thumb.classList.toggle("dim", !within(thumb));
      const title = titleOf(...Grid.place(thumb));
      const [named] = chosen.measure === "none" && source !== this.text && source.ready !== false ? namesOf(source.measures(...Grid.place(thumb))) : [];
      thumb.dataset.note = named ? MEASURES[named[0]].name() : chosen.measure === "none" ? "" : showMeasure(chosen.measure, measured(thumb)).replace(" ±", "\n±");
      const said = named ? say("{0}: {1}", title, MEASURES[named[0]].name()) : chosen.measure === "none" || measured(thumb) === undefined ? title : say("{0}, {1} {2}", title, MEASURES[chosen.measure].name(), withUnit(chosen.measure, measured(thumb)));
      thumb.said = said;
      thumb.title = said;
      thumb.setAttribute("aria-label", said);
    }
    if (chosen.sort && chosen.measure !== "none") {
      const sorted = heads.filter(within).sort((a, b) => (values.get(b) || 0) - (values.get(a) || 0));
      this.rows = [];
      while (sorted.length) this.rows.push(sorted.splice(0, this.heads.length - 1));
      this.element.replaceChildren(...this.rows.map((row) => make("div", { className: "row sorted", role: "row" }, ...row.map((thumb) => Grid.#cell(thumb, true)))));
    } else {
      this.rows = this.table;
      this.element.replaceChildren(this.#header(), ...this.layers.map((layer, at) => {
        const name = make("span", { role: "rowheader", className: "row-name", textContent: Grid.#rowName(layer), data: isWhole(layer) ? {} : { name: say("Layer") } });
        return make("div", { className: isWhole(layer) ? "row all" : "row", role: "row" }, name, ...this.rows[at].filter(Boolean).map((thumb) => Grid.#cell(thumb, false)));
      }));
    }
    const reachable = this.rows.flat().filter(Boolean);
    const current = reachable.find((thumb) => thumb.tabIndex === 0) ?? reachable[0];
    if (current) this.#rove(current);
    if (reachable.includes(focused)) focused.focus();
  }

  static #rowName(layer) { return layer === MEAN ? say("mean of all") : layer === ROLLOUT ? say("rollout") : layer; }

  #header() {
    return make("div", { className: "row", role: "row" }, make("span", { role: "columnheader" }, make("span", { className: "unseen", textContent: say("Layer") })),
                ...this.heads.map((head) => make("span", { role: "columnheader", className: "column-name", textContent: head === MEAN ? say("mean") : head })));
  }

  static #cell(thumb, named) {
    const place = named ? `${thumb.dataset.layer}·${thumb.dataset.head} ` : "";
    const note = make("span", { className: "badge", textContent: place + thumb.dataset.note, hidden: place + thumb.dataset.note === "", aria: { hidden: true } });
    const { head } = thumb.dataset;
    return make("div", { role: "gridcell", className: "cell", data: { name: head === MEAN ? say("mean") : head } }, thumb, note);
  }

  #thumb(layer, head) {
    const title = titleOf(layer, head);
    const image = make("img", { alt: "", draggable: false });
    const className = head === MEAN ? 'thumb mean' : 'thumb';
    return make('button', {type: 'button', className, title, tabIndex: -1, data: {layer, head}, aria: {label: title}}, image);
  }

  // A number that tells how strongly the words of a map look at single other words: the sum over the rows of the row's largest weight. These keys do not count:
  // the first token, special tokens, the row's own word and its neighbours.
  static #striking(text, map, { rows, columns }) {
    const self = isSelf(text), keys = columns.filter((s) => s > 0 && !text.keys.special.has(s));
    return rows.reduce((sum, t) => sum + keys.reduce((most, s) => (self && Math.abs(t - s) < 2 ? most : Math.max(most, map[t * text.keys.size + s] || 0)), 0), 0);
  }

  // Draws the thumbnails as images; as canvases, a thousand of them take a second in each frame. Returns a promise of the place of the most striking head, or
  // of null if another drawing has begun.
  async draw(look) {
    const drawing = ++this.drawing;
    const shown = look.placesOf(this.text), { rows, columns } = shown;
    let place = [0, 0], most = 0;
    const jobs = this.thumbs.map((thumb) => () => {
      const map = this.text.map(...Grid.place(thumb));
      paint(this.canvas, map, this.text.keys.size, rows, columns, fadedIn(look, this.text), blockFor(rows, columns, Grid.thumbnailPixels));
      thumb.firstChild.src = this.canvas.toDataURL();
      const found = thumb.dataset.head === MEAN ? 0 : Grid.#striking(this.text, map, shown);
      if (found > most) [place, most] = [Grid.place(thumb), found];
    });
    await inSlices(jobs, () => drawing !== this.drawing);
    return drawing === this.drawing ? place : null;
  }

  // Returns for a figure the position and image of each thumbnail, and the labels of rows and columns as [text, x, y, anchor].
  places() {
    return this.rows.flatMap((thumbs, row) => thumbs.map((thumb, column) => {
      if (!thumb) return null;
      const { layer, head, note } = thumb.dataset;
      if (this.rows !== this.table) return { row, column, name: [], image: thumb.firstChild.src, note: `${layer}·${head} ${note.replace("\n", " ")}` };
      const name = [];
      if (row === 0) name.push([head === MEAN ? say("mean") : head, 0.5, -0.1, "middle"]);
      if (column === 0) name.push([layer, -0.1, 0.55, "end"]);
      if (isWhole(layer)) name.push([Grid.#rowName(layer), -0.1, 0.55, "end"]);
      return { row, column, name, image: thumb.firstChild.src, note: note.replace("\n", " ") };
    })).filter(Boolean);
  }

  // Fades each thumbnail: the smaller the weight of(layer, head), the more. name(weight) describes the weight. If `of` is null, no thumbnail is faded.
  tint(of, name, look) {
    for (const thumb of this.thumbs) {
      const weight = of ? of(...Grid.place(thumb)) : null;
      thumb.classList.toggle("tinted", weight !== null);
      const title = weight === null ? thumb.said : `${thumb.said}, ${name(weight)}`;
      thumb.title = title;
      thumb.setAttribute("aria-label", title);
      setStyle(thumb, { tint: weight === null ? 1 : look.scale.position(weight || 0, 1) });
    }
  }

  static place(thumb) { return [placeOf(thumb.dataset.layer), placeOf(thumb.dataset.head)]; }

  find(layer, head) {
    return this.thumbs.find((thumb) => thumb.dataset.layer === String(layer) && thumb.dataset.head === String(head));
  }

  select(layer, head) {
    for (const thumb of this.thumbs) thumb.removeAttribute("aria-current");
    const chosen = this.find(layer, head);
    chosen?.setAttribute("aria-current", "true");
    if (chosen) this.#rove(chosen);
  }

  focus(layer, head) { this.find(layer, head)?.focus(); }

  // Focuses the one thumbnail that the Tab key can reach.
  enter() { this.thumbs.find((thumb) => thumb.tabIndex === 0)?.focus(); }

  // Makes this thumbnail the only one that the Tab key reaches; arrow keys move to the others.
  #rove(thumb) {
    if (!thumb?.classList.contains("thumb")) return;
    for (const other of this.thumbs) other.tabIndex = other === thumb ? 0 : -1;
  }

  #click(event) {
    const thumb = event.target.closest(".thumb");
    if (thumb) this.open(...Grid.place(thumb));
  }

  #key(event) {
    const row = this.rows.findIndex((thumbs) => thumbs.includes(document.activeElement));
    if (row < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const column = this.rows[row].indexOf(document.activeElement);
    const last = this.rows[row].length - 1;
    const target = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [row, 0], End: [row, last],
    }[event.key];
    if (!target) return;
    event.preventDefault();
    event.stopPropagation();
    this.rows[target[0]]?.[target[1]]?.focus();
  }
}
