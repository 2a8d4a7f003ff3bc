const $ = (id) => document.getElementById(id);

// Sets custom properties that the style sheet reads; for example, {at: 3} sets --at to 3.
function setStyle(element, values) {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(`--${name}`, value);
}

// Makes a new element. Words of a text are written only to textContent and title, never as HTML.
function make(tag, {data = {}, aria = {}, style = {}, ...properties} = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  Object.assign(element.dataset, data);
  setStyle(element, style);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  element.append(...children);
  return element;
}

// A word in a bdi element, so that a right-to-left word does not reorder the text around it.
const word = (text, className = "word") => make("bdi", { className, textContent: text });

// Fills a strip with labels, one for each of the given tokens. Returns a map from a token's index to its label. blocked: the keys that no query may attend to.
function fillLabels(strip, tokens, indices, blocked) {
  const labels = indices.map((index, at) => make('bdi', {
                               className: `label${tokens.special.has(index) ? ' special' : ''}${tokens.unknown.has(index) ? ' unknown' : ''}${blocked?.has(index) ? ' blocked' : ''}`,
                               textContent: tokens.word(index),
                               title: tokens.note(index),
                               data: {index},
                               style: {at},
                             }));
  strip.replaceChildren(...labels);
  return new Map(indices.map((index, at) => [index, labels[at]]));
}

// Moves a class from the labels in `before` to the labels of the spot's row word and column word. Returns the labels that have the class now.
function markLabels(before, className, queryLabels, keyLabels, spot) {
  for (const label of before) label.classList.remove(className);
  const labels = [queryLabels.get(spot?.row), keyLabels.get(spot?.column)].filter(Boolean);
  for (const label of labels) label.classList.add(className);
  return labels;
}

const fillSelect = (select, options) => select.replaceChildren(...options.map(([value, name]) => new Option(name, value)));

// Connects a strip of labels to events: while the pointer is at a label, the word's row or column is shown; a click chooses it. side: whether the labels are
// those of rows or of columns.
function followLabels(strip, side, events) {
  const spot = (event) => {
    const label = event.target.closest(".label");
    return label && { row: null, column: null, [side]: Number(label.dataset.index) };
  };
  strip.addEventListener("pointermove", (event) => events.hover(spot(event)));
  strip.addEventListener("pointerleave", () => events.hover(null));
  strip.addEventListener("click", (event) => events.choose(spot(event)));
}

// Runs many small jobs without blocking the page: at most `budget` ms of them in each frame. It stops when cancelled() returns true.
async function inSlices(jobs, cancelled, budget = 12) {
  let start = performance.now();
  for (const job of jobs) {
    if (performance.now() - start > budget) {
      await new Promise(requestAnimationFrame);
      if (cancelled()) return;
      start = performance.now();
    }
    job();
  }
}
