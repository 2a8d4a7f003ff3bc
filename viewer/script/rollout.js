// Attention rollout (Abnar and Zuidema 2020, section 3): the share of each input word in each output word, if only attention and residual connections count.

const ROLLOUT = "rollout";  // stands for a layer whose only head is MEAN

// True for maps that are made of all heads of all layers, and so belong to no layer.
const isWhole = (layer) => layer === MEAN || layer === ROLLOUT;

// The page computes the rollout only if it takes at most this many multiplications, layers * T^3. That takes about a second. For longer texts there is
// polyhead.rollout.
const ROLLOUT_MOST = 1e9;

// Tabs with these names have no rollout. Between the layers of such a tab the model computes other attention, which the tab does not show: to an encoder, in
// shifted windows, or along another axis.
const NO_ROLLOUT = new Set(["Decoder", "Windows", "Time", "Space", "Rows", "Columns"]);

// True for self-attention of several layers that follow each other without other attention between them. If the pair bias was taken out of the attention
// weights, there is no rollout: the model computes with the bias.
function hasRollout(text) {
  const { layers, keys, queries, name, bias, pooled } = text.source ?? text;
  return !pooled && !text.unit && keys === queries && layers > 1 && !name.split(" · ").some((word) => NO_ROLLOUT.has(word)) && bias !== "without" && layers * keys.size ** 3 <= ROLLOUT_MOST;
}

// Computes the product A_L … A_1 with A_l = (I + mean over the heads of layer l) / 2. Each row of A_l is divided by its sum.
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
      if (factor === 0) continue;  // skip this work: with a causal mask half of the factors are 0
      const start = k * size;
      for (let s = 0; s < size; ++s) row[s] += factor * b[start + s];
    }
  }
  return product;
}
