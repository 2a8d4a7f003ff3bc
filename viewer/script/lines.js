// One head as lines, with queries on the left and keys on the right. Width and opacity of a line show its attention weight. Kept heads are drawn too, each
// head in another colour.

class Lines {
  static smallest = 0.01;  // pairs with a smaller attention weight have no line
  static most = 2000;  // at most this many lines are drawn at once: more take seconds to draw and hide each other
  static rowHeight = 24;
  static mostHeads = 6;

  constructor(events) {
    this.events = events;
    this.canvas = make("canvas", { aria: { hidden: true } });
    this.left = make("div", { className: "words left" });
    this.right = make("div", { className: "words right" });
    this.note = make("p", { className: "quiet" });
    this.body = make("div", { className: "lines-body", tabIndex: 0, role: "application" }, this.left, this.canvas, this.right);
    this.element = make("div", { className: "lines" }, this.body, this.note, this.heads = make("ul", { className: "heads" }));
    this.heads.addEventListener("click", (event) => { if (event.target.dataset.drop) this.#keep(keptOf(this.state).filter((name) => name !== event.target.dataset.drop)); });
    this.heads.addEventListener("change", (event) => this.#keep([...keptOf(this.state), event.target.value]));
    followLabels(this.left, "row", events);
    followLabels(this.right, "column", events);
  }

  // state.kept: the names of the heads that the reader keeps, such as "3.1,2.0".
  draw(text, map, shown, look, title, state) {
    Object.assign(this, { text, map, shown, look, state });
    const open = `${state.layer}.${state.head}`;
    const heads = headsOf(text).map(({ layer, head }) => `${layer}.${head}`);
    const others = keptOf(this.state).filter((name) => name !== open && heads.includes(name)).slice(0, Lines.mostHeads - 1);
    const mapOf = (name) => text.map(...name.split(".").map(Number));
    this.drawn = [map, ...others.map((name) => (look.part < 1 ? strongest(mapOf(name), text.keys.size, shown, look.part).map : mapOf(name)))];
    this.names = [title, ...others.map((name) => titleOf(...name.split(".").map(Number)))];
    const items = this.names.map((name, at) => make("li", {}, make("span", { className: `swatch line${at}`, aria: { hidden: true } }), name,
                                                    ...(at === 0 ? [] : [make("button", { type: "button", textContent: "×", data: { drop: others[at - 1] }, aria: { label: say("{0}: remove", name) } })])));
    const add = make("select", { aria: { label: say("Add a head") } });
    fillSelect(add, [["", say("Add a head…")], ...heads.filter((name) => name !== open && !others.includes(name)).map((name) => [name, titleOf(...name.split(".").map(Number))])]);
    this.heads.replaceChildren(...items, ...(this.names.length < Lines.mostHeads ? [make("li", {}, add)] : []));
    this.spot = null;
    this.links();
    const left_out = this.cut ? say("Only the {0} strongest links are drawn; point at a word to see all of its links.", Lines.most) : look.part < 1 ? say("Only the strongest links are drawn.") : text.unit ? say("Numbers below {0} are not drawn.", text.decoder.show(Lines.smallest)) : say("Attention weights below {0} are not drawn.", Lines.smallest);
    this.note.textContent = text.unit ? say("Attention weight × norm of the value, from the words on the left to the words on the right. {0}", left_out) : say("Attention from the words on the left to the words on the right. {0}", left_out);
    this.body.setAttribute("aria-label", say("{0}: {1} from words on the left to words on the right. Arrow keys move between pairs.", title, text.unit ? WEIGHTINGS.norm() : WEIGHTINGS.attention()));
    this.leftLabels = fillLabels(this.left, text.queries, shown.rows);
    this.rightLabels = fillLabels(this.right, text.keys, shown.columns, text.blocked);
    this.framed = [];
  }

  #keep(names) {
    this.events.set({ kept: names.filter(Boolean).join(",") });
    this.heads.querySelector("select, button")?.focus();
  }

  resize() {
    const height = Lines.rowHeight * Math.max(this.shown.rows.length, this.shown.columns.length);
    const width = Math.max(80, this.body.clientWidth - this.left.offsetWidth - this.right.offsetWidth);
    const density = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(1, height));  // no canvas may be higher than browsers allow
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * density);
    this.canvas.height = Math.max(1, Math.round(height * density));
    this.space = { width, density };
    this.#stroke();
  }

  light(spot, pinned = null) {
    this.spot = spot;
    this.framed = markLabels(this.framed, "pinned", this.leftLabels, this.rightLabels, pinned);
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
    const middle = (at) => (at + 0.5) * Lines.rowHeight;
    strokeLinks(pen, this.text, this.shown, width, middle, style.getPropertyValue("--gold"));
    for (const { from, to, weight, faded, at } of this.links()) {
      const line = Lines.pen(weight, faded);
      pen.strokeStyle = style.getPropertyValue(`--line${at}`);
      pen.globalAlpha = line["stroke-opacity"];
      pen.lineWidth = line["stroke-width"];
      pen.beginPath();
      const [left, right] = [middle(from) + this.shift(at), middle(to) + this.shift(at)];
      pen.moveTo(0, left);
      pen.bezierCurveTo(width / 3, left, (2 * width) / 3, right, width, right);
      pen.stroke();
    }
  }

  // How far the lines of a head are moved down. Lines of several heads between the same words are drawn beside each other.
  shift(at) { return (at - (this.drawn.length - 1) / 2) * 4; }

  // The SVG attributes of a line for this weight.
  static pen(weight, faded) { return { "stroke-opacity": Math.min(1, 0.08 + 0.92 * weight) / (faded ? 4 : 1), "stroke-width": 1 + 3 * weight }; }

  // The lines to draw. Each goes from a place on the left to a place on the right; `at` is the index of its head among the heads that are drawn.
  links() {
    const links = [];
    const { faded } = fadedIn(this.look, this.text);
    const columns = this.#only(this.shown.columns, this.spot?.column);
    for (const [from, row] of this.#only(this.shown.rows, this.spot?.row)) {
      for (const [to, column] of columns) {
        this.drawn.forEach((map, at) => {
          const weight = map[row * this.text.keys.size + column];
          if (weight >= (this.look.part < 1 ? 2 * TINY : Lines.smallest)) links.push({ from, to, weight, faded: faded?.(row, column), at });
        });
      }
    }
    this.cut = links.length > Lines.most;
    return this.cut ? links.sort((a, b) => b.weight - a.weight).slice(0, Lines.most) : links;
  }

  // Returns [place, token index] for every shown token; if a token is chosen, only for this token.
  #only(indices, chosen) {
    const all = [...indices.entries()];
    return chosen == null ? all : all.filter(([, index]) => index === chosen);
  }
}
