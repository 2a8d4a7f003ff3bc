// Shows which heads link two chosen words: for every head its weight from one word to the other, and its mean weight over other pairs at the same distance.

// A head is marked if the mean weight of its other pairs at the same distance is at least MOSTLY: such a head looks at this distance whatever the words are.
const MOSTLY = 0.5;

// The mean weight of a head over all other pairs that have the distance between `row` and `column`; NaN if there are no such pairs. Pairs with special tokens
// count only if `row` or `column` is a special token.
function baseline(text, layer, head, row, column) {
  if (text.pooled || !isSequence(text)) return NaN;
  const { special } = text.queries, distance = column - row;
  const counts = special.has(row) || special.has(column) ? () => true : (index) => !special.has(index);
  let sum = 0, count = 0;
  for (let t = Math.max(0, -distance); t < text.queries.size && t + distance < text.keys.size; ++t) {
    if (t === row || !counts(t) || !counts(t + distance)) continue;
    sum += text.weight(layer, head, t, t + distance);
    ++count;
  }
  return sum / count;
}

const distanceName = (distance) => (distance === 0 ? say("at itself") : distance < 0 ? say("{0} {0|token|tokens} back", -distance) : say("{0} {0|token|tokens} ahead", distance));

class Link {
  constructor({ grid, pin, open, rank }) {
    Object.assign(this, { grid, pin, open });
    this.selects = [$("link-query"), $("link-key")];
    const chosen = (select) => (select.value === "" ? null : Number(select.value));
    for (const select of this.selects) select.addEventListener("change", () => pin({ row: chosen(this.selects[0]), column: chosen(this.selects[1]) }));
    $("link-rank").addEventListener("change", () => rank($("link-rank").value));
    $("link-clear").addEventListener("click", () => { pin(null); this.selects[0].focus(); });
  }

  build(text) {
    const options = (tokens) => [["", "–"], ...tokens.words.map((name, index) => [index, text.pooled || tokens.long ? name : `${index}: ${name}`])];
    $("link-words").hidden = Boolean(text.pooled || text.queries.image);
    $("link-patches").hidden = !text.queries.image;
    $("link-blocks").hidden = !text.pooled;
    fillSelect(this.selects[0], options(text.queries));
    fillSelect(this.selects[1], options(text.keys));
  }

  show(text, spot, rank, look) {
    this.selects[0].value = spot?.row ?? "";
    this.selects[1].value = spot?.column ?? "";
    $("link-rank").value = rank;
    const pair = spot && spot.row !== null && spot.column !== null;
    $("link-clear").hidden = !spot;
    $("link-list").hidden = $("link-rank-control").hidden = !pair;
    this.heads = [];
    if (!pair) {
      $("link-note").textContent = text.pooled ? say("Choose two blocks here, or click a cell of a head: thumbnails fade where its number is small.") : say("Choose from both lists, or click a cell of a head: thumbnails fade where a head does not link them.");
      return this.grid.tint(null);
    }
    const { row, column } = spot;
    this.heads = headsOf(text).map(({ layer, head }) => ({ layer, head, weight: text.weight(layer, head, row, column), usual: baseline(text, layer, head, row, column) }));
    const key = rank === "above" ? ({ weight, usual }) => weight - (Number.isNaN(usual) ? 0 : usual) : ({ weight }) => weight;
    this.heads.sort((a, b) => (key(b) || 0) - (key(a) || 0));
    this.where = distanceName(column - row);
    $("link-note").textContent = text.pooled ? captionOf(text) : isSequence(text)
      ? say("Usual: the mean weight that the head gives {0} elsewhere in this text; heads with {1} or more are marked.", this.where, MOSTLY)
      : isSelf(text) ? say("Patches have no order, so there is no usual weight.")
      : say("Row and column words come from different texts, so a distance between them has no meaning.");
    const show = (weight) => text.decoder.show(weight);
    $("link-list").replaceChildren(...this.heads.map(({ layer, head, weight, usual }) => {
      const marked = usual >= MOSTLY;
      const open = make("button", { type: "button", textContent: `${layer} · ${head}`, title: titleOf(layer, head), aria: { label: titleOf(layer, head) } });
      open.addEventListener("click", () => this.open(layer, head));
      const bar = make("span", { className: "bar-track", aria: { hidden: true } }, make("span", { className: "bar-fill", style: { part: weight } }), ...(Number.isNaN(usual) ? [] : [make("span", { className: "usual", style: { part: usual } })]));
      const numbers = Number.isNaN(usual) ? [make("b", { textContent: show(weight) })] : [make("b", { textContent: show(weight) }), ` · ${say("usual {0}", show(usual))}`];
      return make("li", { className: marked ? "marked" : "", data: { layer, head } }, open, bar, make("span", { className: "number" }, ...numbers),
                  ...(marked ? [make("span", { className: "mark", textContent: say("mostly looks {0}", this.where) })] : []));
    }));
    const pairName = `${text.queries.word(row)} → ${text.keys.word(column)}`;
    this.grid.tint((layer, head) => text.weight(layer, head, row, column), (weight) => `${pairName} ${show(weight)}`, look);
  }
}
