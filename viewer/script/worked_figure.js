// Draws the computation of one attention weight as an SVG figure with all its numbers.

class TableFigure {
  static size = 11;
  static lineHeight = 16;

  // Draws a table at (x, y): `names`, and below them rows of texts. The first column is aligned at the left, the others at the right. Returns the x of the
  // right end.
  static draw(figure, names, rows, x, y) {
    const width = (column) => 0.6 * TableFigure.size * Math.max(...[names, ...rows].map((row) => [...(row[column] ?? "")].length)) + 16;
    let right = x;
    names.forEach((name, column) => {
      const left = right;
      right += width(column);
      [name, ...rows.map((row) => row[column] ?? "")].forEach((text, at) => figure.add(figure.words(text, column === 0 ? left : right - 8, y + at * TableFigure.lineHeight, {
        "font-size": TableFigure.size, "text-anchor": column === 0 ? "start" : "end", "font-weight": at === 0 ? 600 : 400 })));
    });
    figure.reach(right, Math.max(figure.y, y + rows.length * TableFigure.lineHeight));
    return right;
  }
}

function workedFigure(figure, worked) {
  const { text, row, column, feature, worked: { q, keys, values, row: softmax, sum, output } } = worked.cell;
  const left = Figure.margin, side = 12, gap = 32;
  const [query, key] = [text.queries.word(row), text.keys.word(column)];
  const strip = (name, numbers, bound) => {
    const y = figure.y + 20, start = left + 160;
    figure.add(figure.words(name, left, y + side - 2, { "font-size": TableFigure.size }));
    numbers.forEach((number, i) => figure.add(draw("rect", { x: start + i * side, y, width: side, height: side, fill: hexOf(worked.colour(number, bound)), stroke: figure.colour("edge"), "stroke-width": 0.5 })));
    figure.add(figure.words(`±${short(bound)}`, start + numbers.length * side + 8, y + side - 2, { "font-size": TableFigure.size }));
    figure.reach(start + numbers.length * side + 120, y + side);
  };
  const part = (title) => {
    figure.y += 16;
    figure.line(title, 14, 600);
  };

  part(say("1. Products of q and k"));
  const products = Array.from(q, (x, i) => x * keys[column][i]);
  const bound = largestSize([...q, ...keys[column]]);
  strip(say("q of “{0}”", query), [...q], bound);
  strip(say("k of “{0}”", key), [...keys[column]], bound);
  strip("q × k", products, largestSize(products));
  const features = Array.from(q, (x, i) => [String(i), digits(x), digits(keys[column][i]), digits(products[i])]);
  // The number of lines of the list of features, which is divided into up to four blocks side by side.
  const height = Math.ceil(features.length / Math.min(4, Math.ceil(features.length / 16)));
  const top = figure.y + 28;
  let x = left;
  for (let first = 0; first < features.length; first += height) x = gap + TableFigure.draw(figure, [say("feature"), "q", "k", "q × k"], features.slice(first, first + height), x, top);

  part(say("2. From q · k to the weight"));
  TableFigure.draw(figure, [say("step"), say("number")], worked.steps().map(([what, number]) => [what, digits(number)]), left, figure.y + 16);

  part(say("3. Softmax over all keys, query “{0}”", query));
  const lines = softmax.map(({ score, exp, weight }, s) => [text.keys.word(s), digits(score), digitsOfShare(exp), digitsOfShare(weight)]);
  const names = [say("key"), say("score"), say("exp(score − largest)"), say("weight")];
  TableFigure.draw(figure, names, [...lines, [say("sum"), "", digits(sum), digitsOfShare(softmax.reduce((total, { weight }) => total + weight, 0))]], left, figure.y + 16);

  part(say("Why this row: q of “{0}” × k of every key, feature by feature", query));
  const why = whyOf(worked.cell);
  why.products.forEach((numbers, s) => strip(text.keys.word(s), numbers, why.bound));
  TableFigure.draw(figure, [say("key"), ...why.steps.map(([name]) => name)], softmax.map((one, s) => [text.keys.word(s), ...why.steps.map(([, of]) => digits(of(one)))]), left, figure.y + 28);
  figure.y += 8;
  if (why.told) figure.line(why.told, TableFigure.size, 400);

  if (!output) return;
  part(say("4. Output of the head for “{0}”: the sum of weight × v", query));
  const shares = softmax.map(({ weight }, s) => Array.from(values[s], (value) => (weight === 0 ? 0 : weight * value)));
  const most = Math.max(largestSize(output), ...shares.map(largestSize));
  shares.forEach((share, s) => strip(text.keys.word(s), share, most));
  strip(say("output"), output, most);
  const products4 = shares.map((share, s) => [text.keys.word(s), digitsOfShare(softmax[s].weight), digits(values[s][feature]), digits(share[feature])]);
  TableFigure.draw(figure, [say("key"), say("weight"), `v[${feature}]`, `${say("weight")} × v[${feature}]`], [...products4, [say("output"), "", "", digits(output[feature])]], left, figure.y + 28);
}
