// One head as a matrix: queries are rows with their words on the left, keys are columns with their words on top.

class Matrix {
  static sizes = [0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 3, 4, 6, 8, 10, 12, 14, 17, 20, 24, 28, 32, 38, 44, 52, 64];
  static readable = 10;  // the smallest size of cells, in CSS pixels, with which the words beside the map can be read

  constructor(events) {
    this.events = events;
    this.canvas = make("canvas", { aria: { hidden: true } });
    this.bands = ["pin-band", "row-band", "column-band", "cell-band"].map((className) => make("div", { className, hidden: true }));
    this.body = this.cells = make("div", { className: "cells", tabIndex: 0, role: "application" }, this.canvas, ...this.bands);
    this.queryStrip = make("div", { className: "strip queries" });
    this.keyStrip = make("div", { className: "strip keys" });
    this.axes = [make("span", { className: "key-axis" }), make("span", { className: "query-axis" })];
    this.gate = new GateStrip();
    this.element = make("div", { className: "matrix" }, make("div", { className: "strip-corner", aria: { hidden: true } }, ...this.axes), this.keyStrip, this.gate.head, this.queryStrip, this.cells, this.gate.element);
    this.cells.addEventListener("pointermove", (event) => this.events.hover(this.#at(event)));
    this.cells.addEventListener("pointerleave", () => this.events.hover(null));
    this.cells.addEventListener("click", (event) => this.events.choose(this.#at(event)));
    followLabels(this.queryStrip, "row", events);
    followLabels(this.keyStrip, "column", events);
  }

  // shown: { rows, columns }, the indices of the query tokens and key tokens that are not hidden.
  draw(text, map, shown, look, title, place) {
    this.shown = shown;
    this.reading = text.pooled ? readingOfBlocks(text, place) : {};
    this.paint = (block, canvas = this.canvas) => paint(canvas, map, text.keys.size, shown.rows, shown.columns, fadedIn(look, text), block);
    this.block = 0;  // the block size of paint(); 0 if nothing is painted yet
    axisNames(text).forEach((name, at) => { this.axes[at].textContent = name; });
    this.cells.setAttribute("aria-label", text.pooled ? say("{0}: {1}. Arrow keys move between blocks.", title, captionOf(text)) : say("{0}: {1}. Arrow keys move between pairs.", title, captionOf(text)));
    setStyle(this.element, {rows: shown.rows.length, columns: shown.columns.length});
    this.queryLabels = fillLabels(this.queryStrip, text.queries, shown.rows);
    this.keyLabels = fillLabels(this.keyStrip, text.keys, shown.columns, text.blocked);
    this.gate.draw(text, shown, look, place ?? { layer: MEAN });
    this.cells.querySelectorAll(".segment, .gold, .blocked-shade").forEach((mark) => mark.remove());
    this.cells.append(...blockedShades(text, shown), ...linkOutlines(text, shown), ...Matrix.#segments(text.queries, shown.rows, "row"), ...Matrix.#segments(text.keys, shown.columns, "column"));
    this.lit = this.framed = [];
  }

  // Makes lines that separate the segments of a text.
  static #segments(tokens, indices, side) {
    const starts = [...indices.keys()].filter((at) => at > 0 && tokens.segment[indices[at]] !== tokens.segment[indices[at - 1]]);
    return starts.map((at) => make('div', {className: `segment ${side}`, style: {at}}));
  }

  // Chooses the size of cells and returns it: the largest with which the map fits into the width. The map also fits into the height if words stay readable.
  // zoom: how many steps larger or smaller the reader wants the cells.
  resize({ width, height }, zoom) {
    let margin = { width: 110, height: 60 };
    for (let pass = 0; pass < 2; ++pass) {  // two passes, because the sizes of words and cells depend on each other
      const across = (width - margin.width) / Math.max(1, this.shown.columns.length);
      const down = (height - margin.height) / Math.max(1, this.shown.rows.length);
      this.size = Matrix.#step(Math.min(64, across, Math.max(14, down)), zoom);
      setStyle(this.element, {cell: `${this.size}px`});
      this.element.classList.toggle("unlabelled", this.size < Matrix.readable);
      const longest = (labels) => Math.max(0, ...[...labels.values()].map((label) => label.offsetWidth));
      setStyle(this.element, {'query-words': `${Math.max(longest(this.queryLabels), ...this.axes.map((name) => name.offsetWidth))}px`, 'key-words': `${longest(this.keyLabels)}px`});
      margin = { width: this.cells.offsetLeft + 8 + this.gate.space, height: this.cells.offsetTop + 8 };
    }
    const pixels = this.size * (window.devicePixelRatio || 1);  // the size of a cell in pixels of the screen
    const block = pixels >= 1 ? 1 : Math.ceil(1 / pixels);
    if (block !== this.block) this.paint(block);
    this.block = block;
    setStyle(this.element, {'painted-columns': this.canvas.width * block, 'painted-rows': this.canvas.height * block});
    return this.size;
  }

  // Rounds the size down to whole pixels, so that all cells are equally large. Sizes below 3 pixels are not rounded, because the map would become much smaller.
  static #step(fit, zoom) {
    const whole = Math.max(0.1, fit >= 3 ? Math.floor(fit) : fit);
    const sizes = Matrix.sizes;
    if (zoom === 0) return whole;
    const first = zoom > 0 ? sizes.findIndex((size) => size > whole) : sizes.findLastIndex((size) => size < whole);
    if (first < 0) return whole;
    return sizes[Math.min(sizes.length - 1, Math.max(0, first + zoom - Math.sign(zoom)))];
  }

  // Highlights a pair, a row (its column is null), a column (its row is null) or nothing (spot is null), and frames the pinned pair.
  light(spot, pinned = null) {
    const [pinBand, ...bands] = this.bands;
    const place = (spot) => ({ row: spot ? this.shown.rows.indexOf(spot.row) : -1, column: spot ? this.shown.columns.indexOf(spot.column) : -1 });
    const { row, column } = place(spot);
    // set the properties only on the bands; on the whole element the browser would restyle every label
    for (const band of bands) setStyle(band, {row, column});
    setStyle(pinBand, place(pinned));
    pinBand.hidden = pinned?.row == null || pinned.column == null;
    const [rowBand, columnBand, cellBand] = bands;
    rowBand.hidden = row < 0;
    columnBand.hidden = column < 0;
    cellBand.hidden = row < 0 || column < 0;
    this.lit = markLabels(this.lit, "lit", this.queryLabels, this.keyLabels, spot);
    this.framed = markLabels(this.framed, "pinned", this.queryLabels, this.keyLabels, pinned);
  }

  // Scrolls the map so that the words at its edges do not cover the pair.
  reveal(spot) {
    const stage = this.element.parentElement;
    const row = this.shown.rows.indexOf(spot.row) * this.size;
    const column = this.shown.columns.indexOf(spot.column) * this.size;
    const move = (from, view, at) => (at < from ? at : at + 2 * this.size > from + view ? at + 2 * this.size - view : from);
    stage.scrollTop = move(stage.scrollTop, stage.clientHeight - this.cells.offsetTop, row);
    stage.scrollLeft = move(stage.scrollLeft, stage.clientWidth - this.cells.offsetLeft, column);
  }

  #at(event) {
    const box = this.cells.getBoundingClientRect();
    const row = this.shown.rows[Math.floor((event.clientY - box.top) / this.size)];
    const column = this.shown.columns[Math.floor((event.clientX - box.left) / this.size)];
    return row === undefined || column === undefined ? null : { row, column };
  }
}
