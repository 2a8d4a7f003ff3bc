// Shades the masked keys of a matrix, and shows the gates of its rows as a strip beside it.

const blockedShades = (text, { columns }) => columns.flatMap((column, at) => (text.blocked.has(column) ? [make("div", { className: "blocked-shade", style: { at } })] : []));

class GateStrip {
  static widest = 96;  // largest width of the strip in CSS pixels

  constructor() {
    this.canvas = make("canvas");
    this.name = make("span", { className: "gate-name" });
    this.head = make("div", { className: "strip gate-head" }, this.name);
    this.element = make("div", { className: "gate" }, this.canvas);
  }

  draw(text, shown, look, place) {
    this.gate = text.gate(place.layer, place.head);
    this.head.hidden = this.element.hidden = !this.gate;
    if (!this.gate) return;
    this.width = text.gateWidth;
    this.name.textContent = say("gate");
    this.element.title = say("Gate of each row: what the head’s output is multiplied by, one column for each of its {0} numbers.", this.width);
    paint(this.canvas, this.gate, this.width, shown.rows, [...Array(this.width).keys()], look);
    setStyle(this.element, { width: `${Math.min(GateStrip.widest, Math.max(16, 4 * this.width))}px` });
  }

  // The width in CSS pixels that the strip takes on the page.
  get space() { return this.element.hidden ? 0 : this.element.offsetWidth + 8; }

  // A sentence such as "Gate of “fox”: mean 0.53, from 0.1 to 0.9".
  static note(text, place, row, show) {
    const gate = row === null ? null : text.gate(place.layer, place.head);
    if (!gate || text.gateWidth === 0) return "";
    const numbers = [...gate.subarray(row * text.gateWidth, (row + 1) * text.gateWidth)];
    return say("Gate of “{0}”: mean {1}, from {2} to {3}.", text.queries.word(row), ...[numbers.reduce((sum, one) => sum + one, 0) / numbers.length, Math.min(...numbers), Math.max(...numbers)].map(show));
  }
}
