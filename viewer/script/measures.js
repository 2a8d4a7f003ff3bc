// Measures of a head on a text. A measure is a number for each query, averaged over the queries of the text.

const share = (value) => (Number.isNaN(value) ? "NaN" : say("{0} %", Math.round(100 * value)));
const thousandths = (value) => (Number.isNaN(value) ? "NaN" : value.toFixed(value < 1 ? 2 : value < 100 ? 1 : 0));
const tenths = (value) => (Number.isNaN(value) ? "NaN" : value.toFixed(1));

// of(row, t, text): the measure of query t, whose attention weights are `row`; null if undefined. whole(text, map): a measure of the whole map.
// self: true if the measure exists only for self-attention. has(text): whether the text has the measure.
// The measure `without` exists only for heads that were switched off when the page was made; the maker of the page may have given its name and unit.
const MEASURES = {
  previous: { name: () => say("previous token"), show: share, self: true, of: (row, t) => (t > 0 ? row[t - 1] : null) },
  next: { name: () => say("next token"), show: share, self: true, of: (row, t) => (t + 1 < row.length ? row[t + 1] : null) },
  same: { name: () => say("same token"), show: share, self: true, of: (row, t) => row[t] },
  first: { name: () => say("first token"), show: share, of: (row) => row[0] },
  separators: { name: () => say("separators"), show: share, has: (text) => text.separators.length > 0, of: (row, _, text) => text.separators.reduce((sum, s) => sum + row[s], 0) },
  entropy: { name: () => say("entropy"), unit: () => say("bits"), show: tenths, of: (row) => averageOf(row, (p) => (p > 0 ? -Math.log2(p) : 0)) },
  errors: { name: () => say("alignment error rate"), show: errorRate, has: (text) => text.links !== null, whole: (text, map) => alignment(text, map).rate },
  without: {
    name: () => data.without_measure?.name ?? say("cosine lost without it"), unit: () => data.without_measure?.unit ?? "‰",
    has: (text) => text.without.size > 0, show: (value) => (data.without_measure ? String(Number(value.toPrecision(3))) : thousandths(1000 * value)), number: (value) => (data.without_measure ? value : 1000 * value),
  },
  distance: { name: () => say("distance"), unit: () => say("tokens"), show: tenths, self: true, of: (row, t) => averageOf(row, (_, s) => Math.abs(t - s)) },
};

// The mean of value(p, s), weighted by the attention weights p of a row. It is divided by the sum of the weights, which after dropout may differ from 1.
function averageOf(row, value) {
  const sum = row.reduce((total, p) => total + p, 0);
  return sum === 0 ? null : row.reduce((total, p, s) => total + (p / sum) * value(p / sum, s), 0);
}

// The measures that this text has. Measures of distances need queries and keys of the same text. Pooled maps have no measures of single words.
const measuresOf = (text) => Object.keys(MEASURES).filter((name) => text.pooled ? name === "without" && text.without.size > 0 : MEASURES[name].has?.(text) ?? (text.keys === text.queries || !MEASURES[name].self));

// The queries over which measures are averaged: all except special tokens, or all if there are only special tokens.
function wordsThatLook({ queries }) {
  const words = queries.shown(true);
  return words.length > 0 ? words : queries.shown(false);
}

// { previous: 0.62, … }
function measure(text, map) {
  const width = text.keys.size;
  const rows = wordsThatLook(text).map((t) => [map.subarray(t * width, (t + 1) * width), t]);
  return Object.fromEntries(measuresOf(text).filter((name) => MEASURES[name].of || MEASURES[name].whole).map((name) => {
    if (MEASURES[name].whole) return [name, MEASURES[name].whole(text, map)];
    const values = rows.map(([row, t]) => MEASURES[name].of(row, t, text)).filter((value) => value !== null);
    return [name, values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN];
  }));
}

// The value of a measure is a number for one text, and { mean, spread, count } for several texts.
const meanOf = (value) => value?.mean ?? value;

function showMeasure(name, value) {
  const { show } = MEASURES[name];
  if (value === undefined) return "";
  return value?.count > 1 ? `${show(value.mean)} ± ${show(value.spread)}` : show(meanOf(value));
}

const withUnit = (name, value) => (value === undefined ? "" : MEASURES[name].unit ? `${showMeasure(name, value)} ${MEASURES[name].unit()}`.trimEnd() : showMeasure(name, value));
