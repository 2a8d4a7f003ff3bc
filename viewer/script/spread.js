// Measures over several texts: mean and standard deviation of the texts' values. A Spread can take the place of a Text: both have the method measures(layer, head).

class Spread {
  // texts: texts of one page whose maps are of the same heads.
  constructor(texts) {
    this.texts = texts;
    this.ready = false;
    this.measured = new Map();
  }

  // The texts that can be averaged with the given text: they are in the same tab of the same page and have the same numbers of layers and heads.
  static with(text, all) { return all.filter((one) => ["page", "pooled", "name", "bias", "layers", "heads", "step"].every((what) => one[what] === text[what])); }

  // Measures all heads for all texts, and then calls done(), unless cancelled() has become true.
  async prepare(told, done, cancelled) {
    const jobs = this.texts.flatMap((text, at) => headsOf(text).map(({ layer, head }) => () => {
      told(at);
      text.measures(layer, head);
    }));
    await inSlices(jobs, cancelled);
    if (cancelled()) return;
    this.ready = true;
    done();
  }

  // The measures of a head: { previous: { mean, spread, count }, … }. A text without a measure is left out of it. spread: sample standard deviation, NaN for
  // one text.
  measures(layer, head) {
    const name = `${layer}/${head}`;
    if (!this.measured.has(name)) this.measured.set(name, this.#average(this.texts.map((text) => text.measures(layer, head))));
    return this.measured.get(name);
  }

  #average(all) {
    return Object.fromEntries(Object.keys(MEASURES).map((name) => {
      const values = all.map((measured) => measured[name]).filter((value) => value !== undefined && !Number.isNaN(value));
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
      return [name, { mean, spread: Math.sqrt(squares / (values.length - 1)), count: values.length, held: values.filter((value) => value >= MEASURES[name].named).length }];
    }).filter(([, { count }]) => count > 0));
  }
}
