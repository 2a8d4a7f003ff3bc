// The page's state, its address (#layer=3&head=5…), controls and keys. What is shown is a function of `state`.

const data = JSON.parse($("data").textContent);
const decoder = new Decoder(data.encoding);
const texts = data.texts.map((json) => new Text(json, decoder));

const initial = { text: 0, layer: null, head: null, view: "matrix", special: "show", scale: "root", theme: "auto" };
const state = { ...initial };
let cursor = null;  // the pair chosen by keyboard or click; while the pointer is over another pair, that one is shown
let zoom = 0;
let current = null;  // drawn last: { text, map, shown, look }; look: { scale, ramp, hideSpecial }

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const events = { hover: (spot) => point(spot ?? cursor), choose: (spot) => choose(spot) };
const grid = new Grid($("grid"), (layer, head) => update({ layer, head }, "cells"));
const views = { matrix: new Matrix(events), lines: new Lines(events) };
const detail = new Detail(decoder);

// ---- State and address ----

function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const place = (name, count) => {
    const value = given.get(name);
    return value === MEAN ? MEAN : /^\d+$/.test(value ?? "") && Number(value) < count ? Number(value) : null;
  };
  const among = (name, allowed) => (allowed.includes(given.get(name)) ? given.get(name) : initial[name]);
  const text = place("text", texts.length);
  const read = { text: Number.isInteger(text) ? text : 0 };
  const { layers, heads } = texts[read.text] ?? { layers: 0, heads: 0 };
  Object.assign(read, { layer: place("layer", layers), head: place("head", heads) });
  if (read.layer === null || read.head === null) read.layer = read.head = null;
  if (read.layer === MEAN) read.head = MEAN;
  return Object.assign(read, {
    view: among("view", Object.keys(views)), special: among("special", ["show", "hide"]),
    scale: among("scale", Object.keys(SCALES)), theme: among("theme", ["auto", "light", "dark"]),
  });
}

function toAddress() {
  const entries = Object.entries(state).filter(([name, value]) => value !== initial[name]);
  return entries.length ? `#${new URLSearchParams(entries)}` : "#";
}

// The browser's Back undoes opening and closing a head; other changes replace the address.
function update(changes, focus) {
  const opened = "layer" in changes && (state.layer === null) !== (changes.layer === null);
  const before = { ...state };
  Object.assign(state, changes);
  history[opened ? "pushState" : "replaceState"](null, "", toAddress());
  show(before);
  if (focus === "cells") view().focus();
  if (focus === "grid") grid.focus(before.layer, before.head);
}

// ---- Showing ----

const isOpen = () => state.layer !== null;
const isDark = () => state.theme === "dark" || (state.theme === "auto" && prefersDark.matches);
const view = () => (state.view === "lines" ? views.lines.body : views.matrix.cells);

function show(before = {}) {
  const changed = (...names) => names.some((name) => state[name] !== before[name]);
  const text = texts[state.text];
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  const look = { scale: SCALES[state.scale], ramp: new Ramp(getComputedStyle(document.documentElement)), hideSpecial: state.special === "hide" };
  if (changed("text")) {
    cursor = null;
    zoom = 0;
    showText(text);
  }
  if (changed("text", "special", "scale", "theme")) {
    showLegend(look);
    grid.draw(look);
  }
  showControls();
  document.body.classList.toggle("open", isOpen());
  $("head").hidden = !isOpen();
  grid.select(state.layer, state.head);
  showHint();
  $("detail").hidden = !isOpen();
  if (isOpen()) showHead(text, look);
}

function showText(text) {
  $("sentence").textContent = text.text;
  $("sentence").hidden = text.text === data.title;
  $("heads-caption").textContent = `${text.layers} layers (rows), ${text.heads} heads (columns), numbered from 0.`;
  grid.build(text);
  const numbers = (count) => [...Array(count).keys()].map((index) => [index, index]);
  fillSelect($("layer"), [...numbers(text.layers), [MEAN, "mean"]]);
  fillSelect($("head-choice"), [...numbers(text.heads), [MEAN, "mean"]]);
}

function showLegend(look) {
  const steps = Float32Array.from({ length: 256 }, (_, i) => i / 255);
  paint($("legend"), steps, 256, [0], [...steps.keys()], { ...look, scale: { position: (weight) => weight } });
  $('legend-ticks').replaceChildren(...look.scale.ticks().map(([at, name]) => make('span', {textContent: name, style: {at}})));
  $("legend-caption").textContent = look.scale.caption;
}

function showControls() {
  $("text").value = state.text;
  $("hide-special").checked = state.special === "hide";
  $("scale").value = state.scale;
  $("theme").value = state.theme;
  if (isOpen()) {
    $("layer").value = state.layer;
    $("head-choice").value = state.head;
    $("head-choice").disabled = state.layer === MEAN;
  }
  for (const button of document.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", button.dataset.view === state.view);
  $("zoom").hidden = state.view !== "matrix";
  $("special-note").hidden = state.special !== "hide";
}

function showHint() {
  const keys = (...names) => names.map((name) => make("kbd", { textContent: name }));
  const arrows = keys("←", "↑", "→", "↓");
  const help = [" · ", ...keys("?"), " all keys"];
  $("hint").replaceChildren(...(isOpen()
    ? [...arrows, " move · ", ...keys("n", "p"), " next, previous head · ", ...keys("Esc"), " back", ...help]
    : [...arrows, " move · ", ...keys("Enter"), " open a head · ", ...keys("s"), " hide special tokens", ...help]));
}

function showHead(text, look) {
  const shown = { rows: text.queries.shown(look.hideSpecial), columns: text.keys.shown(look.hideSpecial) };
  const map = text.map(state.layer, state.head);
  current = { text, map, shown, look };
  const title = titleOf(state.layer, state.head);
  $("head-title").textContent = title;
  if (shown.rows.length === 0 || shown.columns.length === 0) {
    $("stage").replaceChildren(make("p", { className: "note", textContent: "All words are hidden." }));
    cursor = null;
    detail.show(text, map, shown, null);
    return;
  }
  if (cursor && !(visible(cursor.row, shown.rows) && visible(cursor.column, shown.columns))) cursor = null;
  const chosen = views[state.view];
  if ($("stage").firstChild !== chosen.element) $("stage").replaceChildren(chosen.element);
  chosen.draw(text, map, shown, look, title);
  chosen.resize($("stage").clientWidth, zoom);
  point(cursor);
}

const visible = (index, indices) => index === null || indices.includes(index);

function point(spot) {
  if (!isOpen() || !current || $("stage").firstChild !== views[state.view].element) return;
  views[state.view].light(spot);
  detail.show(current.text, current.map, current.shown, spot);
}

function choose(spot) {
  cursor = spot;
  point(spot);
  $("status").textContent = detail.sentence(current.text, current.map, spot);
}

// ---- Keys ----

function moveCursor(key) {
  const { rows, columns } = current.shown;
  if (rows.length === 0 || columns.length === 0) return;
  const at = [rows.indexOf(cursor?.row ?? rows[0]), columns.indexOf(cursor?.column ?? columns[0])];
  const whole = cursor && cursor.row !== null && cursor.column !== null;
  const [down, right] = whole ? { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key] ?? [0, 0] : [0, 0];
  const clamp = (index, count) => Math.min(count - 1, Math.max(0, index));
  const column = key === "Home" ? 0 : key === "End" ? columns.length - 1 : clamp(at[1] + right, columns.length);
  choose({ row: rows[clamp(at[0] + down, rows.length)], column: columns[column] });
  views[state.view].reveal(cursor);
}

function nextHead(step) {
  const { layers, heads } = texts[state.text];
  if (state.layer === MEAN) return;
  const head = state.head === MEAN ? (step > 0 ? 0 : heads - 1) : state.head + step;
  const layer = state.layer + (head < 0 ? -1 : head >= heads ? 1 : 0);
  if (layer >= 0 && layer < layers) update({ layer, head: (head + heads) % heads });
}

function nextLayer(step) {
  const layer = state.layer === MEAN ? texts[state.text].layers - 1 : state.layer + step;
  if (layer >= 0 && layer < texts[state.text].layers) update({ layer });
}

function toggleMean() {
  if (state.layer === MEAN) return;
  const mean = state.head === MEAN;
  if (!mean) toggleMean.head = state.head;
  update({ head: mean ? toggleMean.head ?? 0 : MEAN });
}

function setZoom(step) {
  if (state.view !== "matrix") return;
  const before = views.matrix.size;
  const after = views.matrix.resize($("stage").clientWidth, zoom + step);
  if (after !== before) zoom += step;
}

// Shows another text. An open head stays open if the text has it; else all heads are shown.
function showOther(text) {
  const fits = (place, count) => place === MEAN || place < count;
  const hasHead = fits(state.layer, texts[text].layers) && fits(state.head, texts[text].heads);
  update(!isOpen() || hasHead ? { text } : { text, layer: null, head: null });
}

const close = () => update({ layer: null, head: null }, "grid");

const always = {
  s: () => update({ special: state.special === "hide" ? "show" : "hide" }),
  t: () => update({ theme: isDark() ? "light" : "dark" }),
  "?": () => $("help").showModal(),
};
const withHead = {
  Escape: close,
  n: () => nextHead(1), p: () => nextHead(-1), m: toggleMean,
  PageDown: () => nextLayer(1), PageUp: () => nextLayer(-1),
  v: () => update({ view: state.view === "lines" ? "matrix" : "lines" }, "cells"),
  "+": () => setZoom(1), "=": () => setZoom(1), "-": () => setZoom(-1),
};
for (const key of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"]) withHead[key] = () => moveCursor(key);

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.matches("select") && event.key !== "Escape") return;
  const action = always[event.key] ?? (isOpen() ? withHead[event.key] : undefined);
  if (!action) return;
  event.preventDefault();
  action();
});

// ---- Controls ----

$("text").addEventListener("change", () => showOther(Number($("text").value)));
$("hide-special").addEventListener("change", always.s);
for (const name of ['scale', 'theme']) $(name).addEventListener('change', () => update({[name]: $(name).value}));
$('layer').addEventListener('change', () => {
  const layer = placeOf($('layer').value);
  update({ layer, head: layer === MEAN ? MEAN : state.head });
});
$('head-choice').addEventListener('change', () => update({head: placeOf($('head-choice').value)}));
$("back").addEventListener("click", close);
$("help-button").addEventListener("click", always["?"]);
for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => update({ view: button.dataset.view }));
for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => setZoom(Number(button.dataset.zoom)));
new ResizeObserver(() => {
  if (isOpen() && current && $("stage").firstChild === views[state.view].element) views[state.view].resize($("stage").clientWidth, zoom);
}).observe($("head"));
prefersDark.addEventListener("change", () => show({ ...state, theme: null }));
addEventListener("popstate", () => {
  const before = { ...state };
  Object.assign(state, fromAddress());
  show(before);
});

// ---- Start ----

$("model").textContent = data.model;
$("precision").textContent = decoder.encoding.precision;
$("text-control").hidden = texts.length < 2;
fillSelect($("text"), texts.map(({ text }, index) => [index, `${index}: ${text.length > 40 ? `${text.slice(0, 40)}…` : text || "(no words)"}`]));
fillSelect($("scale"), Object.entries(SCALES).map(([name, scale]) => [name, scale.name]));
Object.assign(state, fromAddress());
if (texts.length > 0) show();
