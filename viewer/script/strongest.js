// Keeps the largest weights of each row: as few of them as together make at least the fraction `part` of the row's sum. Other weights become TINY, which is not
// exactly 0, but too small to be visible.
function strongest(map, stride, { rows, columns }, part) {
  const kept = map.slice();
  let links = 0;
  for (const row of rows) {
    const weights = columns.map((column) => [map[row * stride + column], row * stride + column]).filter(([weight]) => weight > 0);
    weights.sort((a, b) => b[0] - a[0]);
    const wanted = part * weights.reduce((sum, [weight]) => sum + weight, 0);
    let covered = 0;
    for (const [weight, at] of weights) {
      if (covered < wanted) ++links;
      else kept[at] = TINY;
      covered += weight;
    }
  }
  return { map: kept, links };
}
