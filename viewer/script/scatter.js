// All heads as points: any measure against any other, over one text, the texts of the page, or the texts that were measured when the page was made.

// The ticks of an axis: multiples of a round step. The first tick is at most `least`, the last at least `most`, and the step is chosen so that at most six
// steps cover most - least.
function ticksBetween(least, most) {
  const size = most - least, power = 10 ** Math.floor(Math.log10(size / 5));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => size / one <= 6);
  const first = Math.floor(least / step + 1e-9), last = Math.ceil(most / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

class Scatter {
  static near = 24;  // the pointer chooses the nearest head if it is within this many CSS pixels

  // Callbacks: open(layer, head) opens a head; set({ x, y }) is called with the names of two measures that the reader chooses for the axes.
  constructor(element, open, set) {
    Object.assign(this, { element, open });
    this.selects = { x: make("select", { id: "scatter-x" }), y: make("select", { id: "scatter-y" }) };
    for (const [axis, select] of Object.entries(this.selects)) select.addEventListener("change", () => set({ [axis]: select.value }));
    this.told = make("p", { className: "told" });
    this.plot = draw("svg", { class: "plot", role: "group" });
    this.note = make("p", { className: "quiet" });
    this.key = make("p", { className: "quiet key-of-layers" });
    this.names = make("ul", { className: "names-of-heads" });
    this.table = make("tbody");
    const formulas = make("details", { className: "formulas" }, sayOn("Formulas and sources", make("summary")), make("table", {}, this.table),
      sayOn("p[t, s] is the attention weight from token t to token s, both counted from 0, and x[t] is the token. Each measure is the mean over the tokens t that are not special and for which it is defined. Sources: first author, year and number on arXiv.", make("p")),
      sayOn("First-token sink: attention to the first token, whatever word it is. The first token, its neighbour and its repetitions do not count: they may look at it for other reasons.", make("p")),
      sayOn("Positional share: 1 minus the total variation distance between a row and the row that positions alone predict, m. A key is known by its place if it is the first or a special token, else by its distance from t; m[t, s] is the mean attention that the other rows give to keys of this kind. 100 %: positions explain the whole map.", make("p")));
    element.append(make("div", { className: "choices" }, make("label", {}, sayOn("Up", make("span")), this.selects.y), make("label", {}, sayOn("Across", make("span")), this.selects.x)), this.told, this.plot, this.key, this.note, this.names, formulas);
    this.plot.addEventListener("pointermove", (event) => this.#light(this.#nearest(event)));
    this.plot.addEventListener("pointerleave", () => this.#light(null));
    this.plot.addEventListener("click", (event) => this.#choose(this.#nearest(event)));
    this.plot.addEventListener("focusin", (event) => this.#light(this.points[event.target.dataset.at]));
    this.plot.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.points && this.#draw()).observe(element);
  }

  hide() { this.element.hidden = true; }

  // names: the measures that the reader can choose. over: a sentence that says which texts the measures are of.
  show({ text, source, names, over, look, x, y, open }) {
    this.element.hidden = false;
    this.axes = ["layer", ...names];
    const pick = (wanted, other) => (this.axes.includes(wanted) ? wanted : names.find((name) => name !== other) ?? "layer");
    this.x = pick(x, y), this.y = pick(y, this.x);
    for (const [axis, select] of Object.entries(this.selects)) {
      fillSelect(select, this.axes.map((name) => [name, this.#name(name)]));
      select.value = this[axis];
    }
    const value = (measured, name, layer) => (name === "layer" ? layer : Number(MEASURES[name].number?.(meanOf(measured[name])) ?? meanOf(measured[name]) ?? NaN));
    const spread = (measured, name) => (measured[name]?.count > 1 ? MEASURES[name].number?.(measured[name].spread) ?? measured[name].spread : 0);
    const heads = headsOf(text).map(({ layer, head }) => ({ layer, head, measured: source.ready === false ? {} : source.measures(layer, head) }));
    this.points = heads.map((one) => ({ ...one, named: namesOf(one.measured), x: value(one.measured, this.x, one.layer), y: value(one.measured, this.y, one.layer), spread: [this.x, this.y].map((name) => spread(one.measured, name)) }))
      .filter(({ x, y }) => !Number.isNaN(x) && !Number.isNaN(y));
    Object.assign(this, { look, layers: text.layers, at: open, lit: null });
    this.note.textContent = over;
    this.#names(heads);
    this.table.replaceChildren(...names.filter((name) => MEASURES[name].formula).map((name) => make("tr", {}, make("th", { scope: "row", textContent: MEASURES[name].name() }), make("td", {}, make("code", { textContent: MEASURES[name].formula })), make("td", { className: "quiet", textContent: MEASURES[name].source }))));
    this.#draw();
  }

  // Lists the heads that have a name, each as a button, under the measure that gives them the name.
  #names(heads) {
    const named = heads.map((one) => ({ ...one, named: namesOf(one.measured) }));
    const several = heads.some(({ measured }) => Object.values(measured).some((value) => value.count >= NAMED.texts));
    this.names.hidden = !several;
    this.names.replaceChildren(...Object.keys(MEASURES).filter((name) => MEASURES[name].named).map((name) => [name, named.filter((one) => one.named.some(([own]) => own === name))]).filter(([, found]) => found.length > 0).map(([name, found]) =>
      make("li", {}, make("b", { textContent: MEASURES[name].name() }), ` ${say("at least {0} in 9 of 10 texts:", MEASURES[name].show(MEASURES[name].named))} `, ...found.flatMap((one) => [this.#button(one), " "]))));
    if (several && this.names.childElementCount === 0) this.names.append(make("li", { textContent: say("No head has a name that holds in 9 of 10 texts.") }));
  }

  #button({ layer, head }) {
    const button = make("button", { type: "button", textContent: `${layer}·${head}`, title: titleOf(layer, head), aria: { label: titleOf(layer, head) } });
    button.addEventListener("click", () => this.open(layer, head));
    return button;
  }

  #name(name) { return name === "layer" ? say("layer") : MEASURES[name].name(); }

  #draw() {
    const width = Math.round(Math.max(280, Math.min(1280, this.element.clientWidth))), height = Math.round(Math.min(560, Math.max(300, 0.62 * width)));
    const area = { left: 56, top: 12, right: width - 24, bottom: height - 48 };
    const scale = (axis, from, to) => {
      // measures that come from the caller may be negative
      const values = this.points.map((one) => one[axis]), least = Math.min(0, ...values), most = Math.max(0, ...values);
      const ticks = ticksBetween(least, most > least ? most : 1);
      return { ticks, at: (value) => from + (to - from) * ((value - ticks[0]) / (ticks.at(-1) - ticks[0])) };
    };
    const x = scale("x", area.left, area.right), y = scale("y", area.bottom, area.top);
    const quiet = { fill: "var(--quiet)", "font-size": 12 };
    const shown = (name, value) => (name === "layer" ? String(value) : MEASURES[name].show === share ? share(value) : String(value));
    const title = (name) => [this.#name(name), name !== "layer" && MEASURES[name].unit?.()].filter(Boolean).join(" · ");
    this.body = [
      ...x.ticks.flatMap((value) => [draw("path", { d: `M${x.at(value)} ${area.top}V${area.bottom}`, stroke: "var(--rule)" }), draw("text", { ...quiet, x: x.at(value), y: area.bottom + 16, "text-anchor": "middle" }, shown(this.x, value))]),
      ...y.ticks.flatMap((value) => [draw("path", { d: `M${area.left} ${y.at(value)}H${area.right}`, stroke: "var(--rule)" }), draw("text", { ...quiet, x: area.left - 6, y: y.at(value) + 4, "text-anchor": "end" }, shown(this.y, value))]),
      draw("path", { d: `M${area.left} ${area.top}V${area.bottom}H${area.right}`, fill: "none", stroke: "var(--edge)" }),
      draw("text", { fill: "var(--ink)", "font-size": 13, x: (area.left + area.right) / 2, y: height - 10, "text-anchor": "middle" }, title(this.x)),
      draw("text", { fill: "var(--ink)", "font-size": 13, "text-anchor": "middle", transform: `translate(14 ${((area.top + area.bottom) / 2).toFixed(1)}) rotate(-90)` }, title(this.y)),
    ];
    const colour = (layer) => hexOf(this.look.ramp.at(0.55 + 0.45 * (this.layers > 1 ? layer / (this.layers - 1) : 0)));
    const dot = (fill, edge) => draw("svg", { width: 14, height: 14, "aria-hidden": "true" }, draw("circle", { cx: 7, cy: 7, r: 5, fill, stroke: edge, "stroke-width": 1.5 }));
    const layers = [...new Set([0, Math.floor((this.layers - 1) / 2), this.layers - 1])];
    this.key.replaceChildren(...layers.map((layer) => make("span", {}, dot(colour(layer), "none"), say("layer {0}", layer))), ...(this.points.some(({ named }) => named.length) ? [make("span", {}, dot("none", "var(--ink)"), say("head with a name"))] : []));
    this.points.forEach((one, at) => {
      one.place = [x.at(one.x), y.at(one.y)];
      const open = this.at && this.at.layer === one.layer && this.at.head === one.head;
      one.circle = draw("circle", { cx: one.place[0], cy: one.place[1], r: open ? 8 : one.named.length ? 6 : 5, fill: colour(one.layer), stroke: open ? "var(--accent)" : one.named.length ? "var(--ink)" : "var(--page)", "stroke-width": open ? 3 : one.named.length ? 1.5 : 1, tabindex: -1, role: "button", "aria-label": this.#said(one), "data-at": at, "data-layer": one.layer, "data-head": one.head });
      const [across, up] = one.spread.map((spread) => spread || 0);
      one.cross = `M${x.at(one.x - across)} ${one.place[1]}H${x.at(one.x + across)}M${one.place[0]} ${y.at(one.y - up)}V${y.at(one.y + up)}`;
    });
    this.cross = draw("path", { stroke: "var(--accent)", "stroke-width": 1.5, "pointer-events": "none" });
    this.label = draw("text", { fill: "var(--ink)", "font-size": 13, "font-weight": 600, "pointer-events": "none" });
    const focused = this.plot.contains(document.activeElement) ? document.activeElement.dataset : null;  // if the width changes, the points are drawn again
    this.plot.replaceChildren(...this.body, ...this.points.map(({ circle }) => circle), this.cross, this.label);
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": say("{0} against {1}, a point for each head. Arrow keys move between heads, Enter opens one.", this.#name(this.y), this.#name(this.x)) })) this.plot.setAttribute(name, value);
    const first = this.points.find(({ circle }) => circle.getAttribute("r") === "8") ?? this.points[0];
    first?.circle.setAttribute("tabindex", 0);
    this.#light(null);
    if (focused) this.focus(Number(focused.layer), Number(focused.head));
  }

  #said({ layer, head, measured, named }) {
    const value = (name) => (name === "layer" ? [] : [`${MEASURES[name].name()} ${withUnit(name, measured[name])}`]);
    const names = named.length ? [say("named: {0}", named.map(([name]) => MEASURES[name].name()).join(", "))] : [];
    return say("{0}: {1}", titleOf(layer, head), [...new Set([this.y, this.x])].flatMap(value).concat(names).join(" · "));
  }

  #light(one) {
    this.lit = one;
    this.told.textContent = one ? this.#said(one) : this.points.length ? say("Point at a head; a click opens it.") : say("No head has both measures.");
    this.cross.setAttribute("d", one?.cross ?? "");
    this.label.textContent = one ? `${one.layer}·${one.head}` : "";
    if (!one) return;
    const left = one.place[0] > Number(this.plot.getAttribute("width")) - 80;
    for (const [name, value] of Object.entries({ x: one.place[0] + (left ? -10 : 10), y: one.place[1] - 10 < 12 ? one.place[1] + 18 : one.place[1] - 10, "text-anchor": left ? "end" : "start" })) this.label.setAttribute(name, value);
  }

  #nearest(event) {
    const box = this.plot.getBoundingClientRect();
    const far = ({ place: [x, y] }) => Math.hypot(event.clientX - box.left - x, event.clientY - box.top - y);
    const near = this.points.reduce((best, one) => (best === null || far(one) < far(best) ? one : best), null);
    return near && far(near) <= Scatter.near ? near : null;
  }

  #choose(one) { if (one) this.open(one.layer, one.head); }

  focus(layer, head) { (this.points.find((one) => one.layer === layer && one.head === head)?.circle ?? this.plot.querySelector("[tabindex='0']"))?.focus(); }

  // The left and right arrow keys go to the next head in the order of x, up and down in the order of y.
  #key(event) {
    const step = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowDown: ["y", -1], ArrowUp: ["y", 1] }[event.key];
    const one = this.points[event.target.dataset.at];
    if (!one || event.ctrlKey || event.metaKey || event.altKey || !(step || event.key === "Enter" || event.key === " ")) return;
    event.preventDefault();
    event.stopPropagation();
    if (!step) return this.#choose(one);
    const order = this.points.toSorted((a, b) => a[step[0]] - b[step[0]]);
    const next = order[order.indexOf(one) + step[1]];
    if (!next) return;
    one.circle.setAttribute("tabindex", -1);
    next.circle.setAttribute("tabindex", 0);
    next.circle.focus();
  }
}

// Draws the scatter in an exported figure, with the colours of the page.
function scatterFigure(figure, scatter) {
  const { plot, points, note } = scatter;
  figure.line(note.textContent, 11, 400);
  const copy = draw("g", { transform: `translate(${Figure.margin} ${figure.y + 8})` });
  const colours = (text) => text.replace(/var\(--(\w+)\)/g, (_, name) => figure.colour(name));
  for (const element of [...scatter.body, ...points.map(({ circle }) => circle)]) {
    const own = element.cloneNode(true);
    for (const name of ["tabindex", "role", "aria-label"]) own.removeAttribute(name);
    for (const name of ["fill", "stroke"]) if (own.hasAttribute(name)) own.setAttribute(name, colours(own.getAttribute(name)));
    copy.append(own);
  }
  for (const { place, layer, head } of points) copy.append(figure.words(`${layer}·${head}`, place[0] + 7, place[1] - 6, { "font-size": 9 }));
  figure.add(copy);
  figure.reach(Figure.margin + Number(plot.getAttribute("width")), figure.y + 8 + Number(plot.getAttribute("height")));
}
