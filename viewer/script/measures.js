// Measures of a head on a text. A measure is a number for each query, averaged over the queries of the text.

const share = (value) => (Number.isNaN(value) ? "NaN" : say("{0} %", Math.round(100 * value)));
const thousandths = (value) => (Number.isNaN(value) ? "NaN" : value.toFixed(value < 1 ? 2 : value < 100 ? 1 : 0));
const tenths = (value) => (Number.isNaN(value) ? "NaN" : value.toFixed(1));

// of(row, t, text): the measure of query t, whose attention weights are `row`; null if undefined. whole(text, map): a measure of the whole map.
// self: true if the measure exists only for self-attention of a sequence. has(text): whether the text has the measure. named: the measure names a head if its value is at
// least this over the texts. formula and source: for the reader. include/polyhead/head_measures.h explains the measures and has all of them except `errors` and `without`.
// The measure `without` exists only for heads that were switched off when the page was made; the page may hold a name and a unit for it.
// Patches of an image are no sequence: they have no previous patch and no distance in tokens.
const isSelf = ({ queries, keys }) => queries === keys;
const isSequence = (text) => isSelf(text) && !text.queries.image;
const repeats = (text) => isSequence(text) && wordsThatLook(text).some((t) => text.queries.before(t).length > 0);
const sumAt = (row, places) => places.reduce((sum, s) => sum + row[s], 0);
const MEASURES = {
  previous: { named: 0.5, name: () => say("previous token"), formula: "p[t, t−1]", source: "Clark 2019 (1906.04341), Voita 2019 (1905.09418)", show: share, self: true, of: (row, t) => (t > 0 ? row[t - 1] : null) },
  next: { named: 0.5, name: () => say("next token"), formula: "p[t, t+1]", source: "Clark 2019 (1906.04341)", show: share, self: true, of: (row, t) => (t + 1 < row.length ? row[t + 1] : null) },
  same: { named: 0.5, name: () => say("same token"), formula: "p[t, t]", source: "Clark 2019 (1906.04341)", show: share, has: isSelf, of: (row, t) => row[t] },
  first: { name: () => say("first token"), formula: "p[t, 0]", source: "Gu 2025 (2410.10781)", show: share, of: (row) => row[0] },
  sink: { named: 0.5, name: () => say("first-token sink"), formula: "p[t, 0], t ≥ 2, x[t] ≠ x[0]", source: "Xiao 2024 (2309.17453), Gu 2025 (2410.10781)", show: share, self: true, of: (row, t, text) => (t > 1 && text.queries.before(t)[0] !== 0 ? row[0] : null) },
  separators: { named: 0.5, name: () => say("separators"), formula: "Σ p[t, s], s ≥ 1, s ∈ [SEP] …", source: "Clark 2019 (1906.04341)", show: share, has: (text) => text.separators.length > 0, of: (row, _, text) => sumAt(row, text.separators) },
  induction: { named: 0.5, name: () => say("induction"), formula: "Σ p[t, s], 1 ≤ s ≤ t, x[s−1] = x[t]", source: "Olsson 2022 (2209.11895)", show: share, has: repeats, of: (row, t, { queries }) => (queries.before(t).length ? sumAt(row, queries.before(t).map((s) => s + 1)) : null) },
  duplicate: { named: 0.5, name: () => say("duplicate token"), formula: "Σ p[t, s], s < t, x[s] = x[t]", source: "Wang 2023 (2211.00593)", show: share, has: repeats, of: (row, t, { queries }) => (queries.before(t).length ? sumAt(row, queries.before(t)) : null) },
  positional: { named: 0.75, name: () => say("positional share"), formula: "Σ min(p[t, s], m[t, s])", source: "Levin & Peres 2017 §4", show: share, has: (text) => isSequence(text) && wordsThatLook(text).length > 1, whole: positionalShare },
  entropy: { name: () => say("entropy"), unit: () => say("bits"), formula: "−Σ p log₂ p", source: "Clark 2019 (1906.04341)", show: tenths, of: (row) => averageOf(row, (p) => (p > 0 ? -Math.log2(p) : 0)) },
  errors: { name: () => say("alignment error rate"), show: errorRate, has: (text) => text.links !== null, whole: (text, map) => alignment(text, map).rate },
  without: {
    name: () => data.without_measure?.name ?? say("cosine lost without it"), unit: () => data.without_measure?.unit ?? "‰",
    has: (text) => text.without.size > 0, show: (value) => (data.without_measure ? String(Number(value.toPrecision(3))) : thousandths(1000 * value)), number: (value) => (data.without_measure ? value : 1000 * value),
  },
  distance: { name: () => say("distance"), unit: () => say("tokens"), formula: "Σ p |t − s|", source: "Vig 2019 (1906.04284)", show: tenths, self: true, of: (row, t) => averageOf(row, (_, s) => Math.abs(t - s)) },
};

// The share of a map that positions alone predict: the overlap of each row t with a predicted row m[t], averaged over the rows. A key that is the first or a
// special token is identified by its position, any other key by its distance from the query. m[t, s] is the mean attention that the other queries give to keys
// of this kind.
function positionalShare(text, map) {
  const size = text.queries.size, rows = wordsThatLook(text), { special } = text.queries;
  const place = Array.from({ length: size }, (_, s) => s === 0 || special.has(s));
  // The number of a key's kind: its position, or for keys that are identified by their distance a number from size + 1 on.
  const kind = (t, s) => (place[s] ? s : 2 * size + s - t);
  const sums = new Float64Array(3 * size), counts = new Float64Array(3 * size), expected = new Float64Array(size);
  const each = (t, use) => { for (let s = 0; s < size; ++s) use(map[t * size + s], kind(t, s), s); };
  for (const t of rows) each(t, (p, at) => { sums[at] += p; ++counts[at]; });
  let all = 0, measured = 0;
  for (const t of rows) {
    let sum = 0, total = 0, overlap = 0;
    each(t, (p, at, s) => {
      sum += p;
      expected[s] = counts[at] > 1 ? Math.max(0, sums[at] - p) / (counts[at] - 1) : 0;
      total += expected[s];
    });
    if (sum === 0) continue;
    if (total > 0 || Number.isNaN(sum)) each(t, (p, at, s) => { overlap += Math.min(p / sum, expected[s] / total); });
    all += overlap;
    ++measured;
  }
  return all / measured;
}

// The mean of value(p, s) over the keys s of a row, weighted by their attention weights p. It is divided by the sum of the weights, which after dropout may
// differ from 1.
function averageOf(row, value) {
  const sum = row.reduce((total, p) => total + p, 0);
  return sum === 0 ? null : row.reduce((total, p, s) => total + (p / sum) * value(p / sum, s), 0);
}

// The measures that this text has. Measures of distances need queries and keys of the same text. Pooled maps have no measures of single words.
const measuresOf = (text) => Object.keys(MEASURES).filter((name) => text.pooled ? name === "without" && text.without.size > 0 : MEASURES[name].has?.(text) ?? (isSequence(text) || !MEASURES[name].self));

// The queries over which measures are averaged: all that are not special tokens. If all are special tokens, all count.
function wordsThatLook({ queries }) {
  const words = queries.shown(true);
  return words.length > 0 ? words : queries.shown(false);
}

// All measures of a map by their names, such as { previous: 0.62, … }.
function measure(text, map) {
  const width = text.keys.size;
  const rows = wordsThatLook(text).map((t) => [map.subarray(t * width, (t + 1) * width), t]);
  return Object.fromEntries(measuresOf(text).filter((name) => MEASURES[name].of || MEASURES[name].whole).map((name) => {
    if (MEASURES[name].whole) return [name, MEASURES[name].whole(text, map)];
    const values = rows.map(([row, t]) => MEASURES[name].of(row, t, text)).filter((value) => value !== null);
    return [name, values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN];
  }));
}

// The number that stands for a measure: for one text the value itself, for several texts, { mean, spread, count }, the mean.
const meanOf = (value) => value?.mean ?? value;

function showMeasure(name, value) {
  const { show } = MEASURES[name];
  if (value === undefined) return "";
  return value?.count > 1 ? `${show(value.mean)} ± ${show(value.spread)}` : show(meanOf(value));
}

const withUnit = (name, value) => (value === undefined ? "" : MEASURES[name].unit ? `${showMeasure(name, value)} ${MEASURES[name].unit()}`.trimEnd() : showMeasure(name, value));
