// Shows an image and its patches. The patches are tinted like the words of a text.

// Converts an image from the format that viewer/sides.cc writes. The result has the member `url`, an image that the browser can show.
function imageOf(json) {
  const canvas = make("canvas", { width: json.width, height: json.height });
  const data = new ImageData(json.width, json.height), bytes = atob(json.pixels), { channels = 1 } = json;
  data.data.forEach((_, i, all) => { all[i] = i % 4 === 3 ? 255 : bytes.charCodeAt(channels * Math.floor(i / 4) + (i % 4) % channels); });
  canvas.getContext("2d").putImageData(data, 0, 0);
  return { ...json, url: canvas.toDataURL() };
}

// True if the image data of a page that the reader has opened are valid. patches: the number of tokens that are not special.
const imageFits = ({ width, height, rows, columns, channels = 1, pixels }, patches) => [width, height].every((size) => size > 0 && size <= 4096) && rows * columns === patches && [1, 3].includes(channels) && pixels.length === 4 * Math.ceil((channels * width * height) / 3);

class Patches extends Running {
  static directions = () => [say("Where a patch looks"), say("Who looks at a patch")];
  static hint = () => say("Tinted: the mean attention to each patch. Click a patch.");

  element = make("div", { className: "running image" });

  // noted: true if the untinted image is shown too.
  build(tokens, text, indices, noted) {
    super.build(tokens, tokens.pieces.map((piece, index) => ({ text: tokens.special.has(index) ? piece : "" })), indices, noted);
    const { image } = tokens, squares = [], special = [];
    for (const [index, element] of this.words) (tokens.special.has(index) ? special : squares).push(element);
    this.over = noted ? squares.map((square) => square.cloneNode()) : [];
    this.element.replaceChildren(make("div", {}, ...special), ...[this.over, squares].filter((all) => all.length).map((all) => make("div", { className: "patches" }, ...(all === squares ? [] : [make("img", { src: image.url, alt: "" })]), ...all)));
    setStyle(this.element, { columns: image.columns, aspect: image.width / image.height });
  }

  light(indices) {
    super.light(indices);
    for (const square of this.over) square.classList.toggle("lit", indices.includes(Number(square.dataset.index)));
  }
}
