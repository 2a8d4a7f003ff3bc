// All heads as thumbnails: a row for each layer, a column for each head, the mean over a layer's heads on the right, the mean over all heads
// below.

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
    this.rows = [];
    const heads = [...Array(text.heads).keys(), MEAN];
    setStyle(this.element, {columns: heads.length, aspect: Math.min(4, Math.max(0.25, text.keys.size / text.queries.size || 1))});
    const header = make("div", { className: "row", role: "row" }, make("span", { role: "columnheader" }, make("span", { className: "unseen", textContent: "Layer" })));
    for (const head of heads) header.append(make("span", { role: "columnheader", className: "column-name", textContent: head }));
    this.element.replaceChildren(header);
    for (const layer of [...Array(text.layers).keys(), MEAN]) {
      const thumbs = heads.map((head) => (layer === MEAN && head !== MEAN ? null : this.#thumb(layer, head)));
      const name = make("span", { role: "rowheader", className: "row-name", textContent: layer === MEAN ? "mean of all" : layer });
      const row = make("div", { className: layer === MEAN ? "row all" : "row", role: "row" }, name);
      row.append(...thumbs.filter(Boolean).map((thumb) => make("div", { role: "gridcell", className: "cell" }, thumb)));
      this.rows.push(thumbs);
      this.element.append(row);
    }
    this.thumbs = this.rows.flat().filter(Boolean);
    this.#rove(this.thumbs[0]);
  }

  #thumb(layer, head) {
    const title = titleOf(layer, head);
    const image = make("img", { alt: "", draggable: false });
    const className = head === MEAN ? 'thumb mean' : 'thumb';
    return make('button', {type: 'button', className, title, tabIndex: -1, data: {layer, head}, aria: {label: title}}, image);
  }

  // Thumbnails are images and not canvases: with a thousand canvases each frame takes a second.
  draw(look) {
    const drawing = ++this.drawing;
    const rows = this.text.queries.shown(look.hideSpecial);
    const columns = this.text.keys.shown(look.hideSpecial);
    const jobs = this.thumbs.map((thumb) => () => {
      const map = this.text.map(...Grid.place(thumb));
      paint(this.canvas, map, this.text.keys.size, rows, columns, look, blockFor(rows, columns, Grid.thumbnailPixels));
      thumb.firstChild.src = this.canvas.toDataURL();
    });
    return inSlices(jobs, () => drawing !== this.drawing);
  }

  // For a figure: where each thumbnail is, its image, and the numbers beside the first of a row or column: [text, x, y, anchor].
  places() {
    return this.rows.flatMap((thumbs, row) => thumbs.map((thumb, column) => {
      if (!thumb) return null;
      const name = [];
      if (row === 0) name.push([thumb.dataset.head, 0.5, -0.1, "middle"]);
      if (column === 0) name.push([thumb.dataset.layer, -0.1, 0.55, "end"]);
      if (thumb.dataset.layer === MEAN) name.push(["mean of all", -0.1, 0.55, "end"]);
      return { row, column, name, image: thumb.firstChild.src };
    })).filter(Boolean);
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

  // The thumbnail that Tab reaches.
  enter() { this.thumbs.find((thumb) => thumb.tabIndex === 0)?.focus(); }

  // Tab reaches one thumbnail only; arrow keys reach the others.
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
