// Draws the view on the screen as one SVG figure: name of the head, text, colour legend, words, and cells, lines or thumbnails.

// The namespace of SVG is an address, and the page must not contain addresses. So it is read from an element.
const SVG = make("template", { innerHTML: "<svg></svg>" }).content.firstChild.namespaceURI;

// Replaces characters that XML does not allow.
const xmlText = (text) => text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === "number" ? Number(value.toFixed(2)) : value);
  element.append(...children.map((child) => (typeof child === "string" ? xmlText(child) : child)));
  return element;
}

const HATCHING = "url(#zero)";  // refers to a pattern that each figure defines

const hexOf = (pixel) => `#${[0, 8, 16].map((shift) => ((pixel >>> shift) & 255).toString(16).padStart(2, "0")).join("")}`;

// Estimates the width of a text; in most fonts the text is not wider. Chinese, Japanese and Korean characters are as wide as they are high.
const widthOf = (text, size) => size * [...text].reduce((sum, character) => sum + (character >= "\u2e80" ? 1 : 0.62), 0);

class Figure {
  static margin = 24;
  most = 20000;  // maps with more cells are drawn as an image in the figure, with one pixel for each cell

  // look: the colours, in the form that paint() in colour.js takes. title, text: the lines above the figure.
  constructor(look, title, text) {
    this.look = look;
    this.style = getComputedStyle(document.documentElement);
    this.body = [];
    this.width = 480;
    this.y = Figure.margin;
    if (title) this.line(title, 20, 700);
    if (text) this.line(text.length > 120 ? `${text.slice(0, 119)}…` : text, 13, 400);
  }

  colour(name) { return this.style.getPropertyValue(`--${name}`).trim(); }

  add(...elements) { this.body.push(...elements); }

  reach(width, y) {
    this.width = Math.max(this.width, width);
    this.y = y;
  }

  words(text, x, y, options = {}) { return draw("text", { x, y, fill: this.colour("ink"), "font-size": 13, ...options }, text); }

  line(text, size, weight, colour = "ink") {
    this.y += size;
    this.add(this.words(text, Figure.margin, this.y, { "font-size": size, "font-weight": weight, fill: this.colour(colour) }));
    this.reach(2 * Figure.margin + widthOf(text, size), this.y + 8);
  }

  legend(caption, zero = say("exactly 0")) {
    const { ramp, scale } = this.look;
    const x = Figure.margin, y = this.y + 32, width = 288;
    this.add(this.words(caption, x, y - 8, { "font-weight": 600 }));
    for (let i = 0; i < 96; ++i)
      this.add(draw("rect", { x: x + 3 * i, y, width: 3, height: 12, fill: hexOf(ramp.at(i / 95)), "shape-rendering": "crispEdges" }));
    for (const [at, name] of scale.ticks())
      this.add(this.words(name, x + at * width, y + 26, { "font-size": 11, "text-anchor": at === 0 ? "start" : at === 1 ? "end" : "middle" }));
    if (zero) this.add(draw("rect", { x: x + width + 16, y, width: 12, height: 12, fill: HATCHING, stroke: this.colour("edge") }), this.words(zero, x + width + 34, y + 11, { "font-size": 11 }));
    if (scale.note) this.add(this.words(scale.note(), x, y + 44, { "font-size": 11 }));
    this.reach(x + width + 100, y + (scale.note ? 60 : 42));
  }

  // Draws an attention map with its top left corner at (x, y). Each cell is a square; `side` is its length.
  cells(text, map, { rows, columns }, x, y, side) {
    this.add(draw("rect", { x, y, width: columns.length * side, height: rows.length * side, fill: hexOf(this.look.ramp.at(this.look.scale.position(0, 1))), stroke: this.colour("edge") }));
    const largest = largestOf(map, text.keys.size, rows, columns);
    if (rows.length * columns.length > this.most) {
      const canvas = make("canvas");
      paint(canvas, map, text.keys.size, rows, columns, fadedIn(this.look, text));
      this.add(draw("rect", { x, y, width: columns.length * side, height: rows.length * side, fill: HATCHING }));
      return this.image(canvas.toDataURL(), x, y, columns.length * side, rows.length * side);
    }
    const { faded } = fadedIn(this.look, text);
    rows.forEach((row, i) => columns.forEach((column, j) => {
      const weight = map[row * text.keys.size + column];
      const full = this.look.ramp.of(weight, this.look.scale.position(weight, largest));
      const pixel = faded?.(row, column) ? this.look.ramp.faded(full) : full;
      this.add(draw("rect", { x: x + j * side, y: y + i * side, width: side, height: side, fill: pixel === 0 ? HATCHING : hexOf(pixel), "shape-rendering": "crispEdges" }));
    }));
  }

  image(url, x, y, width, height) {
    this.add(draw("image", { href: url, x, y, width, height, preserveAspectRatio: "none", style: "image-rendering:pixelated" }));
  }

  // The figure as an SVG element, with its size.
  drawing() {
    const hatch = draw("pattern", { id: "zero", width: 4, height: 4, patternUnits: "userSpaceOnUse" },
                       draw("rect", { width: 4, height: 4, fill: this.colour("page") }),
                       draw("path", { d: "M-1 5 5 -1M-1 1 1 -1M3 5 5 3", stroke: this.colour("hatch") }));
    const width = Math.ceil(this.width + Figure.margin), height = Math.ceil(this.y + Figure.margin);
    const root = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif" },
                      draw("defs", {}, hatch), draw("rect", { width, height, fill: this.colour("page") }), ...this.body);
    return { root, width, height };
  }

  // Returns the text of the SVG file.
  text() {
    const { root, width, height } = this.drawing();
    return { svg: new XMLSerializer().serializeToString(root), width, height };
  }
}

const longestWord = (tokens, indices, size) => Math.max(size, ...indices.map((index) => widthOf(tokens.word(index), size)));

function matrixFigure(figure, { text, drawn, shown }) {
  if (text.pooled) figure.line(blocksNote(text), 11, 400);
  figure.legend(captionOf(text));
  mapFigure(figure, text, drawn, shown);
}

function distancesFigure(figure, { as, map, shown, look, note }) {
  figure.look = look;
  figure.line(note.textContent, 11, 400);
  figure.legend(say("Distance between heads in bits"), null);
  mapFigure(figure, as, map, shown);
}

// Draws the map of A, below it the map of B and, if A and B have the same shape, the map of the difference. Each has a name and a legend.
function compareFigure(figure, { look }, { a, b, difference, names, look: mirrored }) {
  figure.legend(captionOf(a.text));
  [a, b].forEach(({ text, map, shown, title }, at) => {
    figure.line([`${"AB"[at]}: ${title}`, ...(names ? [names[at]] : [])].join(" · "), 16, 600);
    mapFigure(figure, text, map, shown);
  });
  if (!difference) return;
  figure.line("A − B", 16, 600);
  figure.look = { ...look, ...mirrored };
  figure.legend(say("Blue: B looks more. Orange: A looks more."), say("both exactly 0"));
  mapFigure(figure, a.text, difference, a.shown);
}

// Adds a map with its words at the bottom of the figure. side: length of a cell's side. size: size of the words, which are left out if it is below 6.
function mapFigure(figure, text, drawn, shown, side = Math.min(32, Math.max(2, 1280 / Math.max(1, shown.rows.length, shown.columns.length))), size = Math.min(13, side - 1)) {
  const { rows, columns } = shown, named = size >= 6;
  const left = Figure.margin + (named ? longestWord(text.queries, rows, size) : 0) + 8;
  const top = figure.y + (named ? longestWord(text.keys, columns, size) : 0) + 8;
  figure.cells(text, drawn, shown, left, top, side);
  columns.forEach((column, j) => {
    if (text.blocked.has(column)) figure.add(draw("rect", { x: left + j * side, y: top, width: side, height: rows.length * side, fill: "#808080", "fill-opacity": 0.4 }));
  });
  for (const { i, j, sure } of shownLinks(text, shown))
    figure.add(draw("rect", { x: left + j * side + 1, y: top + i * side + 1, width: side - 2, height: side - 2, fill: "none", stroke: "#ffb800", "stroke-width": Math.max(1, Math.min(3, side / 6)), "stroke-dasharray": sure ? "none" : "3 3" }));
  const ink = (tokens, index) => ({ "font-size": size, fill: figure.colour(tokens.special.has(index) ? "special" : "ink"),
                                    "text-decoration": tokens.unknown.has(index) ? "underline" : "none" });
  if (named) {
    rows.forEach((row, i) => figure.add(figure.words(text.queries.word(row), left - 6, top + (i + 0.5) * side + size / 3, { ...ink(text.queries, row), "text-anchor": "end" })));
    columns.forEach((column, j) => {
      const x = left + (j + 0.5) * side + size / 3;
      figure.add(figure.words(text.keys.word(column), x, top - 6, { ...ink(text.keys, column), transform: `rotate(-90 ${x.toFixed(2)} ${(top - 6).toFixed(2)})` }));
    });
  }
  figure.reach(left + columns.length * side, top + rows.length * side);
}

function linesFigure(figure, { text, shown, look }, lines) {
  figure.line(lines.note.textContent, 13, 400);
  if (lines.names.length > 1) lines.names.forEach((name, at) => figure.line(name, 13, 600, `line${at}`));
  const { rows, columns } = shown;
  const left = Figure.margin + longestWord(text.queries, rows, 13) + 8, right = left + 320, top = figure.y + 8;
  const middle = (at) => top + (at + 0.5) * Lines.rowHeight;
  rows.forEach((row, i) => figure.add(figure.words(text.queries.word(row), left - 8, middle(i) + 4, { "text-anchor": "end" })));
  columns.forEach((column, j) => figure.add(figure.words(text.keys.word(column), right + 8, middle(j) + 4)));
  const path = (from, to) => `M${left} ${middle(from)}C${left + 107} ${middle(from)} ${left + 213} ${middle(to)} ${right} ${middle(to)}`;
  for (const { i, j, sure } of shownLinks(text, shown))
    figure.add(draw("path", { d: path(i, j), fill: "none", stroke: figure.colour("gold"), "stroke-width": 5, "stroke-opacity": 0.8, "stroke-dasharray": sure ? "none" : "3 5" }));
  for (const { from, to, weight, faded, at } of lines.links()) {
    figure.add(draw("path", { transform: `translate(0 ${lines.shift(at)})`, d: path(from, to),
                               fill: "none", stroke: figure.colour(`line${at}`), ...Lines.pen(weight, faded) }));
  }
  figure.reach(right + 8 + longestWord(text.keys, columns, 13), middle(Math.max(rows.length, columns.length)));
}

function gridFigure(figure, grid) {
  if (grid.text.pooled) figure.line(blocksNote(grid.text), 11, 400);
  figure.legend(captionOf(grid.text));
  const side = 72, gap = 8;
  const left = Figure.margin + 32, top = figure.y + 24;
  grid.places().forEach(({ row, column, name, image, note }) => {
    const x = left + column * (side + gap), y = top + row * (side + gap + (note ? 12 : 0));
    figure.add(draw("rect", { x, y, width: side, height: side, fill: HATCHING, stroke: figure.colour("edge") }));
    figure.image(image, x, y, side, side);
    if (note) figure.add(figure.words(note, x + side / 2, y + side + 11, { "font-size": 10, "text-anchor": "middle" }));
    for (const [what, dx, dy, anchor] of name) figure.add(figure.words(what, x + dx * side, y + dy * side, { "font-size": 11, "text-anchor": anchor }));
    figure.reach(x + side, y + side + 16);
  });
}
