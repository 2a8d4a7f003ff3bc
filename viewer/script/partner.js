// The controls that choose head B of a comparison. Head A is the open head.

class Partner {
  static nearest = 5;

  // Callbacks: changed(name) is called when the reader chooses another head B, whose name has the form of `nameOfOther`; opened(file) when the reader chooses
  // another page.
  constructor({ changed, swap, opened }) {
    this.changed = changed;
    this.text = make("select", { id: "other-text" });
    this.layer = make("select", { id: "other-layer" });
    this.head = make("select", { id: "other-head" });
    this.file = make("input", { type: "file", id: "other-file", accept: ".html,text/html", className: "unseen" });
    this.problem = make("p", { className: "note", hidden: true, role: "alert" });
    this.near = make("p", { className: "near" });
    this.textLabel = make("label", {}, sayOn("Text", make("span")), " ", this.text);
    const swapButton = sayOn("Swap A and B", make("button", { type: "button", id: "swap" }));
    const choices = make("div", { className: "choices" }, make("b", { textContent: "B" }), this.textLabel, make("label", {}, sayOn("Layer", make("span")), " ", this.layer), make("label", {}, sayOn("Head", make("span")), " ", this.head), swapButton,
                         sayOn("Or drop a page here", make("label", { className: "button" }, this.file, sayOn("Open another page…", make("span"))), "title"));
    this.element = make("div", { id: "partner" }, choices, this.problem, this.near);
    for (const select of [this.text, this.layer, this.head]) select.addEventListener("change", () => this.#choose());
    swapButton.addEventListener("click", swap);
    this.file.addEventListener("change", () => { opened(this.file.files[0]); this.file.value = ""; });
    this.near.addEventListener("click", (event) => { if (event.target.dataset.other) changed(event.target.dataset.other); });
    addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
    addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      opened(event.dataTransfer.files[0]);
    });
  }

  // names: the names of all texts; null for texts that cannot be compared. other: head B as { text, layer, head, named }. near: the heads of the text that are
  // most similar to A.
  show(names, other, text, near) {
    const { layers, heads } = text;
    const numbers = (count) => [...Array(count).keys(), MEAN].map((index) => [index, index === MEAN ? say("mean") : index]);
    fillSelect(this.text, [["", say("the same")], ...names.map((name, index) => [index, name]).filter(([, name]) => name !== null)]);
    fillSelect(this.layer, [...numbers(layers), ...(hasRollout(text) ? [[ROLLOUT, say("rollout")]] : [])]);
    fillSelect(this.head, numbers(heads));
    this.textLabel.hidden = names.length < 2;
    this.text.value = other.named ? other.text : "";
    this.layer.value = other.layer;
    this.head.value = other.head;
    this.head.disabled = isWhole(other.layer);
    const buttons = near.slice(0, Partner.nearest).map(({ layer, head, bits }) => make("button", { type: "button", title: titleOf(layer, head), data: { other: `${layer}.${head}` }, aria: { label: say("{0}, {1} bits", titleOf(layer, head), bits.toFixed(3)) } }, `${layer}·${head} ${bits.toFixed(2)}`));
    this.near.hidden = buttons.length === 0;
    this.near.replaceChildren(make("span", { className: "quiet", textContent: say("Most like A, distance in bits:") }), ...buttons);
  }

  complain(message) {
    this.problem.textContent = message;
    this.problem.hidden = message === "";
  }

  #choose() {
    const layer = this.layer.value;
    this.changed([layer, isWhole(layer) ? MEAN : this.head.value, ...(this.text.value === "" ? [] : [this.text.value])].join("."));
  }
}
