// One head as lines: queries on the left, keys on the right; width and opacity of a line show its attention weight.

class Lines {
  static smallest = 0.01;  // attention weight of the faintest line that is drawn
  static rowHeight = 24;

  constructor(events) {
    this.events = events;
    this.canvas = make("canvas", { aria: { hidden: true } });
    this.left = make("div", { className: "words left" });
    this.right = make("div", { className: "words right" });
    this.note = make("p", { className: "quiet" });
    this.body = make("div", { className: "lines-body", tabIndex: 0, role: "application" }, this.left, this.canvas, this.right);
    this.element = make("div", { className: "lines" }, this.body, this.note);
    followLabels(this.left, "row", events);
    followLabels(this.right, "column", events);
  }

  draw(text, map, shown, look, title) {
    Object.assign(this, { text, map, shown, look });
    const left_out = look.part < 1 ? say("Only the strongest links are drawn.") : say("Attention weights below {0} are not drawn.", Lines.smallest);
    this.note.textContent = say("Attention from the words on the left to the words on the right. {0}", left_out);
    this.body.setAttribute("aria-label", say("{0}: attention from words on the left to words on the right. Arrow keys move between pairs.", title));
    this.leftLabels = fillLabels(this.left, text.queries, shown.rows);
    this.rightLabels = fillLabels(this.right, text.keys, shown.columns, text.blocked);
    this.spot = null;
  }

  resize() {
    const height = Lines.rowHeight * Math.max(this.shown.rows.length, this.shown.columns.length);
    const width = Math.max(80, this.body.clientWidth - this.left.offsetWidth - this.right.offsetWidth);
    const density = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(1, height));  // browsers limit a canvas's height
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * density);
    this.canvas.height = Math.max(1, Math.round(height * density));
    this.space = { width, density };
    this.#stroke();
  }

  light(spot) {
    this.spot = spot;
    const width = this.text.keys.size;
    const tint = (labels, weightOf, chosen) => labels.forEach((label, index) => {
      const weight = weightOf(index);
      label.classList.toggle('lit', index === chosen);
      setStyle(label, {tint: weight > 0 ? this.look.scale.position(weight, 1) : 0});
    });
    const byRow = spot?.row != null && spot.column == null;
    const byColumn = spot?.column != null && spot.row == null;
    tint(this.rightLabels, (column) => (byRow ? this.map[spot.row * width + column] : 0), spot?.column);
    tint(this.leftLabels, (row) => (byColumn ? this.map[row * width + spot.column] : 0), spot?.row);
    this.#stroke();
  }

  reveal(spot) { this.leftLabels.get(spot.row)?.scrollIntoView({block: 'nearest'}); }

  #stroke() {
    const pen = this.canvas.getContext("2d");
    const { width, density } = this.space;
    const style = getComputedStyle(this.element);
    pen.setTransform(density, 0, 0, density, 0, 0);
    pen.clearRect(0, 0, width, this.canvas.height / density);
    pen.strokeStyle = style.getPropertyValue("--line");
    const middle = (at) => (at + 0.5) * Lines.rowHeight;
    strokeLinks(pen, this.text, this.shown, width, middle, style.getPropertyValue("--gold"));
    for (const { from, to, weight, faded } of this.links()) {
      const line = Lines.pen(weight, faded);
      pen.globalAlpha = line["stroke-opacity"];
      pen.lineWidth = line["stroke-width"];
      pen.beginPath();
      pen.moveTo(0, middle(from));
      pen.bezierCurveTo(width / 3, middle(from), (2 * width) / 3, middle(to), width, middle(to));
      pen.stroke();
    }
  }

  // As SVG names them.
  static pen(weight, faded) { return { "stroke-opacity": Math.min(1, 0.08 + 0.92 * weight) / (faded ? 4 : 1), "stroke-width": 1 + 3 * weight }; }

  // The lines that are drawn, from a place on the left to one on the right.
  links() {
    const links = [];
    const { faded } = fadedIn(this.look, this.text);
    const columns = this.#only(this.shown.columns, this.spot?.column);
    for (const [from, row] of this.#only(this.shown.rows, this.spot?.row)) {
      for (const [to, column] of columns) {
        const weight = this.map[row * this.text.keys.size + column];
        if (weight >= (this.look.part < 1 ? 2 * TINY : Lines.smallest)) links.push({ from, to, weight, faded: faded?.(row, column) });
      }
    }
    return links;
  }

  // [line number, token index] of every shown token, or of the chosen token only.
  #only(indices, chosen) {
    const all = [...indices.entries()];
    return chosen == null ? all : all.filter(([, index]) => index === chosen);
  }
}
