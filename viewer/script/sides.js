// Reads and checks what a set of maps has besides words and attention weights: axes, masked keys, links and gates. Shows the tabs, one for each set of a text,
// and the blocks of a text with segments.

// Reads the format that viewer/sides.cc writes.
function sidesOf(json, decoder) {
  const { name = "", group = 0, bias = "", axes = ["", ""], blocked = [], links = null, gate = null, gate_width: gateWidth = 0 } = json;
  return {
    name, group, bias, axes, gateWidth, blocked: new Set(blocked),
    links: links && { sure: links.sure.map(([row, column]) => ({ row, column })), possible: links.possible.map(([row, column]) => ({ row, column })) },
    gate: (layer, head) => (gate && layer !== MEAN && head !== MEAN ? decoder.decode(gate[layer][head]) : null),  // [T * V]
  };
}

// True if these data of a page that the reader has opened are valid. length(numbers): the length of the base64 text for this many numbers.
function annotationsAreValid({ name = "", axes = ["", ""], blocked = [], links, gate, gate_width: gateWidth, group = 0, layers, heads, image, queries }, rows, columns, length) {
  const place = (index, count) => Number.isInteger(index) && index >= 0 && index < count;
  const within = ([row, column]) => place(row, rows) && place(column, columns);
  const gates = () => Number.isInteger(gateWidth) && gate.length === layers && gate.every((codes) => codes.length === heads && codes.every((one) => typeof one === "string" && one.length === length(rows * gateWidth)));
  return [name, ...axes].every((text) => typeof text === "string") && axes.length === 2 && Number.isInteger(group) && blocked.every((column) => place(column, columns)) && (!links || [...links.sure, ...links.possible].every(within)) && (!gate || gates()) && (!image || imageFits(image, rows - new Set(queries.special).size));
}

// The masked keys, links and gates of merged words. A word is masked if all its pieces are masked. It has the links of its pieces, and the mean of the pieces'
// gates.
function mergedSides(source, rows, columns) {
  const wordOf = (groups) => new Map(groups.flatMap((places, at) => places.map((index) => [index, at])));
  const row = wordOf(rows), column = wordOf(columns);
  const once = (links) => [...new Map(links.map((link) => [`${row.get(link.row)} ${column.get(link.column)}`, { row: row.get(link.row), column: column.get(link.column) }])).values()];
  const { name, group, bias, axes, gateWidth } = source;
  return {
    name, group, bias, axes, gateWidth,
    blocked: new Set([...columns.keys()].filter((at) => columns[at].every((index) => source.blocked.has(index)))),
    links: source.links && { sure: once(source.links.sure), possible: once(source.links.possible) },
    gate: (layer, head) => {
      const gate = source.gate(layer, head);
      return gate && Float32Array.from({ length: rows.length * gateWidth }, (_, i) => rows[Math.floor(i / gateWidth)].reduce((sum, t) => sum + gate[t * gateWidth + (i % gateWidth)], 0) / rows[Math.floor(i / gateWidth)].length);
    },
  };
}

// The names of the two axes: that of the columns, then that of the rows.
const axisNames = ({ axes: [query, key] }) => [key ? `${key} →` : say("key →"), query ? `${query} ↓` : say("query ↓")];

// ---- Tabs ----

// Words of tab names that are translated. A tab's name is a list of words with · between them; words that are not listed here are not translated.
const TAB_WORDS = {
  "Self-attention": () => say("Self-attention"), "Cross-attention": () => say("Cross-attention"), Encoder: () => say("Encoder"), Decoder: () => say("Decoder"),
  Windows: () => say("Windows"), Text: () => say("Text"), Image: () => say("Image"), Audio: () => say("Audio"), Video: () => say("Video"), Multimodal: () => say("Multimodal"),
  Time: () => say("Time"), Space: () => say("Space"), Rows: () => say("Rows"), Columns: () => say("Columns"), Pooled: () => say("Pooled"),
};
const TAB_PATTERNS = [
  [/^(\d+) heads?$/, (count) => say("{0} {0|head|heads}", Number(count))], [/^(\d+) sequences?$/, (count) => say("{0} {0|sequence|sequences}", Number(count))],
  [/^layers? (\S+)$/, (range) => say("layers {0}", range)], [/^from (\d+)$/, (first) => say("from query {0}", first)],
  [/^Pooling heads$/, () => say("Pooling heads")],
];
function tabWord(word) {
  const [pattern, name] = TAB_PATTERNS.find(([pattern]) => pattern.test(word)) ?? [];
  return pattern ? name(pattern.exec(word)[1]) : TAB_WORDS[word]?.() ?? word;
}
const BIASES = { with: () => say("With the pair bias"), without: () => say("Without the pair bias") };

const tabName = (text) => [text.name.split(" · ").map(tabWord).join(" · "), BIASES[text.bias]?.()].filter(Boolean).join(" · ");
const tabsOf = (texts, at) => [...texts.keys()].filter((index) => texts[index].group === texts[at].group);
const firstsOf = (texts) => [...texts.keys()].filter((index) => index === 0 || texts[index].group !== texts[index - 1].group);

// Finds the set of another text that has the same tab as the set that is shown.
function sameTab(texts, from, first) {
  const there = tabsOf(texts, first);
  return there[tabsOf(texts, from).indexOf(from)] ?? first;
}

function showTabs(element, texts, at, open) {
  const tabs = tabsOf(texts, at);
  element.hidden = tabs.length < 2;
  element.replaceChildren(...tabs.map((index) => {
    const button = make("button", { type: "button", textContent: tabName(texts[index]) || say("Maps"), data: { tab: index }, aria: { pressed: String(index === at) } });
    button.addEventListener("click", () => open(index));
    return button;
  }));
}

// ---- Blocks ----

const segmentsOf = (tokens) => [...new Set(tokens.segment)].sort((a, b) => a - b);
const segmentName = (segment) => (segment < 26 ? String.fromCharCode(65 + segment) : String(segment));

// The names of the blocks of a map: ["0-0", "0-1", …]. Block i-j has the rows of segment i and the columns of segment j. A text with one segment, or with very
// many, has no blocks.
function blocksOf(text) {
  const rows = segmentsOf(text.queries), columns = segmentsOf(text.keys);
  const several = rows.length * columns.length;
  return several > 1 && several <= 16 ? rows.flatMap((row) => columns.map((column) => `${row}-${column}`)) : [];
}

const blockName = (block) => block.split("-").map((segment) => segmentName(Number(segment))).join(" → ");

// Converts the name of a block to { row, column }, the segments of its rows and of its columns. Both are null, which means all words, if the text has no such
// block.
function blockOf(text, name) {
  const [row, column] = blocksOf(text).includes(name) ? name.split("-").map(Number) : [null, null];
  return { row, column };
}
