// Measures of heads over further texts, whose maps are not in the page: the measures were computed when the page was made. Also names heads by their measures over
// several texts.

class OverTexts {
  // name: name of the set of maps whose heads were measured.
  constructor({ texts, tokens, layers, heads, values, name = "" }) {
    Object.assign(this, { tokens, layers, heads, values, name, texts: { length: texts }, ready: true });
  }

  // True if the heads of this text's maps are the heads that were measured. Maps in other tabs belong to other heads, even if the number of heads is the same.
  fits(text) { return !text.page && text.name === this.name && text.bias !== "without" && text.keys === text.queries && text.layers === this.layers && text.heads === this.heads; }

  // True if the reader merges pieces or shares out the attention to special tokens. These measures do not follow such choices: they were computed before.
  fixed({ pieces, special }) { return pieces === "merged" || special === "share"; }

  names() { return Object.keys(MEASURES).filter((name) => this.values[name]?.some(({ length }) => length > 0)); }

  // Returns the same as Spread.measures(). Empty for means over heads.
  measures(layer, head) {
    if (layer === MEAN || head === MEAN || layer === ROLLOUT) return {};
    return Object.fromEntries(this.names().map((name) => {
      const [mean, spread, count, held] = this.values[name][layer * this.heads + head];
      return [name, { mean, spread: spread ?? NaN, count, held }];
    }).filter(([, { count }]) => count > 0));
  }
}

// A head gets a name from a measure only if at least `texts` texts were measured, and the measure is large enough in this share of them.
const NAMED = { share: 0.9, texts: 5 };

// The measures that name a head: [["previous", { mean, … }], …]. measured: the measures of the head over several texts, from Spread or OverTexts.
const namesOf = (measured) => Object.entries(measured).filter(([name, value]) => MEASURES[name].named && value.count >= NAMED.texts && value.held >= NAMED.share * value.count);

const nameBadge = ([name, { held, count }]) => make("li", { className: "named" }, make("b", { textContent: MEASURES[name].name() }), " ", say("in {0} of {1} texts at least {2}", held, count, MEASURES[name].show(MEASURES[name].named)));
