// Holds the state of the page, and handles its controls and keyboard shortcuts. The object `state` decides what is shown.

const data = JSON.parse($("data").textContent);
const decoder = new Decoder(data.encoding);
const texts = data.texts.map((json) => new Text(json, decoder));
const mergedTexts = texts.map((text) => new MergedText(text));

if (data.live) Object.assign(initial, { task: data.live.task, say: data.live.say });
// a page with results of switched-off heads opens with these results: it was made to show them
if (texts.some((text) => text.without.size > 0)) initial.measure = "without";
const overTexts = data.measured && new OverTexts(data.measured);
// A page that was made with texts to measure opens with their measures. But results of switched-off heads come first, and these exist only for the page's own
// texts.
if (overTexts && initial.measure !== "without") initial.over = "file";
const state = { ...initial };
let printing = matchMedia("print").matches;
let zoom = 0;
let current = {};  // what was drawn last: { look: { scale, ramp } }, and if a head is open also { text, map, shown }

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
// The pair of words that the reader chose by keyboard or click: { row, column }, where row or column may be null; null if nothing is chosen.
const pinned = () => (state.row === null && state.column === null ? null : { row: state.row, column: state.column });
const pin = (spot) => Object.assign(state, { row: spot?.row ?? null, column: spot?.column ?? null });
const events = { hover: (spot) => point(spot ?? pinned()), choose: (spot) => choose(spot), chosen: () => pinned(), open: (layer, head) => update({ layer, head }), set: (changes) => update(changes) };
const grid = new Grid($("grid"), (layer, head) => update({ layer, head }, "cells"));
const preview = new Preview($("preview"), grid);
const distances = new Distances($("distances"), (a, b) => update({ ...a, view: "compare", with: nameOfOther(b) }, "cells"), (alike) => update({ order: alike ? "alike" : "layer" }));
const scatter = new Scatter($("scatter"), (layer, head) => update({ layer, head }, "cells"), (axes) => update(axes));
const partner = new Partner({ changed: setOther, swap, opened: (file) => openPage(file, addTexts, (message) => partner.complain(message)) });
const views = { matrix: new Matrix(events), lines: new Lines(events), read: new Read(events), compare: new Compare(events, partner) };
const imageView = new Read(events, Patches);
const detail = new Detail();
const worked = new Worked((feature) => update({ feature }));
const walk = new Walk((step) => {
  state.walk = step;
  writeAddress(addressOf(state), false);
  showWalk();
});
const minimap = new Minimap($("minimap"), $("stage"));
const link = new Link({ grid, pin: (spot) => choose(spot), open: (layer, head) => update({ layer, head }, "cells"), rank: (rank) => update({ rank }) });

const live = data.live && new Live({ typed, answered });  // live.js defines this class

// ---- State ----

// Changes the state. Opening and closing a head adds an entry to the history of the browser; other changes only replace the address.
function update(changes, focus) {
  const opened = "layer" in changes && (state.layer === null) !== (changes.layer === null);
  const before = { ...state };
  Object.assign(state, changes);
  Object.assign(state, settleWeighting(state, changes));
  // the indices of the pinned pair would now mean other words
  if (state.pieces !== before.pieces || (state.text !== before.text && !sameWords(wordsAt(state.text), wordsAt(before.text)))) pin(null);
  writeAddress(addressOf(state), opened);
  $("address-note").hidden = true;
  show(before);
  if (focus === "cells") view().body.focus();
  if (focus === "grid") ({ maps: grid, distances, scatter })[state.heads].focus(before.layer, before.head);
}

// ---- Showing ----

const wordsAt = (index) => (state.pieces === "merged" && mergedTexts[index].merges ? mergedTexts : texts)[index];
const textAt = (index) => (state.special === "share" ? sharedOut(wordsAt(index)) : weighted(wordsAt(index)));
// The text with norm-weighted maps, if the reader has chosen these. Attention weights are shown instead if the text has no norms, or until its largest number
// is computed.
const weighted = (text) => (state.weighting === "norm" && normsOf(text) && normWeighted(text, () => show({ ...state, weighting: null }))) || text;
const textShown = () => textAt(state.text);
function placesOf(text) {
  const block = blockOf(text, state.block), hidden = ["hide", "share"].includes(state.special);
  return { rows: text.queries.shown(hidden, block.row), columns: text.keys.shown(hidden, block.column) };
}
const isOpen = () => state.layer !== null;
// The language of the page: the choice of the reader, else the language given when the page was made, else that of the browser.
const language = () => (state.lang !== "auto" ? state.lang : data.language ?? readersLanguage());
const isDark = () => !printing && (state.theme === "dark" || (state.theme === "auto" && prefersDark.matches));
// The name of the view in which an open head is shown. Without a choice of the reader, long texts are shown as text, because the cells of a map would be too
// small, and images as images.
const viewName = () => (texts[state.text].pooled ? "matrix" : state.view !== "auto" ? state.view : !texts[state.text].image && Math.max(texts[state.text].queries.size, texts[state.text].keys.size) < Read.long ? "matrix" : "read");
const view = () => (viewName() === "read" && texts[state.text].image ? imageView : views[viewName()]);
const hasCells = () => ["matrix", "compare"].includes(viewName());
const hasLinks = () => ["matrix", "lines"].includes(viewName()) && !texts[state.text].pooled;

function show(before = {}) {
  if (texts.length === 0) return;  // a live page has no text before its first answer
  const changed = (...names) => names.some((name) => state[name] !== before[name]);
  const text = textShown();
  if (state.row >= text.queries.size || state.column >= text.keys.size) pin(null);
  if (text.pooled) Object.assign(state, { heads: state.heads === "scatter" && overTexts?.fits(text) ? "scatter" : "maps", view: "auto" });
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  const look = { scale: scaleOf(state.scale, text), ...rampsOf(getComputedStyle(document.documentElement)), placesOf, fadeSpecial: state.special === "fade" };
  if (changed("lang")) showLanguage();
  if (changed("text", "pieces")) {
    zoom = 0;
    link.build(text);
  }
  if (changed("text", "pieces", "lang", "weighting") || (changed("special") && [state.special, before.special].includes("share"))) showText(text);
  const source = sourceOfMeasures(text), names = source.names?.() ?? measuresOf(text);
  const measured = names.includes(state.measure) ? state.measure : "none";
  grid.arrange({ measure: source.ready === false ? "none" : measured, over: source === text ? "text" : [source instanceof OverTexts ? "file" : "all", source.texts.length, source.ready].join(" "), sort: state.sort === "on", least: Number(state.least) / 100 }, source);
  showMeasures(measured, source, names);
  if (changed("text", "pieces", "special", "weighting", "block", "scale", "theme", "lang")) {
    showLegend(look);
    preview.begin(text, look, [state.text, text.layers, text.heads].join(" "));
    grid.draw(look).then((place) => place && preview.show(place));
  }
  showControls(text);
  document.title = isOpen() ? `${titleOf(state.layer, state.head)} – ${data.title}` : data.title;
  document.body.classList.toggle("open", isOpen());
  document.body.classList.toggle("reading", isOpen() && view() === views.read);
  $("head").hidden = !isOpen();
  grid.select(state.layer, state.head);
  showHint();
  $("detail").hidden = !isOpen();
  current = { ...current, look };
  $("worked").hidden = true;
  if (isOpen()) showHead(text, look);
  showDistances(text, look);
  showPinned();
  if (isOpen() && changed("text", "pieces", "layer", "head", "special", "weighting", "block", "view", "with", "lang")) announce();
}

function showLanguage() {
  speak(language());
  $("lang").value = language();
  live?.tell();
  $("precision").textContent = decoder.encoding.precision();
  fillTexts();
  fillSelect($("special"), Object.entries(SPECIAL).map(([name, { name: said }]) => [name, said()]));
  fillSelect($("weighting"), Object.entries(WEIGHTINGS).map(([name, said]) => [name, said()]));
  fillSelect($("scale"), Object.entries(SCALES).map(([name, scale]) => [name, scale.name()]));
}

function showText(text) {
  $("sentence").textContent = text.pooled && text.text.length > 280 ? `${text.text.slice(0, 279)}…` : text.text;
  $("sentence").hidden = text.text === data.title || text.text === "";
  document.body.classList.toggle("wide", Boolean(text.pooled || text.queries.long || text.keys.long));
  $("pooled-note").hidden = $("about-blocks").hidden = !text.pooled;
  $("about-cells").hidden = $("about-measures").hidden = $("about-text").hidden = $("views").hidden = Boolean(text.pooled);
  $("heads-as").hidden = Boolean(text.pooled) && !overTexts?.fits(texts[state.text]);
  // Distances between heads are computed from the attention weights of single tokens.
  document.querySelector('[data-heads="distances"]').hidden = Boolean(text.pooled || text.unit);
  $("pooled-note").textContent = text.pooled ? blocksNote(text) : "";
  $("about-blocks").textContent = text.pooled ? aboutBlocks(text) : "";
  const unknown = [...new Set([text.queries, text.keys])].map((tokens) => [tokens.unknown.size, tokens.size]).filter(([count]) => count > 0);
  $("unknown-note").hidden = unknown.length === 0;
  $("unknown-note").textContent = unknown.map(([count, size]) => say("{0} of {1} {1|token|tokens} {0|is|are} unknown to this model. Such words are underlined; the model cannot tell them apart.", count, size)).join(" ");
  $("heads-caption").textContent = say("{0} {0|layer|layers} (rows), {1} {1|head|heads} (columns), numbered from 0.", text.layers, text.heads);
  grid.build(text);
  const blocks = blocksOf(text);
  $("block-control").hidden = blocks.length === 0;
  fillSelect($("block"), [["all", say("whole map")], ...blocks.map((block) => [block, blockName(block)])]);
  $("without-note").hidden = text.without.size === 0 || Boolean(data.without_measure);
}

function showMeasures(name, source, names) {
  fillSelect($("measure"), [["none", say("none")], ...names.map((one) => [one, MEASURES[one].name()])]);
  $("measure").value = name;
  $("sort").checked = state.sort === "on";
  $("least").value = state.least;
  $("sort-control").hidden = $("least-control").hidden = name === "none";
  const count = Spread.with(texts[state.text], texts).length;
  const further = overTexts?.fits(texts[state.text]);
  $("over-control").hidden = count < 2 && !further;
  fillSelect($("over"), [["text", say("this text")], ...(count > 1 ? [["all", say("{0} texts: mean ± standard deviation", count)]] : []), ...(further ? [["file", overTexts.fixed(state) ? say("{0} measured {0|text|texts}, not merged or shared out: mean ± standard deviation", overTexts.texts.length) : say("{0} measured {0|text|texts}: mean ± standard deviation", overTexts.texts.length)]] : [])]);
  $("over").value = source instanceof Spread ? "all" : source instanceof OverTexts ? "file" : "text";
  if (source.ready !== false && name !== "none") $("least-value").textContent = say("{0}: {1} {1|head|heads}", withUnit(name, grid.threshold), grid.count);
}

// The Spread objects, which measure heads over several texts. The keys of this Map are made of the texts and the settings.
const spreads = new Map();

function sourceOfMeasures(text) {
  if (state.over === "file" && overTexts?.fits(texts[state.text])) return overTexts;
  const together = Spread.with(texts[state.text], texts);
  if (state.over !== "all" || together.length < 2) return text;
  const name = `${state.pieces} ${state.special === "share"} ${texts.indexOf(together[0])}`;
  if (!spreads.has(name)) {
    const spread = new Spread(together.map((one) => textAt(texts.indexOf(one))));
    spreads.set(name, spread);
    spread.prepare((at) => { $("least-value").textContent = say("Measuring: text {0} of {1}", at + 1, together.length); }, () => show({ ...state }), () => false);
  }
  return spreads.get(name);
}

// A sentence that says which texts the shown measures are of.
function overWhat(text, source) {
  if (source === text) return say("Each point is a head; its measures are those of this text.");
  if (source.ready === false) return say("Measuring …");
  const told = say("Each point is a head; its measures are means over {0} {0|text|texts}{1}. The lines at the chosen head are ± one standard deviation over the texts.", source.texts.length, source.tokens ? say(" of {0} to {1} tokens", ...source.tokens) : "");
  return source.fixed?.(state) ? `${told} ${say("They were measured when the page was made, for pieces and including special tokens.")}` : told;
}

// The scatter of all heads or the distances between them can replace the maps of all heads. Shows the one that the reader has chosen, and hides the others.
function showDistances(text, look) {
  const asMaps = state.heads === "maps", source = sourceOfMeasures(text), names = source.names?.() ?? measuresOf(text);
  if (state.heads === "scatter") scatter.show({ text, source, names, over: overWhat(text, source), look, x: state.x, y: state.y, open: isOpen() ? state : null });
  else scatter.hide();
  $("grid").parentElement.hidden = !asMaps;
  $("preview").hidden = !asMaps || isOpen();
  $("weighting-note").hidden = $("scale-note").hidden = !asMaps && !isOpen();
  $("measure-control").hidden = !asMaps || names.length === 0;
  $("heads-caption").hidden = !asMaps;
  $("scales").hidden = !asMaps && !isOpen();
  for (const button of document.querySelectorAll("[data-heads]")) button.setAttribute("aria-pressed", button.dataset.heads === state.heads);
  if (!asMaps) $("sort-control").hidden = $("least-control").hidden = true;
  if (state.heads === "distances") $("over-control").hidden = true;
  else return distances.hide();
  distances.show(text, look, state.order === "alike", isOpen() && state.view === "compare" && current.other?.text === state.text ? [state, current.other] : null);
}

function showLegend(look) {
  paintBar($("legend"), $("legend-ticks"), look, look.scale.ticks());
  $("scale-note").textContent = look.scale.note?.() ?? "";
  $("legend-caption").textContent = captionOf(textShown());
  $("gold-legend").hidden = !textShown().links;
  $("blocked-legend").hidden = textShown().blocked.size === 0;
}

function showControls(text) {
  $("text").value = snapshotsOf(texts, state.text)[0] ?? tabsOf(texts, state.text)[0];
  showSnapshots(texts, state.text);
  showTabs($("tabs"), texts, state.text, showOther);
  $("block").value = blocksOf(text).includes(state.block) ? state.block : "all";
  $("block-note").hidden = $("block").value === "all";
  $("special").value = state.special;
  showWeighting(texts, wordsAt(state.text), state);
  document.querySelector('[data-view="compare"]').hidden = Boolean(text.unit);
  $("scale").value = state.scale;
  $("theme").value = state.theme;
  $("letters").checked = state.letters === "on";
  const special = hasSpecial(text);
  $("special-control").hidden = !special;
  $("pieces-control").hidden = !mergedTexts[state.text].merges;
  $("merge").checked = state.pieces === "merged";
  $("merge-note").hidden = wordsAt(state.text) !== mergedTexts[state.text];
  $("cover").value = state.cover;
  for (const button of document.querySelectorAll("[data-step]")) button.disabled = !otherHead(Number(button.dataset.step));
  for (const button of document.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", button.dataset.view === viewName());
  document.querySelector('[data-view="read"]').textContent = text.image ? say("Image") : say("Text");
  $("zoom").hidden = !hasCells();
  $("cover-control").hidden = !hasLinks();
  $("special-note").hidden = !SPECIAL[state.special].note || !special;
  $("special-note").textContent = SPECIAL[state.special].note?.(text) ?? "";
}

function showHint() {
  const hint = (text, ...names) => [...names.map((name) => make("kbd", { textContent: name })), ` ${text}`];
  const letter = (...hinted) => (state.letters === "on" ? [hint(...hinted)] : []);
  const hints = [hint(say("move"), "←", "↑", "→", "↓"),
                 ...(isOpen() ? [...letter(say("next, previous head"), "n", "p"), hint(say("back"), "Esc")]
                              : [hint(say("open a head"), "Enter"), ...letter(say("hide special tokens"), "s")]),
                 ...letter(say("all keys"), "?")];
  $("hint").replaceChildren(...hints.flatMap((one, at) => (at > 0 ? [" · ", ...one] : one)));
}

function showHead(text, look) {
  const shown = placesOf(text);
  const map = text.map(state.layer, state.head);
  look.part = hasLinks() ? Number(state.cover) / 100 : 1;
  const { map: drawn, links } = look.part < 1 ? strongest(map, text.keys.size, shown, look.part) : { map };
  $("cover-value").textContent = look.part < 1 ? say("{0} % of each row: {1} of {2} links", state.cover, links, shown.rows.length * shown.columns.length) : say("{0} % of each row", state.cover);
  current = { text, map, drawn, shown, look };
  const title = titleOf(state.layer, state.head);
  $("head-title").textContent = title;
  const source = sourceOfMeasures(text);
  const known = state.layer === ROLLOUT ? {} : (source.ready === false || (source === overTexts && isWhole(state.head)) ? text : source).measures(state.layer, state.head);
  const measured = Object.entries(known);
  $("rollout-note").hidden = state.layer !== ROLLOUT;
  $("gate-note").hidden = !text.gate(state.layer, state.head);
  $("links-note").hidden = !text.links;
  if (text.links) $("links-note").textContent = alignmentNote(text, (text.plain ?? text).map(state.layer, state.head));
  $("badges").replaceChildren(...namesOf(known).map(nameBadge), ...measured.map(([name, value]) => make("li", { className: name === state.measure ? "lit" : "" }, `${MEASURES[name].name()} `, make("b", { textContent: withUnit(name, value) }))));
  if (shown.rows.length === 0 || shown.columns.length === 0) {
    $("stage").replaceChildren(make("p", { className: "note", textContent: say("All words are hidden.") }));
    minimap.show(null);
    pin(null);
    detail.show(text, map, shown, null);
    return;
  }
  if (!(visible(state.row, shown.rows) && visible(state.column, shown.columns))) pin(null);
  const chosen = view();
  if (viewName() === "compare") showOtherHead(text, look);
  if ($("stage").firstChild !== chosen.element) $("stage").replaceChildren(chosen.element);
  chosen.draw(text, drawn, shown, look, title, state);
  fit();
  point(pinned());
}

// Shows head B of a comparison: the head that the address names, or else the head that is most similar to A.
function showOtherHead(text, look) {
  const near = alike(text, state.layer, state.head);
  const other = otherHeadOf(state.with, texts, state.text) ?? { text: state.text, ...(near[0] ?? { layer: state.layer, head: state.head }) };
  const of = textAt(other.text);
  const names = other.text === state.text ? null : [state.text, other.text].map((index) => nameOfText(texts[index], index));
  views.compare.choose({ text: of, map: of.map(other.layer, other.head), shown: placesOf(of), title: titleOf(other.layer, other.head) }, names);
  partner.show(texts.map((one, index) => (one.pooled ? null : nameOfText(one, index))), other, of, near);
  current.other = other;
}

function setOther(name) {
  const text = name.split(".")[2];
  update({ with: otherHeadOf(name, texts, state.text) ? name : text === undefined ? null : `0.0.${text}` });
}

function swap() {
  const { text, layer, head } = current.other;
  update({ text, layer, head, with: nameOfOther({ ...state, named: text !== state.text }) });
}

function addTexts(opened, name) {
  const first = texts.length, page = {};
  for (const text of opened) {
    Object.assign(text, { file: name, page });
    // The texts of each page have group numbers. Adding an offset makes them different from those of the texts that are here already.
    text.group += first;
    texts.push(text);
    mergedTexts.push(new MergedText(text));
  }
  partner.complain(opened.length ? "" : say("“{0}” holds no text.", name));
  fillTexts();
  if (opened.length) update({ ...(isOpen() ? {} : { layer: 0, head: 0 }), view: "compare", with: otherHeadOf(`${state.layer ?? 0}.${state.head ?? 0}.${first}`, texts, state.text) ? `${state.layer ?? 0}.${state.head ?? 0}.${first}` : `0.0.${first}` });
}

function fit(step = zoom) {
  const resize = () => view().resize({ width: $("stage").clientWidth, height: stageHeight() }, step), width = $("stage").clientWidth;
  let size = resize();
  if ($("stage").clientWidth < width) size = resize();  // the map was so high that a scroll bar appeared, which left less width
  minimap.show(view() === views.matrix ? views.matrix : null);
  return size;
}

const visible = (index, indices) => index === null || indices.includes(index);

// Shows the row or pair under the pointer. If a pair is pinned, headline and lists still describe the pinned pair, and a separate line describes what is under
// the pointer.
function point(spot) {
  if (!isOpen() || !current.map || $("stage").firstChild !== view().element) return;
  const kept = pinned(), goesOn = !kept || ["row", "column"].every((side) => kept[side] === null || kept[side] === spot[side]);
  const told = goesOn ? spot : kept;
  view().light(spot, kept);
  detail.show(current.text, current.map, current.shown, told, view().reading);
  if (!goesOn) $("where").textContent = say("Under the pointer: {0}", detail.sentence(current.text, current.map, spot));
  else if (productOf(current.text, state, told)) $("where").textContent = productOf(current.text, state, told);
  $("gate-note").textContent = GateStrip.note(current.text, state, told?.row ?? null, (weight) => (current.text.plain ?? current.text).decoder.show(weight));
}

function choose(spot) {
  pin(spot);
  writeAddress(addressOf(state), false);
  point(pinned());
  showPinned();
  if (isOpen()) $("status").textContent = detail.sentence(current.text, current.map, pinned());
}

// Updates everything on the page that depends on the pinned pair, except the view of the head.
function showPinned() {
  const text = textShown();
  document.body.classList.toggle("pinned", pinned() !== null);
  link.show(text.plain ?? text, pinned(), state.rank, current.look);
  const model = wordsAt(state.text);  // use the text without changes: q and k give the weights before attention to special tokens is shared out
  if (isOpen() && current.map && !text.pooled) worked.show({ text: model, layer: state.layer, head: state.head, map: model.map(state.layer, state.head), spot: pinned(), feature: Number(state.feature), style: getComputedStyle(document.documentElement) });
  showWalk();
}

function showWalk() {
  const text = wordsAt(state.text);
  $("walk").hidden = !isOpen() || !current.map || Boolean(text.pooled);
  walk.show({ text, layer: state.layer, head: state.head, spot: pinned(), step: $("walk").hidden ? "" : state.walk, style: getComputedStyle(document.documentElement) });
}

// Tells screen readers which head is shown and, if a pair is chosen, the pair's weight.
function announce() {
  const title = titleOf(state.layer, state.head);
  const pair = pinned() ? detail.sentence(current.text, current.map, pinned()) : "";
  $("status").textContent = pair ? say("{0}: {1}", title, pair) : title;
}

// ---- Keys ----

function moveCursor(key) {
  const { rows, columns } = current.shown;
  if (rows.length === 0 || columns.length === 0) return;
  if (view().moved) {
    choose(view().moved(key));
    return view().reveal(pinned());
  }
  const at = [rows.indexOf(state.row ?? rows[0]), columns.indexOf(state.column ?? columns[0])];
  const whole = state.row !== null && state.column !== null;
  const [down, right] = whole ? { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key] ?? [0, 0] : [0, 0];
  const clamp = (index, count) => Math.min(count - 1, Math.max(0, index));
  const column = key === "Home" ? 0 : key === "End" ? columns.length - 1 : clamp(at[1] + right, columns.length);
  choose({ row: rows[clamp(at[0] + down, rows.length)], column: columns[column] });
  view().reveal(pinned());
}

// The previous (step -1) or next (step 1) head in reading order: left to right, and then down. Null if there is none.
function otherHead(step) {
  const { layers, heads } = texts[state.text];
  if (!isOpen() || isWhole(state.layer)) return null;
  const head = state.head === MEAN ? (step > 0 ? 0 : heads - 1) : state.head + step;
  const layer = state.layer + (head < 0 ? -1 : head >= heads ? 1 : 0);
  return layer >= 0 && layer < layers ? { layer, head: (head + heads) % heads } : null;
}

function nextHead(step) {
  const other = otherHead(step);
  if (other) update(other);
}

function nextLayer(step) {
  if (isWhole(state.layer)) return;
  const layer = state.layer + step;
  if (layer >= 0 && layer < texts[state.text].layers) update({ layer });
}

function toggleMean() {
  if (isWhole(state.layer)) return;
  const mean = state.head === MEAN;
  if (!mean) toggleMean.head = state.head;
  update({ head: mean ? toggleMean.head ?? 0 : MEAN });
}

// Makes cells larger (step 1) or smaller (step -1). With step 0 they get the size with which the map fits again.
function setZoom(step) {
  if (!hasCells()) return;
  const shown = view();
  const before = shown.size;
  const after = fit(step === 0 ? 0 : zoom + step);
  if (step === 0 || after !== before) zoom = step === 0 ? 0 : zoom + step;
  shown.light(pinned(), pinned());
}

function nameOfText({ text, file }, index, tab = tabName(texts[index])) {
  return `${index}: ${text.length > 40 ? `${text.slice(0, 40)}…` : text || say("(no words)")}${texts[index].step === null || !tab ? "" : ` · ${say("step {0}", texts[index].step)}`}${tab && ` · ${tab}`}${file ? ` (${file})` : ""}`;
}

function fillTexts() {
  const firsts = firstsOf(texts).filter((index) => [undefined, index].includes(snapshotsOf(texts, index)[0]));
  $("text-control").hidden = firsts.length < 2;
  fillSelect($("text"), firsts.map((index, place) => [index, nameOfText(texts[index], place, "")]));
}

// Shows another text. If this text has the open head, the head stays open; else all heads are shown.
function showOther(text) {
  const fits = (place, count) => place === MEAN || (place === ROLLOUT ? hasRollout(texts[text]) : place < count);
  const hasHead = fits(state.layer, texts[text].layers) && fits(state.head, texts[text].heads);
  update(!isOpen() || hasHead ? { text } : { text, layer: null, head: null });
}

const close = () => update({ layer: null, head: null }, "grid");

const inGrid = {}, inHead = { Escape: close };
for (const key of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]) inGrid[key] = () => (state.heads === "maps" ? grid.enter() : state.heads === "scatter" ? scatter.focus() : distances.focus());
for (const key of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End"]) inHead[key] = () => moveCursor(key);

// Shortcuts of single characters, which a reader can switch off (WCAG 2.2, 2.1.4).
const letters = {
  s: () => update({ special: state.special === "hide" ? "show" : "hide" }),
  t: () => update({ theme: isDark() ? "light" : "dark" }),
  "?": () => openDialog("help"),
};
const lettersInHead = {
  n: () => nextHead(1), p: () => nextHead(-1), N: () => nextLayer(1), P: () => nextLayer(-1), m: toggleMean,
  v: () => {
    const names = Object.keys(views).filter((name) => name !== "compare" || !textShown().unit);
    update({ view: names[(names.indexOf(viewName()) + 1) % names.length] }, "cells");
  },
  "+": () => setZoom(1), "=": () => setZoom(1), "-": () => setZoom(-1), "0": () => setZoom(0),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && closeMenu()) return;
  if (event.target.matches("select, input[type=range], input[type=number], input[type=text]") && event.key !== "Escape") return;
  const named = isOpen() ? inHead : inGrid;
  const lettered = state.letters === "on" ? { ...letters, ...(isOpen() ? lettersInHead : {}) } : {};
  const action = named[event.key] ?? lettered[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

// ---- Controls ----

$("text").addEventListener("change", () => showOther(sameTab(texts, state.text, Number($("text").value))));
$("step").addEventListener("input", () => showOther(sameTab(texts, state.text, snapshotsOf(texts, state.text)[Number($("step").value)])));
$("sort").addEventListener("change", () => update({ sort: $("sort").checked ? "on" : "off" }));
$("least").addEventListener("input", () => update({ least: $("least").value }));
$("merge").addEventListener("change", () => update({ pieces: $("merge").checked ? "merged" : "apart" }));
$("cover").addEventListener("input", () => update({ cover: $("cover").value }));
$("letters").addEventListener("change", () => update({ letters: $("letters").checked ? "on" : "off" }));
for (const name of ['over', 'special', 'weighting', 'scale', 'theme', 'lang', 'measure', 'block']) $(name).addEventListener('change', () => update({[name]: $(name).value}));
$("back").addEventListener("click", close);
for (const button of document.querySelectorAll("[data-dialog]")) button.addEventListener("click", () => openDialog(button.dataset.dialog));
for (const button of document.querySelectorAll("[data-step]")) button.addEventListener("click", () => nextHead(Number(button.dataset.step)));
for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => update({ view: button.dataset.view }));
for (const button of document.querySelectorAll("[data-heads]")) button.addEventListener("click", () => update({ heads: button.dataset.heads }));
for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => setZoom(Number(button.dataset.zoom)));
// Fit the map again only if the width or the window changes, and not if the headline's height changes by a fraction of a pixel: fitting shrinks the map for a moment,
// which scrolls the page and moves the cell away from the pointer.
let fitted = "";
new ResizeObserver(() => {
  const room = `${$("stage").clientWidth} ${stageHeight()}`;
  if (room === fitted || !isOpen() || !current.map || $("stage").firstChild !== view().element) return;
  fitted = room;
  fit();
}).observe($("head"));
prefersDark.addEventListener("change", () => show({ ...state, theme: null }));
addEventListener("popstate", () => {
  const before = { ...state };
  Object.assign(state, stateOf(location.hash, texts));
  if (live && (state.task !== before.task || state.say !== before.say)) return void live.ask(state.task, state.say);
  show(before);
  tellUnknown();
});
function tellUnknown() {
  const unknown = live ? [] : unknownParts(location.hash, state);  // before its first answer, a live page has no layers and knows no layer of the address
  $("address-note").hidden = unknown.length === 0;
  $("address-note").textContent = say("Not on this page: {0}.", unknown.join(", "));
}
// Switches to the light colours while the page is printed, because paper is white.
function print(now) {
  if (now === printing) return;
  printing = now;
  show({ ...state, theme: null });
}
matchMedia("print").addEventListener("change", (event) => print(event.matches));
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));

// ---- Export ----

const withNote = (name) => (state.special === "share" && hasSpecial(textShown()) ? `${name} · ${say("special tokens shared out")}` : textShown().unit ? `${name} · ${WEIGHTINGS.norm()}` : name);
const nameOfScreen = () => withNote(nameOfMap());
const nameOfMap = () => (isOpen() ? titleOf(state.layer, state.head) : state.heads === "maps" ? say("All heads") : state.heads === "scatter" ? say("Scatter of all heads") : say("Distances between heads"));

function figureOfScreen() {
  const text = textShown();
  const title = nameOfScreen();
  const figure = new Figure(current.look, title, [data.model, text.text || data.title, tabName(text)].filter(Boolean).join(" · "));
  if (!isOpen() && state.heads === "distances") distancesFigure(figure, distances);
  else if (!isOpen() && state.heads === "scatter") scatterFigure(figure, scatter);
  else if (!isOpen()) gridFigure(figure, grid);
  else if (viewName() === "read") readFigure(figure, view());
  else if (viewName() === "compare") compareFigure(figure, current, views.compare);
  else if (viewName() === "lines") linesFigure(figure, current, views.lines);
  else matrixFigure(figure, current);
  return figure.text();
}

const exports_ = {
  svg: () => new Blob([figureOfScreen().svg], { type: "image/svg+xml" }),
  png: () => pngOf(figureOfScreen()),
  csv: () => new Blob(["\ufeff", isOpen() ? (state.view === "compare" ? csvOfCompare(views.compare) : csvOfMap(current, current.text.pooled ? captionOf(current.text) : withNote(state.layer === ROLLOUT ? say("rollout") : say("row word looks at column word")))) : state.heads === "distances" ? csvOfMap({ text: distances.as, map: distances.map, shown: distances.shown }, say("distance in bits")) : csvOfMeasures(textShown(), sourceOfMeasures(textShown()))], { type: "text/csv" }),
};

async function exportAs(kind) {
  closeMenu();
  if (kind === "print") return window.print();
  const name = fileName(data.title, nameOfScreen());
  return download(`${name}.${kind}`, await exports_[kind]());
}

$("worked-export").addEventListener("click", () => {
  const title = `${titleOf(state.layer, state.head)}: ${worked.title()}`;
  const figure = new Figure(current.look, title, [data.model, textShown().text || data.title].filter(Boolean).join(" · "));
  workedFigure(figure, worked);
  download(`${fileName(data.title, title)}.svg`, new Blob([figure.text().svg], { type: "image/svg+xml" }));
});

for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => exportAs(button.dataset.export));

// ---- Start ----

$("model").textContent = data.model;
fillSelect($("lang"), Object.entries(LANGUAGES).map(([name, { name: own }]) => [name, own]));
Object.assign(state, stateOf(location.hash || data.start || "", texts));
fitFrame();
if (live) {
  speak(language());
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  $("say").value = state.say;
  $("task").value = state.task;
  live.start($("engine").textContent, $("files").textContent, data.live.version).then(() => live.ask(state.task, state.say));
}
show();
tellUnknown();
document.body.classList.remove("loading");
