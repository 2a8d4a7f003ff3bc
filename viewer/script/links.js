// Known links: pairs of words that are known to belong together, such as the word alignment of a translation. Also measures how well the links of a head agree with them.

// The links of a head. It links each query word to the key word with the largest weight in the query's row. Special tokens and rows of zeros or NaN have no
// links.
function linksOfHead(text, map) {
  const columns = text.keys.shown(true), width = text.keys.size;
  return text.queries.shown(true).flatMap((row) => {
    let best = null;
    for (const column of columns) if (map[row * width + column] > (best === null ? 0 : map[row * width + best])) best = column;
    return best === null ? [] : [{ row, column: best }];
  });
}

// The alignment error rate (Och and Ney 2003, equation 39): 1 - (|A and S| + |A and P|) / (|A| + |S|), where A are the links of the head, S the sure links,
// and P the sure and possible links. Links of special tokens are left out.
function alignment(text, map) {
  const own = linksOfHead(text, map);
  const key = ({ row, column }) => `${row} ${column}`;
  const between = (links) => links.filter(({ row, column }) => !text.queries.special.has(row) && !text.keys.special.has(column)).map(key);
  const sure = new Set(between(text.links.sure)), possible = new Set([...sure, ...between(text.links.possible)]);
  const inSure = own.filter((link) => sure.has(key(link))).length, inPossible = own.filter((link) => possible.has(key(link))).length;
  return { links: own.length, sure: sure.size, inSure, inPossible, rate: own.length + sure.size === 0 ? NaN : 1 - (inSure + inPossible) / (own.length + sure.size) };
}

const errorRate = (value) => (Number.isNaN(value) ? "NaN" : value.toFixed(3));

// A sentence that shows how the alignment error rate follows from the numbers of links.
function alignmentNote(text, map) {
  const { links, sure, inSure, inPossible, rate } = alignment(text, map);
  return say("Alignment error rate 1 − ({0} + {1}) / ({2} + {3}) = {4}: of this head’s {2} links, {0} are sure and {1} sure or possible; {3} are sure in all. A head’s links: from each row word to its column word with the largest weight. Links of special tokens do not count.", inSure, inPossible, links, sure, errorRate(rate));
}

// Of the known links those whose two words are shown: [{ row, column, i, j, sure }]. row and column are the indices of the words in the text, i and j their
// places on the screen. sure is false for a link that is only possible.
function shownLinks(text, { rows, columns }) {
  if (!text.links) return [];
  const at = (indices) => new Map(indices.map((index, place) => [index, place]));
  const i = at(rows), j = at(columns);
  const sure = text.links.sure.map((link) => ({ ...link, sure: true })), seen = new Set(sure.map(({ row, column }) => `${row} ${column}`));
  return [...sure, ...text.links.possible.filter(({ row, column }) => !seen.has(`${row} ${column}`)).map((link) => ({ ...link, sure: false }))]
    .filter(({ row, column }) => i.has(row) && j.has(column)).map((link) => ({ ...link, i: i.get(link.row), j: j.get(link.column) }));
}

// Makes frames that mark the cells of known links in a matrix.
const linkOutlines = (text, shown) => shownLinks(text, shown).map(({ i, j, sure }) => make("div", { className: `gold${sure ? "" : " possible"}`, style: { row: i, column: j } }));

// Draws known links behind the lines of a head. middle(place) is the vertical middle of the word at this place.
function strokeLinks(pen, text, shown, width, middle, colour) {
  pen.save();
  pen.strokeStyle = colour;
  pen.lineWidth = 5;
  pen.globalAlpha = 0.8;
  for (const { i, j, sure } of shownLinks(text, shown)) {
    pen.setLineDash(sure ? [] : [3, 5]);
    pen.beginPath();
    pen.moveTo(0, middle(i));
    pen.bezierCurveTo(width / 3, middle(i), (2 * width) / 3, middle(j), width, middle(j));
    pen.stroke();
  }
  pen.restore();
}
