// Shows one head with its words beside the thumbnails of all heads: the head under the pointer or with the focus. At first it is the head that Grid.draw()
// finds most striking.
class Preview {
  static width = 272;
  static longest = 112;  // a map with a word that is longer than this, in pixels, is drawn without words

  constructor(element, grid) {
    this.element = element;
    [this.name, , this.frame] = element.children;
    for (const kind of ["pointerover", "focusin"]) grid.element.addEventListener(kind, (event) => {
      const thumb = event.target.closest(".thumb");
      if (thumb && this.text) this.#draw(this.chosen = Grid.place(thumb));
    });
  }

  // key: while it stays the same, the preview keeps the head that the reader has chosen.
  begin(text, look, key) {
    if (key !== this.key) this.chosen = null;
    Object.assign(this, { text, look, key });
  }

  show(place) { this.#draw(this.chosen ?? place); }

  #draw([layer, head]) {
    const { text, look } = this, shown = look.placesOf(text), { rows, columns } = shown;
    this.name.textContent = titleOf(layer, head);
    const longest = Math.max(longestWord(text.queries, rows, 12), longestWord(text.keys, columns, 12));
    const room = Preview.width - 12, fitting = (width) => Math.min(32, width / Math.max(1, columns.length), 2 * Preview.width / Math.max(1, rows.length));
    const named = longest <= Preview.longest && fitting(room - longest) >= 9;
    const side = fitting(room - (named ? longest : 0)), figure = new Figure(look);
    Object.assign(figure, { width: 0, y: 0, most: 0 });
    mapFigure(figure, text, text.map(layer, head), shown, side, named ? Math.min(12, side - 1) : 0);
    const { root } = figure.drawing(), [width, height] = [figure.width - Figure.margin + 2, figure.y + 2];
    for (const [name, value] of Object.entries({ width, height, viewBox: `${Figure.margin} 0 ${width} ${height}`, role: "img", "aria-label": titleOf(layer, head) })) root.setAttribute(name, value);
    this.frame.replaceChildren(root);
  }
}
