// The chosen pair of words with its attention weight, and the largest attention weights of its row and column.

class Detail {
  static listed = 6;

  // spot: null or { row, column }; row or column may be null. reading: texts to show instead of those about attention weights; `reading` in compare.js has an
  // example.
  show(text, weights, shown, spot, reading = {}) {
    const { map = weights, suffix = "", show = (weight) => text.decoder.show(weight) } = reading;
    this.reading = reading;
    $("readout").replaceChildren(...this.#headline(text, weights, spot));
    $("where").textContent = spot && reading.where ? reading.where(spot) : Detail.#where(text, spot);
    $("detail").classList.toggle("idle", !spot);  // the idle part is invisible but keeps its space, so that the page does not move under the pointer
    if (!spot) return;
    const width = text.keys.size;
    const ofRow = spot.row === null ? null : shown.columns.map((column) => [column, map[spot.row * width + column]]);
    const ofColumn = spot.column === null ? null : shown.rows.map((row) => [row, map[row * width + spot.column]]);
    this.#list("row", ofRow, text.keys, spot.column, spot.row !== null && sayParts("Where “{0}” looks{1}", word(Detail.#whole(text.queries, spot.row)), suffix), show);
    this.#list("column", ofColumn, text.queries, spot.row, spot.column !== null && sayParts("Who looks at “{0}”{1}", word(Detail.#whole(text.keys, spot.column)), suffix), show);
    $("row-sum").textContent = !ofRow ? "" : reading.ofRow?.(spot.row) ?? say("Sum of the row: {0}", this.#sum(text, ofRow));
    $("column-sum").textContent = ofColumn && !reading.ofRow ? say("Sum of the column: {0}", this.#sum(text, ofColumn)) : "";
  }

  // A sentence for screen readers, such as "fox → jumps 0.1234". For a single word it names the words to which this word has the largest weights.
  sentence(text, map, spot) {
    if (!spot) return "";
    const width = text.keys.size;
    const most = (tokens, weightOf) => [...Array(tokens.size).keys()].map((index) => [tokens.word(index), weightOf(index)]).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, weight]) => `${name} ${text.decoder.show(weight)}`).join(", ");
    if (spot.column === null) return say("Where “{0}” looks: {1}", text.queries.word(spot.row), most(text.keys, (column) => map[spot.row * width + column]));
    if (spot.row === null) return say("Who looks at “{0}”: {1}", text.keys.word(spot.column), most(text.queries, (row) => map[row * width + spot.column]));
    return `${text.queries.word(spot.row)} → ${text.keys.word(spot.column)} ${this.#weight(text, map, spot)}`;
  }

  #weight(text, map, spot) { return this.reading?.weight?.(spot) ?? text.decoder.show(map[spot.row * text.keys.size + spot.column]); }

  #headline(text, map, spot) {
    if (!spot) return [make("span", { className: "quiet", textContent: say("Point at a cell or a word.") })];
    if (spot.column === null) return [word(text.queries.word(spot.row)), make("span", { textContent: " → …" })];
    if (spot.row === null) return [make("span", { textContent: "… → " }), word(text.keys.word(spot.column))];
    const weight = make("output", { className: "weight", textContent: this.#weight(text, map, spot) });
    return [word(text.queries.word(spot.row)), make("span", { textContent: " → " }), word(text.keys.word(spot.column)), " ", weight];
  }

  static #where(text, spot) {
    if (!spot) return text.pooled || text.unit ? captionOf(text) : say("Attention from row to column.");
    if (spot.column === null) return say("Row {0}: where it looks.", spot.row);
    if (spot.row === null) return say("Column {0}: who looks at it.", spot.column);
    return text.unit ? say("Attention weight × norm of the value, from row {0} to column {1}.", spot.row, spot.column) : say("Attention from row {0} to column {1}.", spot.row, spot.column);
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

  static #whole(tokens, index) { return tokens.long ? tokens.note(index) : tokens.word(index); }

  #sum(text, entries) { return text.decoder.show(entries.reduce((sum, [, weight]) => sum + weight, 0)); }
}
