// Colours of attention weights.

// The scales of colours. position() maps an attention weight to its place on the ramp, from 0 to 1; `largest` is the largest attention weight of the same map.
const SCALES = {
  one: {
    name: () => say("linear"),
    position: (weight) => weight,
    ticks: () => [[0, "0"], [0.25, "0.25"], [0.5, "0.5"], [0.75, "0.75"], [1, "1"]],
  },
  root: {
    name: () => say("square root"),
    position: (weight) => Math.sqrt(weight),
    ticks: () => [0, 0.01, 0.1, 0.25, 0.5, 1].map((weight) => [Math.sqrt(weight), String(weight)]),
  },
  log: {
    name: () => say("logarithmic"),
    position: (weight) => (weight <= 0.001 ? 0 : 1 + Math.log10(weight) / 3),
    ticks: () => [[0, "≤ 0.001"], [1 / 3, "0.01"], [2 / 3, "0.1"], [1, "1"]],
  },
  own: {
    name: () => say("per head"),
    position: (weight, largest) => (largest > 0 ? weight / largest : 0),
    ticks: () => [[0, "0"], [1, say("largest")]],
    note: () => say("Each map is relative to its largest weight. Do not compare colours between heads."),
  },
};

// The colour space Oklab (Björn Ottosson, 2020). Equal distances in it look equal, so linear interpolation between two colours gives an even ramp.
const OKLAB_TO_LMS = [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]];
const LMS_TO_RGB = [[4.0767416621, -3.3077115913, 0.2309699292], [-1.2684380046, 2.6097574011, -0.3413193965],
                    [-0.0041960863, -0.7034186147, 1.707614701]];
const RGB_TO_LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                    [0.0883024619, 0.2817188376, 0.6299787005]];
const LMS_TO_OKLAB = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099],
                      [0.0259040371, 0.7827717662, -0.808675766]];

const times = (matrix, vector) => matrix.map((row) => row.reduce((sum, entry, i) => sum + entry * vector[i], 0));
const toLinear = (s) => (s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4);
const fromLinear = (x) => (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055);

function oklabOf(hex) {
  const rgb = [1, 3, 5].map((at) => toLinear(parseInt(hex.slice(at, at + 2), 16) / 255));
  return times(LMS_TO_OKLAB, times(RGB_TO_LMS, rgb).map(Math.cbrt));
}

// Converts a colour to a pixel of ImageData, as one little-endian 32-bit word.
function pixelOf(oklab) {
  const rgb = times(LMS_TO_RGB, times(OKLAB_TO_LMS, oklab).map((x) => x ** 3));
  const [red, green, blue] = rgb.map((x) => Math.round(255 * fromLinear(Math.min(1, Math.max(0, x)))));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// 256 colours, interpolated between the colours that the style sheet lists as --ramp or --diverging, and the colour --nan for NaN.
class Ramp {
  constructor(style, name = "--ramp") {
    const stops = style.getPropertyValue(name).split(",").map((stop) => oklabOf(stop.trim()));
    this.pixels = Uint32Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1);
      const left = Math.min(Math.floor(at), stops.length - 2);
      return pixelOf(stops[left].map((value, axis) => value + (stops[left + 1][axis] - value) * (at - left)));
    });
    this.nan = pixelOf(oklabOf(style.getPropertyValue("--nan").trim()));
    this.page = pixelOf(oklabOf(style.getPropertyValue("--page").trim()));
  }

  at(position) {
    return Number.isNaN(position) ? this.nan : this.pixels[Math.round(255 * Math.min(1, Math.max(0, position)))];
  }

  // The colour of a faded cell: a mixture of a quarter of the cell's colour and three quarters of the page's background.
  faded(pixel) {
    if (pixel === 0) return 0;
    const mixed = [0, 8, 16].map((shift) => Math.round((((pixel >>> shift) & 255) + 3 * ((this.page >>> shift) & 255)) / 4) << shift);
    return ((255 << 24) | mixed[0] | mixed[1] | mixed[2]) >>> 0;
  }

  // The pixel for a weight at a place on the ramp. It is transparent for a weight of exactly 0, so that the hatching below is visible.
  of(weight, position) { return weight === 0 ? 0 : this.at(position); }
}

// The two ramps of the page's style sheet. They are kept until the colours change, because a live page needs them after every keystroke.
function rampsOf(style) {
  const colours = ["--ramp", "--diverging", "--nan", "--page"].map((name) => style.getPropertyValue(name)).join(";");
  if (rampsOf.colours !== colours) Object.assign(rampsOf, { colours, made: { ramp: new Ramp(style), diverging: new Ramp(style, "--diverging") } });
  return rampsOf.made;
}

// Paints the given rows and columns of an attention map, one pixel for each cell; CSS enlarges the image. With block > 1, a pixel shows the weight of
// largest magnitude among `block` x `block` cells, because a mean would hide a single large weight.
function paint(canvas, map, stride, rows, columns, look, block = 1) {
  const width = Math.ceil(columns.length / block);
  const height = Math.ceil(rows.length / block);
  canvas.width = Math.max(1, width);
  canvas.height = Math.max(1, height);
  if (width === 0 || height === 0) return;
  const maxima = new Float32Array(width * height);
  const faded = new Uint8Array(look.faded ? width * height : 0);
  let largest = 0;
  rows.forEach((row, i) => {
    const start = Math.floor(i / block) * width;
    columns.forEach((column, j) => {
      const weight = map[row * stride + column];
      const at = start + Math.floor(j / block);
      const size = Math.abs(weight);
      if (!(size <= Math.abs(maxima[at]) || Number.isNaN(maxima[at]))) {  // a pixel is NaN if one of its cells is NaN
        maxima[at] = weight;
        if (look.faded) faded[at] = look.faded(row, column);
      }
      if (size > largest) largest = size;
    });
  });
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  maxima.forEach((weight, i) => { pixels[i] = look.ramp.of(weight, look.scale.position(weight, largest)); });
  faded.forEach((yes, i) => { if (yes) pixels[i] = look.ramp.faded(pixels[i]); });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Paints a bar with all colours of a ramp, and writes ticks below it. A tick is [place from 0 to 1, text].
function paintBar(canvas, ticks, look, marks) {
  const steps = Float32Array.from({ length: 256 }, (_, i) => i / 255 || TINY);
  paint(canvas, steps, 256, [0], [...steps.keys()], { ...look, scale: { position: (at) => at } });
  ticks.replaceChildren(...marks.map(([at, name]) => make("span", { textContent: name, style: { at } })));
}

// The largest magnitude of an attention weight or difference among the given rows and columns; NaN is ignored.
function largestOf(map, stride, rows, columns) {
  let largest = 0;
  for (const row of rows) for (const column of columns) if (Math.abs(map[row * stride + column]) > largest) largest = Math.abs(map[row * stride + column]);
  return largest;
}

const blockFor = (rows, columns, pixels) => Math.max(1, Math.ceil(Math.max(rows.length, columns.length) / pixels));
