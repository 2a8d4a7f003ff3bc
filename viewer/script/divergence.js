// The distance of two heads: the Jensen-Shannon divergence of their rows in bits, averaged over the queries. 0: equal rows; 1: rows
// that have no common key with a weight above 0.

// The divergence of two rows. Each row is first divided by its sum, which after dropout may differ from 1. NaN if one of the rows has no weight above 0.
function divergenceOfRows(p, q) {
  let sumP = 0, sumQ = 0, bits = 0;
  for (let s = 0; s < p.length; ++s) { sumP += p[s]; sumQ += q[s]; }
  if (sumP === 0 || sumQ === 0) return NaN;
  for (let s = 0; s < p.length; ++s) {
    const a = p[s] / sumP, b = q[s] / sumQ, middle = (a + b) / 2;
    if (a > 0) bits += a * Math.log2(a / middle);
    if (b > 0) bits += b * Math.log2(b / middle);
  }
  return Math.max(0, bits / 2);
}

const rowOf = (map, width, t) => map.subarray(t * width, (t + 1) * width);

// The divergence of two maps of the same shape: the mean over the queries. Special tokens and rows without a weight above 0 are skipped.
function divergenceOf(text, a, b, step = 1) {
  const width = text.keys.size;
  let sum = 0, count = 0;
  wordsThatLook(text).forEach((t, at) => {
    if (at % step) return;
    const bits = divergenceOfRows(rowOf(a, width, t), rowOf(b, width, t));
    const empty = (map) => rowOf(map, width, t).every((p) => p === 0);
    if (Number.isNaN(bits) && (empty(a) || empty(b))) return;
    sum += bits;
    ++count;
  });
  return count ? sum / count : NaN;
}

const headsOf = (text) => Array.from({ length: text.layers * text.heads }, (_, at) => ({ layer: Math.floor(at / text.heads), head: at % text.heads }));

// The number by which heads are sorted. Divergences are at most 1 bit; NaN (no row in which both heads have weights) is counted as 2, so that it comes last.
const orderOfDivergence = (bits) => (Number.isNaN(bits) ? 2 : bits);

// The other heads of the text, most similar first: [{ layer, head, bits }].
function alike(text, layer, head) {
  text.alike ??= new Map();
  const name = `${layer}/${head}`;
  if (!text.alike.has(name)) text.alike.set(name, sortedByDivergence(text, layer, head));
  return text.alike.get(name);
}

function sortedByDivergence(text, layer, head) {
  const map = text.map(layer, head);
  const step = Math.ceil((text.layers * text.heads * map.length) / 2e7);  // every step-th query is used, so that the sums take at most about 0.2 s
  return headsOf(text).filter((one) => one.layer !== layer || one.head !== head)
    .map((one) => ({ ...one, bits: divergenceOf(text, map, text.map(one.layer, one.head), step) }))
    .sort((a, b) => orderOfDivergence(a.bits) - orderOfDivergence(b.bits));
}
