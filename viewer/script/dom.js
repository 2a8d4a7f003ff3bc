const $ = (id) => document.getElementById(id);

// A new element. Words of a text enter the page through textContent and title only, never as HTML.
function make(tag, { data = {}, aria = {}, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  Object.assign(element.dataset, data);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  element.append(...children);
  return element;
}

// A word in a bdi element: a right-to-left word does not reorder the text around it.
const word = (text, className = "word") => make("bdi", { className, textContent: text });

const fillSelect = (select, options) => select.replaceChildren(...options.map(([value, name]) => new Option(name, value)));

// Pointing at a word of a strip chooses its whole row or column; `side` says which.
function followLabels(strip, side, events) {
  const spot = (event) => {
    const label = event.target.closest(".label");
    return label && { row: null, column: null, [side]: Number(label.dataset.index) };
  };
  strip.addEventListener("pointermove", (event) => events.hover(spot(event)));
  strip.addEventListener("pointerleave", () => events.hover(null));
  strip.addEventListener("click", (event) => events.choose(spot(event)));
}

// Runs many small jobs, at most 12 ms of them in each frame, so that the page stays responsive. Stops when cancelled() is true.
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
