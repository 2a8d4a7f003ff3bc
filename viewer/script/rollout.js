// Attention rollout (Abnar and Zuidema 2020, section 3): how much of each word is in a word after all layers, if only attention and residual connections count.

const ROLLOUT = "rollout";  // as a layer, whose one head is MEAN

// A map of all heads together, which has no layer.
const isWhole = (layer) => layer === MEAN || layer === ROLLOUT;

// A page multiplies layers * T^3 numbers of about 1e9 a second: longer texts are left to polyhead.rollout.
const ROLLOUT_MOST = 1e9;

// Between these layers others look elsewhere: at an encoder, at shifted windows, along another axis.
const NO_ROLLOUT = new Set(["Decoder", "Windows", "Time", "Space", "Rows", "Columns"]);

// Not between two texts; not for one layer; not where other layers are between; not for attention weights without a pair bias, with which no model ran.
function hasRollout(text) {
  const { layers, keys, queries, name, bias, pooled } = text.source ?? text;
  return !pooled && keys === queries && layers > 1 && !name.split(" · ").some((word) => NO_ROLLOUT.has(word)) && bias !== "without" && layers * keys.size ** 3 <= ROLLOUT_MOST;
}

// A_L … A_1 with A_l = (I + mean over the heads of layer l) / 2, each row divided by its sum.
function rolloutOf(text) {
  const size = text.keys.size;
  let product = null;
  for (let layer = 0; layer < text.layers; ++layer) {
    const step = Float64Array.from(text.map(layer, MEAN));
    for (let t = 0; t < size; ++t) {
      const row = step.subarray(t * size, (t + 1) * size);
      row[t] += 1;
      const sum = row.reduce((total, weight) => total + weight, 0);
      for (let s = 0; s < size; ++s) row[s] /= sum;
    }
    product = product ? timesMatrix(step, product, size) : step;
  }
  return Float32Array.from(product);
}

function timesMatrix(a, b, size) {
  const product = new Float64Array(size * size);
  for (let t = 0; t < size; ++t) {
    const row = product.subarray(t * size, (t + 1) * size);
    for (let k = 0; k < size; ++k) {
      const factor = a[t * size + k];
      if (factor === 0) continue;  // as a causal mask makes half of them
      const start = k * size;
      for (let s = 0; s < size; ++s) row[s] += factor * b[start + s];
    }
  }
  return product;
}
