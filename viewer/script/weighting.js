// Norm-weighted maps: each attention weight times the norm of the value vector that it multiplies, transformed by the head's slice of the output projection
// (Kobayashi et al. 2020, "Attention is Not Only a Weight"). The page has the norms, one for each key and head, and multiplies them itself.

const WEIGHTINGS = { attention: () => say("attention weights"), norm: () => say("attention × norm of the value") };

const normsOf = (text) => (text.source ?? text).norms;

// The norms [S] for the keys of a head. They are norms of pieces, even if the page shows merged words.
const normsOfHead = (text, layer, head) => floatsOf(normsOf(text)[layer][head]);

// Multiplies a map by norms, one for each key. A weight of exactly 0 stays 0. Any other product is at least TINY, so that its cell is not hatched like a 0.
const timesNorms = (map, norms) => Float64Array.from(map, (weight, i) => (weight === 0 ? 0 : Math.max(TINY, weight * norms[i % norms.length])));

function meanOfMaps(maps) {
  const sum = maps.reduce((total, map) => total.map((value, i) => value + map[i]));
  return sum.map((value) => value / maps.length);
}

// A copy of the text with norm-weighted maps, made on first use. All views draw numbers from 0 to 1, so the maps are divided by `unit`, the largest number of
// all heads of the text. The decoder multiplies a number by `unit` again before it is shown or written to a file. For pieces the page holds `unit`. For merged
// words it is computed in slices of time: normWeighted() returns null until `unit` is known, and then calls done().
function normWeighted(text, done) {
  if (Object.hasOwn(text, "weighted")) return text.weighted;
  const merged = text instanceof MergedText;
  const numbers = (layer, head) => {
    if (layer === MEAN) return meanOfMaps(Array.from({ length: text.layers }, (_, index) => numbers(index, MEAN)));
    if (head === MEAN) return meanOfMaps(Array.from({ length: text.heads }, (_, index) => numbers(layer, index)));
    if (!merged) return timesNorms(text.map(layer, head), normsOfHead(text, layer, head));
    const pieces = { map: () => timesNorms(text.source.map(layer, head), normsOfHead(text, layer, head)), keys: text.source.keys };
    return Float64Array.from(MergedText.prototype.make.call({ source: pieces, rows: text.rows, columns: text.columns }, layer, head));
  };
  if (text.largestWeighted === undefined) {
    let largest = 0;
    const jobs = headsOf(text).map(({ layer, head }) => () => { for (const number of numbers(layer, head)) if (number > largest && number < Infinity) largest = number; });
    text.search ??= inSlices(jobs, () => false).then(() => {
      text.largestWeighted = largest;
      done();
    });
    return null;
  }
  const unit = text.largestWeighted || 1;
  const exact = text.decoder.encoding !== ENCODINGS.logarithmic8;
  const decimals = Math.min(8, Math.max(0, 3 - Math.floor(Math.log10(unit))));  // as many decimals as show four digits of the largest number
  const show = (part) => (part === 0 ? "0" : exact ? (part * unit).toFixed(decimals) : `≈ ${part <= TINY ? 0 : Number((part * unit).toPrecision(2))}`);
  const decoder = { encoding: { ...text.decoder.encoding, number: (part) => Number((part * unit).toPrecision(exact ? 6 : 2)) }, show: (part) => (Number.isNaN(part) ? "NaN" : show(part)) };
  const weighted = Object.assign(Object.create(text), {
    plain: text, unit, decoder, maps: new Map(), alike: null,
    make: (layer, head) => Float32Array.from(numbers(layer, head), (number) => (number === 0 ? 0 : Math.max(TINY, number / unit))),
    one: (layer, head, row, column) => weighted.map(layer, head)[row * text.keys.size + column],
    measures: (layer, head) => text.measures(layer, head),  // measures are always computed from attention weights
  });
  text.weighted = weighted;
  return weighted;
}

// A scale of colours whose ticks are written in the numbers of a norm-weighted text.
function scaleOf(name, text) {
  const scale = SCALES[name];
  if (!text.unit) return scale;
  const number = (value) => Number((value * text.unit).toPrecision(2)).toString();
  return { ...scale, ticks: () => scale.ticks().map(([at, tick]) => [at, tick.replace(/\d[\d.]*/, (digits) => number(Number(digits)))]) };
}

// Says how the number of a pair is computed: "0.1234 × 5.678 = 0.7006". Empty if no pair is chosen, for means of heads, and for words of several pieces.
function productOf(text, { layer, head }, spot) {
  if (!text.unit || !spot || spot.row === null || spot.column === null || [layer, head].includes(MEAN) || text.plain instanceof MergedText) return "";
  const weight = text.plain.map(layer, head)[spot.row * text.keys.size + spot.column], norm = normsOfHead(text, layer, head)[spot.column];
  return say("Attention weight {0} × {1}, the norm of the transformed value of “{2}”.", text.plain.decoder.show(weight), Number(norm.toPrecision(4)), text.keys.word(spot.column));
}

// Returns what else must change in the state. Norm-weighted maps have no comparisons, distances or rollout. Attention to special tokens is not shared out in
// them, because their rows do not sum to 1.
function settleWeighting(state, changed) {
  if (state.weighting !== "norm") return {};
  if (state.special === "share") return changed.weighting === "norm" ? { special: "hide" } : { weighting: "attention" };
  if (state.view === "compare" || state.heads === "distances" || state.layer === ROLLOUT) return changed.weighting === "norm" ? { ...(state.view === "compare" && { view: "auto" }), heads: "maps", ...(state.layer === ROLLOUT && { layer: null, head: null }) } : { weighting: "attention" };
  return {};
}

// Sets the controls that choose the weighting. texts: all texts of the page. words: the shown text, with attention weights.
function showWeighting(texts, words, state) {
  const has = Boolean(normsOf(words)), any = texts.some((text) => text.norms);
  $("weighting-control").hidden = $("about-norms").hidden = !any;
  $("weighting").value = has ? state.weighting : "attention";
  $("weighting").disabled = !has;
  $("weighting-note").textContent = !any ? "" : !has ? say("No value vectors of this text are in the page, so it shows attention weights only.") : state.weighting !== "norm" ? "" : !Object.hasOwn(words, "weighted") ? say("Multiplying by the norms …") : say("Rows do not sum to 1. Measures and links of words use attention weights.");
}
