// A small picture of the whole matrix, shown while only a part of it is visible. A frame marks that part, and the pointer moves it. Hidden from screen
// readers, because the arrow keys of the matrix do the same.
class Minimap {
  static pixels = 96;  // the longer edge of the picture, in CSS pixels

  constructor(element, stage) {
    this.element = element;
    this.stage = stage;
    this.canvas = make("canvas");
    this.frame = make("div", { className: "minimap-frame" });
    element.append(this.canvas, this.frame);
    const move = (event) => {
      const box = this.canvas.getBoundingClientRect(), { across, down } = this.#visible();
      stage.scrollLeft = ((event.clientX - box.left) / box.width - across / 2) * this.matrix.cells.offsetWidth;
      stage.scrollTop = ((event.clientY - box.top) / box.height - down / 2) * this.matrix.cells.offsetHeight;
    };
    element.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      element.setPointerCapture(event.pointerId);
      move(event);
    });
    element.addEventListener("pointermove", (event) => { if (element.hasPointerCapture(event.pointerId)) move(event); });
    stage.addEventListener("scroll", () => this.#follow(), { passive: true });
  }

  // matrix: the Matrix that is on the stage; null if the stage has another view.
  show(matrix) {
    this.matrix = matrix;
    this.element.hidden = !matrix || (this.stage.scrollWidth <= this.stage.clientWidth + 1 && this.stage.scrollHeight <= this.stage.clientHeight + 1);
    if (this.element.hidden) return;
    if (this.painted !== matrix.paint) matrix.paint(blockFor(matrix.shown.rows, matrix.shown.columns, Minimap.pixels), this.canvas);
    this.painted = matrix.paint;
    const { offsetWidth, offsetHeight } = matrix.cells, scale = Minimap.pixels / Math.max(offsetWidth, offsetHeight);
    setStyle(this.element, { width: `${Math.max(8, offsetWidth * scale)}px`, height: `${Math.max(8, offsetHeight * scale)}px` });
    this.#follow();
  }

  // The visible part of the cells, as fractions of the whole matrix. The words at the edges do not scroll, and they cover the first cells.
  #visible() {
    const { stage, matrix: { cells } } = this;
    const share = (scrolled, room, size) => ({ from: Math.min(1, scrolled / size), part: Math.max(0, Math.min(1, room / size, 1 - scrolled / size)) });
    const x = share(stage.scrollLeft, stage.clientWidth - cells.offsetLeft, cells.offsetWidth), y = share(stage.scrollTop, stage.clientHeight - cells.offsetTop, cells.offsetHeight);
    return { left: x.from, across: x.part, top: y.from, down: y.part };
  }

  #follow() {
    if (!this.element.hidden) setStyle(this.frame, this.#visible());
  }
}
