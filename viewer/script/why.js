// Explains the weights of a row: q × k of all its keys, feature by feature, and what each step adds to the scores of the keys.

// The features that set a key apart from the mean of the other attended keys: { whole, parts: [[feature, part], …] }, largest parts first. The parts are in
// units of the scaled score. Null if no other key is attended to.
function apartFromOthers(products, row, column, scale) {
  const others = [...row.keys()].filter((s) => s !== column && row[s].attend !== false);
  if (others.length === 0 || row[column].attend === false) return null;
  const parts = products[column].map((product, i) => scale * (product - others.reduce((sum, s) => sum + products[s][i], 0) / others.length));
  return { whole: parts.reduce((sum, part) => sum + part, 0), parts: [...parts.entries()].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])) };
}

const signed = (x) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(2)}`;

// What the page and the exported figure show. products: those of q and k by feature. bound: their largest size. steps: the steps to the score as [name,
// function from a key to its number]. told: a sentence that names the features that set the key apart; null if no other key is attended to.
function whyOf({ text, column, worked: { q, keys, row } }) {
  const { vectors } = text, products = keys.map((k) => Array.from(q, (x, i) => x * k[i]));
  const bound = Math.max(...products.map(largestSize)), has = (name) => row.some((key) => key[name] !== undefined), later = has("bias") || has("attend");
  const steps = [...(has("unrotated") ? [[say("q · k without rotation"), (key) => key.unrotated], [say("rotation adds"), (key) => key.dot - key.unrotated]] : []),
                 ["q · k", (key) => key.dot], [`${vectors.root ? `/ √${q.length}` : `× ${digits(vectors.scale)}`}${later ? "" : ` = ${say("score")}`}`, (key) => key.scaled],
                 ...(has("bias") ? [[say("bias adds"), (key) => key.bias]] : []), ...(later ? [[say("score"), (key) => key.score]] : [])];
  const apart = apartFromOthers(products, row, column, vectors.scale);
  const told = apart && say("Scaled q · k of “{0}” minus the mean of the other attended keys: {1}. Largest parts by feature: {2}.", text.keys.word(column), signed(apart.whole), apart.parts.slice(0, 4).map(([feature, part]) => `${feature}: ${signed(part)}`).join(", "));
  return { products, bound, steps, told };
}

// Makes the part of the panel that shows this explanation. panel: the Worked object whose cell is explained.
function whyPart(panel) {
  const { text, column, row: query, worked: { q, row } } = panel.cell, { products, bound, steps, told } = whyOf(panel.cell);
  const lines = row.map((key, s) => Worked.line([word(text.keys.word(s)), panel.strip(products[s], bound, say("q × k of “{0}”", text.keys.word(s))), ...steps.map(([, of]) => digits(of(key)))], { className: s === column ? "lit" : "", data: { key: s } }));
  const table = Worked.table([say("key"), say("q × k, all features"), ...steps.map(([name]) => name)], lines, "why");
  return panel.part("why-of", sayParts("Why this row: q of “{0}” × k of every key, feature by feature", word(text.queries.word(query))),
                    make("p", { dir: "auto", textContent: say("q of “{0}”", text.queries.word(query)) }), panel.strip([...q], largestSize(q), say("q of “{0}”", text.queries.word(query))),
                    make("p", { className: "quiet", textContent: say("Each line below multiplies this q by the k of one key. The squares of a line sum to its q · k; all lines have one scale of colours.") }),
                    panel.scale(bound), Worked.scroll(say("q × k of all keys"), table), ...(told ? [make("p", { id: "why-told", textContent: told })] : []));
}
