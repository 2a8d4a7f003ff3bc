// Exports the view on the screen: its figure as an SVG or PNG file, its numbers as a CSV file.

function download(name, blob) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// The figure as PNG, with two pixels for each unit of the figure. It has fewer pixels if the image would be larger than browsers allow.
async function pngOf({ svg, width, height }) {
  const image = make("img", { src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}` });
  await image.decode();
  const scale = Math.min(2, 8192 / Math.max(width, height));
  const canvas = make("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve); });
}

const csvOf = (rows) => rows.map((row) => `${row.map((cell) => (typeof cell === "number" ? String(cell) : `"${cell.replaceAll('"', '""')}"`)).join(",")}\r\n`).join("");

function csvOfMap({ text, map, shown }, what = say("row word looks at column word")) {
  const name = (tokens, index) => tokens.named(index), precise = text.decoder.encoding.number;
  const head = [what, ...shown.columns.map((column) => name(text.keys, column))];
  return csvOf([head, ...shown.rows.map((row) => [name(text.queries, row), ...shown.columns.map((column) => precise(map[row * text.keys.size + column]))])]);
}

// A CSV line for each pair of words. If the maps of A and B have different shapes, there is no difference, and the pairs of B follow those of A.
function csvOfCompare({ a, b, same, difference }) {
  const pairs = ({ text, map, shown }) => shown.rows.flatMap((row) => shown.columns.map((column) => [row * text.keys.size + column, text.queries.named(row), text.keys.named(column), text.decoder.encoding.number(map[row * text.keys.size + column])]));
  const head = [say("row word"), say("column word"), `A: ${a.title}`, `B: ${b.title}`, "A - B"];
  const round = (value) => Number((Math.abs(value) <= TINY ? 0 : value).toFixed(6));
  if (same) return csvOf([head, ...pairs(a).map(([at, row, column, weight]) => [row, column, weight, b.text.decoder.encoding.number(b.map[at]), round(difference[at])])]);
  return csvOf([head, ...pairs(a).map(([, row, column, weight]) => [row, column, weight, "", ""]), ...pairs(b).map(([, row, column, weight]) => [row, column, "", weight, ""])]);
}

// A CSV line for each head, with its measures. If the measures are over several texts, each has a mean and a standard deviation.
function csvOfMeasures(text, source) {
  const names = source.names?.() ?? measuresOf(text);
  const heads = [...Array(text.layers).keys()].flatMap((layer) => [...Array(text.heads).keys()].map((head) => [layer, head]));
  const title = (name) => (MEASURES[name].unit?.() ? say("{0} in {1}", MEASURES[name].name(), MEASURES[name].unit()) : MEASURES[name].name());
  return csvOf([[say("layer"), say("head"), ...names.flatMap((name) => (source === text ? [title(name)] : [title(name), say("standard deviation")]))], ...heads.map(([layer, head]) => {
    const measured = source.measures(layer, head);
    const number = (name, value) => (value === undefined ? "" : Number((MEASURES[name].number?.(value) ?? value).toPrecision(7)));
    return [layer, head, ...names.flatMap((name) => (source === text ? [number(name, measured[name])] : [number(name, measured[name]?.mean), number(name, measured[name]?.spread)]))];
  })]);
}

const fileName = (...parts) => parts.join(" ").normalize("NFKC").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80) || "attention";
