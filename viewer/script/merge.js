// Merges pieces into words. Attention to a word is the sum over its pieces; attention from a word is the mean over its pieces. So the sums of the rows do not
// change.

// For each word the indices of its pieces, such as [[0], [1, 2], …]. Special and unknown tokens are not merged.
function groupsOf(tokens) {
  const alone = (index) => tokens.special.has(index) || tokens.unknown.has(index);
  const groups = [];
  tokens.pieces.forEach((piece, index) => {
    const begins = index === 0 || alone(index) || alone(index - 1) || tokens.segment[index] !== tokens.segment[index - 1] || tokens.spelling.starts(piece);
    if (begins) groups.push([index]);
    else groups.at(-1).push(index);
  });
  return groups;
}

// The tokens after merging, in the format of the page's data.
function mergedTokens(tokens, groups) {
  const of = (wanted) => [...groups.keys()].filter((at) => wanted.has(groups[at][0]));
  const textOf = (index, at, places) => {
    const byte = tokens.bytes.get(index);  // decoded only if the word has all bytes of the character
    if (byte && places.includes(byte.first) && places.includes(byte.last)) return byte.text;
    return at > 0 ? tokens.spelling.text(tokens.pieces[index]).replace(/^##/, "") : tokens.spelling.text(tokens.pieces[index]);
  };
  const joined = (places) => places.map(textOf).join("");
  return {
    pieces: groups.map(joined), special: of(tokens.special), unknown: of(tokens.unknown).map((at) => [at, tokens.unknown.get(groups[at][0])]),
    segment: groups.map((places) => tokens.segment[places[0]]), words: true,
  };
}

class MergedText extends Text {
  constructor(source) {
    const rows = groupsOf(source.queries), columns = groupsOf(source.keys);
    const { text, layers, heads, queries, keys } = source;
    super({ text, layers, heads, queries: mergedTokens(queries, rows), ...(keys !== queries && { keys: mergedTokens(keys, columns) }) }, source.decoder);
    Object.assign(this, { source, rows, columns, without: source.without, learnedQueries: source.learnedQueries, ...mergedSides(source, rows, columns) });
  }

  // True if any word has more than one piece.
  get merges() { return !this.source.image && (this.rows.length < this.source.queries.size || this.columns.length < this.source.keys.size); }

  one(layer, head, row, column) {
    return this.rows[row].reduce((sum, t) => sum + this.columns[column].reduce((total, s) => total + this.source.weight(layer, head, t, s), 0), 0) / this.rows[row].length;
  }

  make(layer, head) {
    const map = this.source.map(layer, head), width = this.source.keys.size;
    const merged = new Float32Array(this.rows.length * this.columns.length);
    let at = 0;
    for (const row of this.rows) {
      for (const column of this.columns) {
        let sum = 0;
        for (const t of row) for (const s of column) sum += map[t * width + s];
        merged[at++] = sum / row.length;
      }
    }
    return merged;
  }
}
