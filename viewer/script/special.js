// Ways to treat special tokens such as [CLS]: show, fade or hide them, or distribute the attention to them over the words.

const SPECIAL = {
  show: { name: () => say("shown") },
  fade: { name: () => say("faded") },
  hide: { name: () => say("hidden"), note: () => say("Special tokens are hidden, so rows no longer sum to 1. The attention weights are unchanged.") },
  share: {
    name: () => say("shared out"),
    note: (text) => `${say("Special tokens are hidden and what rows give to them is shared out: each row is divided by its sum over the words. These are not the model's attention weights.")}${leastSum(text) ? ` ${say("A row whose sum is below {0} is NaN, because the stored attention weights are not exact enough.", leastSum(text))}` : ""}`,
  },
};

const hasSpecial = (text) => text.queries.special.size + text.keys.special.size > 0;

// The colours for paint(). If special tokens are faded, they include a function that tells whether a cell is faded.
const fadedIn = (look, text) => (look.fadeSpecial ? { ...look, faded: (row, column) => text.queries.special.has(row) || text.keys.special.has(column) } : look);

// A row is divided by its sum over the words only if this sum is at least leastSum(). The errors of the stored weights, one for each word, then change a result
// by at most 0.01.
const leastSum = (text) => Number((100 * text.decoder.encoding.error * (text.keys.size - text.keys.special.size + 1)).toPrecision(2));

// Divides each row by the sum of its weights for words, so that these weights sum to 1. A row that looks only at special tokens becomes 0. A row with a very
// small sum becomes NaN, because the division would make rounding errors look like attention.
function sharedMap(text, layer, head) {
  const { size: width, special } = text.keys;
  const map = text.map(layer, head).slice();
  for (let start = 0; start < map.length; start += width) {
    for (const s of special) map[start + s] = 0;
    const sum = map.subarray(start, start + width).reduce((total, weight) => total + weight, 0);
    if (sum > 0) for (let s = 0; s < width; ++s) map[start + s] = sum < leastSum(text) ? NaN : map[start + s] / sum;
  }
  return map;
}

// A copy of the text with other maps: the attention to special tokens is shared out to the words. The copy is made on first use.
function sharedOut(text) {
  if (!hasSpecial(text)) return text;
  if (!Object.hasOwn(text, "shared")) {
    const decoder = { encoding: { ...text.decoder.encoding }, show: (weight) => (Number.isNaN(weight) ? "NaN" : ENCODINGS.logarithmic8.show(weight)) };
    text.shared = Object.assign(Object.create(text), { decoder, maps: new Map(), measured: new Map(), alike: null, make: (layer, head) => sharedMap(text, layer, head) });
    text.shared.one = (layer, head, row, column) => text.shared.map(layer, head)[row * text.keys.size + column];
  }
  return text.shared;
}
