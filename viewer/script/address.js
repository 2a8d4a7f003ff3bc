// Converts the page's state to its address (#layer=3&head=5…) and back.
const initial = { text: 0, layer: null, head: null, view: "auto", reading: "looks", beside: "layer", weighting: "attention", walk: "", kept: "", block: "all", special: "show", scale: "root", theme: "auto", lang: "auto", letters: "on", measure: "none", over: "text", sort: "off", least: "0", pieces: "apart", cover: "100", with: null, heads: "maps", x: "positional", y: "sink", order: "layer", row: null, column: null, rank: "weight", feature: "0", task: "", say: "" };
const LONGEST = 4000;  // a typed text is cut to this many characters when it is read from the address
const choices = { view: ["auto", "matrix", "lines", "read", "compare"], reading: ["looks", "looked"], beside: ["none", "layer", "kept"], special: Object.keys(SPECIAL), weighting: ["attention", "norm"], scale: Object.keys(SCALES), theme: ["auto", "light", "dark"], lang: ["auto", ...Object.keys(LANGUAGES)], letters: ["on", "off"], heads: ["maps", "scatter", "distances"], x: ["layer", ...Object.keys(MEASURES)], y: ["layer", ...Object.keys(MEASURES)], order: ["layer", "alike"], measure: ["none", ...Object.keys(MEASURES)], over: ["text", "all", "file"], sort: ["off", "on"],
                  least: Array.from({ length: 21 }, (_, i) => String(5 * i)),
                  pieces: ["apart", "merged"], cover: Array.from({ length: 20 }, (_, i) => String(5 * i + 5)), rank: ["weight", "above"] };

// The names of the heads that the reader keeps, such as "3.1" for layer 3, head 1.
const keptOf = (state) => (state.kept === "" ? [] : state.kept.split(","));

function stateOf(address, texts) {
  const given = new URLSearchParams(address.slice(1));
  const place = (name, count) => {
    const value = given.get(name);
    return value === MEAN ? MEAN : /^\d+$/.test(value ?? "") && Number(value) < count ? Number(value) : null;
  };
  const text = place("text", texts.length);
  const state = { ...initial, text: Number.isInteger(text) ? text : 0 };
  const { layers, heads } = texts[state.text] ?? { layers: 0, heads: 0 };
  const rollout = given.get("layer") === ROLLOUT && hasRollout(texts[state.text]);
  Object.assign(state, { layer: rollout ? ROLLOUT : place("layer", layers), head: place("head", heads) });
  const whole = (name, count) => (Number.isInteger(place(name, count)) ? place(name, count) : null);
  const { queries, keys } = texts[state.text] ?? { queries: { size: 0 }, keys: { size: 0 } };
  Object.assign(state, { row: whole("row", queries.size), column: whole("column", keys.size), feature: String(whole("feature", 1e6) ?? 0) });
  if (isWhole(state.layer)) state.head = MEAN;
  if (state.layer === null || state.head === null) state.layer = state.head = null;
  state.with = otherHeadOf(given.get("with"), texts, state.text) ? given.get("with") : null;
  for (const [name, allowed] of Object.entries(choices)) if (allowed.includes(given.get(name))) state[name] = given.get(name);
  if (data.live) Object.assign(state, { task: data.live.tasks.includes(given.get("task")) ? given.get("task") : initial.task, say: (given.get("say") ?? initial.say).slice(0, LONGEST) });
  if (/^\d{1,2}$/.test(given.get("walk") ?? "")) state.walk = given.get("walk");
  if (/^\d+-\d+$/.test(given.get("block") ?? "")) state.block = given.get("block");
  if (/^\d+\.\d+(,\d+\.\d+)*$/.test(given.get("kept") ?? "")) state.kept = given.get("kept");
  return Object.assign(state, settleWeighting(state, { weighting: state.weighting }));
}

// The parts of an address that do not fit this page, such as a layer beyond the last. `state` is stateOf(address).
const unknownParts = (address, state) => [...new URLSearchParams(address.slice(1))].filter(([name, value]) => !(name in initial) || String(state[name]) !== value).map((part) => part.join("=").slice(0, 60));

function addressOf(state) {
  const entries = Object.entries(state).filter(([name, value]) => value !== initial[name]);
  return entries.length ? `#${new URLSearchParams(entries)}` : "#";
}
