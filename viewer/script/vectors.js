// Decodes q, k and v of the heads of a text, which are float32 in base64, and computes attention weights from them.

function floatsOf(base64) {
  const text = atob(base64);
  const bytes = new DataView(Uint8Array.from(text, (character) => character.charCodeAt(0)).buffer);
  return Float32Array.from({ length: bytes.byteLength / 4 }, (_, i) => bytes.getFloat32(4 * i, true));
}

// The rows of q, k or v of one head. `layers` has one entry for each layer, or a single entry for all layers. An entry has one tensor for each of its heads: as many as
// there are query heads, or fewer if groups of query heads share keys and values.
function rowsOf(layers, layer, head, heads, count) {
  const row = layers[layers.length > 1 ? layer : 0];
  const values = floatsOf(row[Math.floor((head * row.length) / heads)]);
  const width = values.length / count;
  return Array.from({ length: count }, (_, at) => values.subarray(at * width, (at + 1) * width));
}

// A row of q or k before its rotation. The rotation turned the features (a, b) of a pair into (a cos - b sin, a sin + b cos). In scaled
// tables cos² + sin² is above 1, so the result is divided by it.
function unrotated(row, cos, sin, neighbours) {
  const before = Float64Array.from(row), pairs = cos.length;
  for (let i = 0; i < pairs; ++i) {
    const [first, second] = neighbours ? [2 * i, 2 * i + 1] : [i, i + pairs], size = cos[i] ** 2 + sin[i] ** 2;
    before[first] = (row[first] * cos[i] + row[second] * sin[i]) / size;
    before[second] = (row[second] * cos[i] - row[first] * sin[i]) / size;
  }
  return before;
}

// The rows of one head, as far as the page has them: q, k, v, bias and attend.
function headRows({ vectors, heads, queries, keys }, layer, head) {
  const of = (name, { size }) => (vectors[name] ? rowsOf(vectors[name], layer, head, heads, size) : null);
  return { q: of("q", queries), k: of("k", keys), v: of("v", keys), bias: of("bias", queries), attend: of("attend", queries) };
}

// The softmax of a row, and the numbers from which it is computed: the largest score, the exponentials and their sum.
function softmaxOf(row) {
  const largest = row.reduce((most, x) => Math.max(most, x), -Infinity);  // NaN if any score is NaN
  const exps = row.map((x) => (largest === -Infinity ? 0 : Math.exp(x - largest)));
  const sum = exps.reduce((total, x) => total + x, 0);
  return { largest, exps, sum, weights: exps.map((x) => (sum === 0 ? 0 : x / sum)) };
}

// The sum of weight × v over the first `count` keys of a row.
const sumOfValues = (row, v, count = row.length) => Float64Array.from(v[0] ?? [], (_, i) => v.reduce((sum, value, s) => (s < count && row[s] !== 0 ? sum + row[s] * value[i] : sum), 0));

// The steps from q and k of query t to its attention weights, in float64. Every key has { unrotated, dot, scaled, bias, attend, score, exp,
// weight }; unrotated is q · k without the rotation of rotary positions.
function workedRow(text, layer, head, t) {
  const { vectors } = text, rows = headRows(text, layer, head);
  const q = rows.q[t], keys = rows.k, values = rows.v, bias = rows.bias?.[t], attend = rows.attend?.[t];
  const { cos, sin, neighbours } = vectors.rotary ?? {}, turns = (table) => rowsOf(table, layer, 0, 1, text.keys.size);
  const angles = cos && [turns(cos), turns(sin)], before = angles && unrotated(q, angles[0][t], angles[1][t], neighbours);
  const row = keys.map((k, s) => {
    const plain = angles && unrotated(k, angles[0][s], angles[1][s], neighbours).reduce((sum, x, i) => sum + x * before[i], 0);
    const dot = q.reduce((sum, x, i) => sum + x * k[i], 0);
    const scaled = dot * vectors.scale;
    const score = attend?.[s] === 0 ? -Infinity : scaled + (bias?.[s] ?? 0);
    return { unrotated: plain, dot, scaled, bias: bias?.[s], attend: attend ? attend[s] !== 0 : undefined, score };
  });
  const { largest, exps, sum, weights } = softmaxOf(row.map(({ score }) => score));
  row.forEach((key, s) => Object.assign(key, { exp: exps[s], weight: weights[s] }));
  return { q, keys, values, row, largest, sum, output: values && sumOfValues(weights, values) };
}

// Formats a number with enough digits to compute the attention weight from the numbers shown with an error of at most 1e-5.
function digits(x) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "∞" : "-∞";
  const size = Math.abs(x);
  return size === 0 ? "0" : size < 1e-6 || size >= 1e6 ? x.toExponential(5) : x.toFixed(size < 1e-3 ? 8 : 6);
}

// Formats a weight or an exponential, for which an error of 1e-6 is enough.
const digitsOfShare = (x) => (Number.isNaN(x) ? "NaN" : x.toFixed(6));
