// Measures over several texts: their mean and their standard deviation. Text and Spread both answer measures(layer, head).

class Spread {
  // texts: of one page, with the same heads
  constructor(texts) {
    this.texts = texts;
    this.ready = false;
    this.measured = new Map();
  }

  // The texts, in the same set of maps, that can be averaged with this one. A page that the reader has opened is of another model.
  static with(text, all) { return all.filter((one) => ["page", "pooled", "name", "bias", "layers", "heads"].every((what) => one[what] === text[what])); }

  // Measures all heads of all texts; done() is called if this is the one still wanted.
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

  // { previous: { mean, spread, count }, … }; a text without this measure does not count. spread: sample standard deviation, NaN for one text.
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
      return [name, { mean, spread: Math.sqrt(squares / (values.length - 1)), count: values.length }];
    }).filter(([, { count }]) => count > 0));
  }
}
