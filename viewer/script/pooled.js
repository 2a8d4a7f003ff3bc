// Pooled maps, for texts that are too long for a map of all pairs of tokens. A cell of a pooled map is a block of queries by a block of keys.

// The queries or the keys of a pooled map, as blocks of consecutive tokens. Views treat a block like a token.
class Blocks {
  static longest = 12;  // longer words are cut to this many characters in the name of a block

  // Cuts the tokens into `count` blocks, as attention_pooled_map() does.
  constructor(json, count) {
    this.tokens = json.pieces;
    this.tokenSpelling = spellingOf(json.pieces);
    this.starts = Array.from({ length: count + 1 }, (_, at) => Math.floor((at * json.pieces.length) / count));
    this.words = this.starts.slice(0, -1).map((_, at) => this.#name(at));
    this.pieces = this.words;
    this.spelling = SPELLINGS.plain;
    this.special = new Set();
    this.unknown = this.bytes = new Map();
    this.segment = this.words.map(() => 0);
  }

  get size() { return this.words.length; }

  // The number of tokens in the largest block.
  get most() { return Math.max(0, ...this.words.map((_, at) => this.starts[at + 1] - this.starts[at])); }

  word(index) { return this.words[index]; }

  named(index) { return this.words[index]; }

  // Returns the token numbers of a block, such as "512–767".
  range(index) {
    const first = this.starts[index], last = this.starts[index + 1] - 1;
    return first === last ? String(first) : `${first}–${last}`;
  }

  // The tooltip of a block: which tokens it has, and the beginning of their text.
  note(index) {
    const text = this.tokens.slice(this.starts[index], Math.min(this.starts[index + 1], this.starts[index] + 48)).map((piece) => this.tokenSpelling.text(piece)).join(this.tokenSpelling.spaced ? " " : "").replaceAll(" ##", "");
    return `${this.range(index)}: ${text.length > 240 ? text.slice(0, 239) : text}…`;
  }

  shown() { return [...this.words.keys()]; }

  // The name of a block, such as "512–767: The … fox". It is only the range if the tokens are mere positions.
  #name(index) {
    const ends = [...new Set([this.starts[index], this.starts[index + 1] - 1])];
    if (ends.every((at) => this.tokens[at] === String(at))) return this.range(index);
    const short = (text) => (text.length > Blocks.longest ? `${text.slice(0, Blocks.longest - 1)}…` : text);
    return `${this.range(index)}: ${ends.map((at) => short(visibleWord(this.tokenSpelling.text(this.tokens[at])))).join(" … ")}`;
  }
}

// The queries and keys of a text, made from the page's data.
function tokensOf({ pooled, blocks, queries, keys }) {
  if (!pooled) {
    const rows = new Tokens(queries);
    return { queries: rows, keys: keys ? new Tokens(keys) : rows };
  }
  const rows = new Blocks(queries, blocks[0]);
  return { queries: rows, keys: keys || blocks[0] !== blocks[1] ? new Blocks(keys ?? queries, blocks[1]) : rows };
}

// What the page says about a cell, for each kind of pooling.
const POOLED = {
  largest: {
    caption: () => say("Largest attention weight from a token of the row’s block to one of the column’s block"),
    where: (row, column) => say("Largest attention weight from one of tokens {0} to one of tokens {1}.", row, column),
    whereOfMean: (row, column) => say("Mean over heads of the largest attention weight from one of tokens {0} to one of tokens {1}.", row, column),
    about: () => say("A cell holds the largest attention weight in the block: one token of the row's block gives it to one token of the column's block. Rows of such numbers do not sum to 1, and many small attention weights of a block do not show."),
  },
  share: {
    caption: () => say("Share of attention that a token of the row’s block gives to the column’s block"),
    where: (row, column) => say("Attention that one of tokens {0} gives to all of tokens {1}: mean over {0}.", row, column),
    whereOfMean: (row, column) => say("Attention that one of tokens {0} gives to all of tokens {1}: mean over {0} and over heads.", row, column),
    about: () => say("A cell holds the share of attention that a token of the row's block gives to all tokens of the column's block, averaged over the row's block. Rows sum to 1. A single large attention weight hardly changes such an average."),
  },
};

// A sentence that says what a cell of a text's maps holds. text.unit is set if the maps are norm-weighted.
const captionOf = (text) => (text.pooled ? POOLED[text.pooled].caption() : text.unit ? say("Attention weight × norm of the value, row to column") : say("Attention from row to column"));

// The text that is always shown beside pooled maps, such as "Each cell is a block of 128 × 128 tokens".
function blocksNote(text) {
  const sizes = [text.queries.most, text.keys.most];
  const even = [text.queries, text.keys].every((side) => side.tokens.length % side.size === 0);
  const counts = [text.queries, text.keys].map((side) => side.tokens.length);
  return even ? say("Pooled maps of {0} × {1} tokens: each cell is a block of {2} × {3} tokens.", ...counts, ...sizes)
    : say("Pooled maps of {0} × {1} tokens: each cell is a block of at most {2} × {3} tokens.", ...counts, ...sizes);
}

// The part of the About text that says what a cell of a pooled map is, and what pooled maps do not show.
const aboutBlocks = (text) => [blocksNote(text), POOLED[text.pooled].about(),
  say("The mean of several heads is the mean of their numbers. What cannot be computed from blocks is left out: the measures of a head (previous, next, same and first token, separators, entropy, distance), distances between heads, comparisons, lines, the tinted text, and how a weight is computed.")].join(" ");

// The texts about blocks that Detail shows instead of its texts about words.
const readingOfBlocks = (text, { layer, head }) => ({
  where: ({ row, column }) => {
    if (column === null) return say("Row of tokens {0}.", text.queries.range(row));
    if (row === null) return say("Column of tokens {0}.", text.keys.range(column));
    return POOLED[text.pooled][layer === MEAN || head === MEAN ? "whereOfMean" : "where"](text.queries.range(row), text.keys.range(column));
  },
  ...(text.pooled === "largest" && { ofRow: () => "" }),  // no sentence about a row: a sum of largest weights has no meaning
});
