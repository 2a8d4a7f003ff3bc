// Reads the data of the page. The map of a head is decoded when it is first drawn.

// Used as a head, MEAN stands for the mean over the heads of a layer. Used as layer and head, it stands for the mean over all heads.
const MEAN = "mean";
const placeOf = (text) => (isWhole(text) ? text : Number(text));

// The number to which a weight is decoded that is not 0 but that the encoding rounds to 0. A decoded 0 always means exactly 0, as for a masked key.
const TINY = 2 ** -40;

// How each encoding turns a code into an attention weight. error: the largest error of a weight near 0. viewer/encoding.h describes the formats.
const ENCODINGS = {
  linear16: {
    bytes: 2,
    weight: (code) => (code === 65535 ? NaN : code === 0 ? 0 : Math.max(TINY, (code - 1) / 65533)),
    show: (weight) => (weight === 0 ? "0" : weight.toFixed(4)),
    number: (weight) => Number(weight.toFixed(6)),
    error: 7.7e-6,
    precision: () => say("Attention weights are stored in 16 bits, with an error of at most 0.000008. Four decimals are shown."),
  },
  float32: {
    bytes: 4,
    show: (weight) => (weight === 0 ? "0" : weight.toFixed(4)),
    number: (weight) => Number(weight.toFixed(8)),
    error: 0,
    precision: () => say("This page computes attention weights in float32 as you type. Four decimals are shown."),
  },
  logarithmic8: {
    bytes: 1,
    weight: (code) => (code === 255 ? NaN : code === 0 ? 0 : code === 1 ? TINY : 2 ** ((code - 254) / 14)),
    number: (weight) => Number((weight <= TINY ? 0 : weight).toPrecision(2)),
    error: 3.7e-6,
    show: (weight) => (weight === 0 ? "0" : `≈ ${weight <= TINY ? 0 : Number(weight.toPrecision(2))}`),
    precision: () => say("The page is large, so attention weights are stored in 8 bits on a logarithmic scale, with a relative error of at most 2.6 %; below 0.0000037 they are shown as 0. Two digits are shown."),
  },
};

const float32At = (() => {
  const view = new DataView(new ArrayBuffer(4));
  return (bytes, first) => {
    for (let i = 0; i < 4; ++i) view.setUint8(i, bytes.charCodeAt(first + i));
    return view.getFloat32(0, true);
  };
})();

class Decoder {
  constructor(name) {
    this.encoding = ENCODINGS[name];
    if (this.encoding.weight) this.table = Float32Array.from({ length: 256 ** this.encoding.bytes }, (_, code) => this.encoding.weight(code));
  }

  decode(base64) {
    const bytes = atob(base64);
    const weights = new Float32Array(bytes.length / this.encoding.bytes);
    for (let i = 0; i < weights.length; ++i) weights[i] = this.#weight(bytes, i * this.encoding.bytes);
    return weights;
  }

  #weight(bytes, first) {
    if (!this.table) return float32At(bytes, first);
    const low = bytes.charCodeAt(first);
    return this.table[this.encoding.bytes === 1 ? low : low | (bytes.charCodeAt(first + 1) << 8)];
  }

  // Decodes a single weight of a map.
  at(base64, index) {
    const first = index * this.encoding.bytes, group = Math.floor(first / 3);  // four characters of base64 are three bytes
    return this.#weight(atob(base64.slice(4 * group, 4 * group + 8)), first - 3 * group);
  }

  show(weight) {
    return Number.isNaN(weight) ? "NaN" : this.encoding.show(weight);
  }
}

// The tokens along one side of an attention map: its queries or its keys.
class Tokens {
  constructor(json) {
    this.pieces = json.pieces;
    this.special = new Set(json.special);
    this.unknown = new Map(json.unknown);  // from the index of an unknown token to the characters that the vocabulary lacks
    this.segment = json.segment ?? json.pieces.map(() => 0);
    this.spelling = json.words ? SPELLINGS.plain : spellingOf(json.pieces);
    this.bytes = bytesOfCharacters(this.pieces);
    const words = json.pieces.map((piece, index) => visibleWord(this.characters(index)));
    this.long = words.some((text) => text.length > 40);  // true if tokens are whole sentences: the axes then show the number and the first words of a token
    this.words = this.long ? words.map((text, index) => `${index}: ${text.length > 28 ? `${text.slice(0, 28).replace(/\s+\S*$/, "")}…` : text}`) : numbered(words);
  }

  get size() { return this.pieces.length; }

  characters(index) { return this.unknown.get(index) ?? this.bytes.get(index)?.name ?? this.spelling.text(this.pieces[index]); }

  word(index) { return this.words[index]; }

  // The earlier tokens that are equal to this one.
  before(index) {
    if (!this.earlier) {
      const seen = new Map();
      this.earlier = this.pieces.map((piece, at) => {
        const places = seen.get(piece) ?? [];
        seen.set(piece, [...places, at]);
        return places;
      });
    }
    return this.earlier[index];
  }

  // A word with its index ("3: fox"). The index tells repeated words apart and keeps a spreadsheet from reading a word as a formula.
  named(index) { return `${index}: ${this.unknown.get(index) ?? this.pieces[index]}`; }

  // The tooltip of a token: index, token, and the original characters if the token is unknown to the vocabulary.
  note(index) {
    const note = `${index}: ${this.pieces[index]}`;
    return this.unknown.has(index) ? say("{0}; “{1}” is unknown to this model", note, this.unknown.get(index)) : note;
  }

  // The indices of the tokens that are shown. segment: only tokens of this segment are shown; null: those of all segments.
  shown(hideSpecial, segment = null) {
    return [...this.pieces.keys()].filter((index) => !(hideSpecial && this.special.has(index)) && (segment === null || this.segment[index] === segment));
  }
}

class Text {
  // At most this many decoded attention weights (32 MB) are kept; the map that was not used for the longest time is dropped first.
  static cacheSize = 8e6;

  constructor(json, decoder) {
    this.text = json.text;
    this.step = json.step ?? null;  // the training step whose snapshot this text is, or null
    this.answer = json.answer ?? "";
    this.layers = json.layers;
    this.heads = json.heads;
    // For pooled maps "largest" or "share": what a cell shows of its block. Null for other maps.
    this.pooled = json.pooled ?? null;
    Object.assign(this, tokensOf(json));
    this.image = this.queries.image = json.image && imageOf(json.image);
    Object.assign(this, sidesOf(json, decoder));
    this.separators = [...this.keys.special].filter((index) => index > 0);
    this.measured = new Map();
    this.without = new Map((json.without ?? []).map(([layer, head, change]) => [`${layer}/${head}`, change]));
    this.encoded = json.weights;
    this.vectors = json.vectors ?? null;  // q, k and v in base64; they are decoded when the computation of a cell is shown
    this.norms = json.value_norms ?? null;  // norms of the transformed value vectors in base64; weighting.js decodes them when they are needed
    this.largestWeighted = json.largest_weighted;  // the largest number in the norm-weighted maps of all heads for this text
    this.learnedQueries = json.learned_queries === true;  // true if the queries are parameters of the model and not projections of an input
    // The width of the layer's input; undefined if the page does not know it.
    this.width = json.width;
    this.leftOut = json.left_out;         // how many MB q, k and v would have taken, if they were too large for the page
    this.decoder = decoder;
    this.maps = new Map();
  }

  // Attention weights [T * S], row by row.
  map(layer, head) {
    const name = `${layer}/${head}`;
    const map = this.maps.get(name) ?? this.make(layer, head);
    this.maps.delete(name);
    this.maps.set(name, map);
    while (this.maps.size > 1 && this.maps.size * map.length > Text.cacheSize) this.maps.delete(this.maps.keys().next().value);
    return map;
  }

  // Decodes a single weight of a head, unless its map is decoded already.
  weight(layer, head, row, column) {
    const made = this.maps.get(`${layer}/${head}`);
    if (made) return made[row * this.keys.size + column];
    if (layer === MEAN || head === MEAN) return this.map(layer, head)[row * this.keys.size + column];
    return this.one(layer, head, row, column);
  }

  one(layer, head, row, column) { return this.decoder.at(this.encoded[layer][head], row * this.keys.size + column); }

  measures(layer, head) {
    const name = `${layer}/${head}`;
    if (!this.measured.has(name)) this.measured.set(name, { ...(this.without.has(name) && { without: this.without.get(name) }), ...measure(this, this.map(layer, head)) });
    return this.measured.get(name);
  }

  make(layer, head) {
    if (layer === ROLLOUT) return rolloutOf(this);
    if (layer === MEAN) return this.#mean(this.layers, (index) => this.map(index, MEAN));
    if (head === MEAN) return this.#mean(this.heads, (index) => this.decoder.decode(this.encoded[layer][index]));
    return this.decoder.decode(this.encoded[layer][head]);
  }

  #mean(count, part) {
    const sum = new Float64Array(this.queries.size * this.keys.size);
    for (let index = 0; index < count; ++index) {
      const map = part(index);
      for (let i = 0; i < sum.length; ++i) sum[i] += map[i];
    }
    return Float32Array.from(sum, (value) => value / count);
  }
}

function titleOf(layer, head) {
  if (layer === ROLLOUT) return say("Rollout over all layers");
  if (layer === MEAN) return say("Mean of all heads");
  return head === MEAN ? say("Layer {0} · Mean of its heads", layer) : say("Layer {0} · Head {1}", layer, head);
}
