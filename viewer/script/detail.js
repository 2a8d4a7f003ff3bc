// The chosen pair of words with its attention weight, and the largest attention weights of its row and column.

class Detail {
  static listed = 6;

  // spot: null or { row, column }, of which one may be null. reading: what a view tells instead of attention weights (`reading` in compare.js).
  show(text, weights, shown, spot, reading = {}) {
    const { map = weights, suffix = "", show = (weight) => text.decoder.show(weight) } = reading;
    this.reading = reading;
    $("readout").replaceChildren(...this.#headline(text, weights, spot));
    $("where").textContent = Detail.#where(spot);
    $("detail").classList.toggle("idle", !spot);  // invisible but keeps its space: the page must not move under the pointer
    if (!spot) return;
    const width = text.keys.size;
    const ofRow = spot.row === null ? null : shown.columns.map((column) => [column, map[spot.row * width + column]]);
    const ofColumn = spot.column === null ? null : shown.rows.map((row) => [row, map[row * width + spot.column]]);
    this.#list("row", ofRow, text.keys, spot.column, spot.row !== null && ["Where “", word(text.queries.word(spot.row)), `” looks${suffix}`], show);
    this.#list("column", ofColumn, text.queries, spot.row, spot.column !== null && ["Who looks at “", word(text.keys.word(spot.column)), `”${suffix}`], show);
    $("row-sum").textContent = !ofRow ? "" : reading.ofRow?.(spot.row) ?? `Sum of the row: ${this.#sum(text, ofRow)}`;
    $("column-sum").textContent = ofColumn && !reading.ofRow ? `Sum of the column: ${this.#sum(text, ofColumn)}` : "";
  }

  // "fox → jumps 0.1234", for screen readers.
  sentence(text, map, spot) {
    if (!spot || spot.row === null || spot.column === null) return "";
    return `${text.queries.word(spot.row)} → ${text.keys.word(spot.column)} ${this.#weight(text, map, spot)}`;
  }

  #weight(text, map, spot) { return this.reading?.weight?.(spot) ?? text.decoder.show(map[spot.row * text.keys.size + spot.column]); }

  #headline(text, map, spot) {
    if (!spot) return [make("span", { className: "quiet", textContent: "Point at a cell or a word." })];
    if (spot.column === null) return [word(text.queries.word(spot.row)), make("span", { textContent: " → …" })];
    if (spot.row === null) return [make("span", { textContent: "… → " }), word(text.keys.word(spot.column))];
    const weight = make("output", { className: "weight", textContent: this.#weight(text, map, spot) });
    return [word(text.queries.word(spot.row)), make("span", { textContent: " → " }), word(text.keys.word(spot.column)), " ", weight];
  }

  static #where(spot) {
    if (!spot) return "Attention from row word to column word.";
    if (spot.column === null) return `Row ${spot.row}: where this word looks.`;
    if (spot.row === null) return `Column ${spot.column}: who looks at this word.`;
    return `Attention from row ${spot.row} to column ${spot.column}.`;
  }

  #list(side, entries, tokens, chosen, title, show) {
    $(`${side}-title`).replaceChildren(...(title || []));
    $(`${side}-title`).parentElement.classList.toggle("idle", !title);
    const largest = (entries ?? []).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, Detail.listed);
    $(`${side}-list`)
        .replaceChildren(...largest.map(
            ([index, weight]) => make(
                'li', {className: `${index === chosen ? 'lit' : ''}${!this.reading.map ? '' : weight < 0 ? ' less' : ' more'}`, title: tokens.note(index), style: {part: Math.abs(weight)}},
                word(tokens.word(index)), make('span', {className: 'bar-track'}, make('span', {className: 'bar-fill'})),
                make('span', {className: 'number', textContent: show(weight)}))));
  }

  #sum(text, entries) { return text.decoder.show(entries.reduce((sum, [, weight]) => sum + weight, 0)); }
}
