const $ = (id) => document.getElementById(id);

// An element with properties (and dataset) set. Words of a text only ever enter the page through textContent and title.
function make(tag, { data = {}, aria = {}, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  Object.assign(element.dataset, data);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  element.append(...children);
  return element;
}

// A word, kept apart from the direction of what stands beside it.
const word = (text, className = "word") => make("bdi", { className, textContent: text });

const fillSelect = (select, options) => select.replaceChildren(...options.map(([value, name]) => new Option(name, value)));

// The words of a strip stand for whole rows or columns: `side` says which.
function followLabels(strip, side, events) {
  const spot = (event) => {
    const label = event.target.closest(".label");
    return label && { row: null, column: null, [side]: Number(label.dataset.index) };
  };
  strip.addEventListener("pointermove", (event) => events.hover(spot(event)));
  strip.addEventListener("pointerleave", () => events.hover(null));
  strip.addEventListener("click", (event) => events.choose(spot(event)));
}

// Runs many small jobs without holding up input: at most 12 ms of each frame. Stops when `cancelled()` says so.
async function inSlices(jobs, cancelled) {
  let start = performance.now();
  for (const job of jobs) {
    if (performance.now() - start > 12) {
      await new Promise(requestAnimationFrame);
      if (cancelled()) return;
      start = performance.now();
    }
    job();
  }
}
