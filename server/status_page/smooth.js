// Curves of single steps are noisy, so they are also shown smoothed.

// A curve with fewer points than this is not smoothed.
const LONG_MIN = 20;
// How far the smoothing extends to either side, as a share of the steps.
const SMOOTHING = 1 / 40;

export const isLong = (points) => points.length >= LONG_MIN;

// The least-squares line through the points, at x.
function lineAt(points, x) {
  const n = points.length;
  const meanX = points.reduce((sum, p) => sum + p.x, 0) / n;
  const meanY = points.reduce((sum, p) => sum + p.y, 0) / n;
  const spread = points.reduce((sum, p) => sum + (p.x - meanX) ** 2, 0);
  if (!(spread > 0)) return meanY;
  const slope = points.reduce(
      (sum, p) => sum + (p.x - meanX) * (p.y - meanY), 0) / spread;
  return meanY + slope * (x - meanX);
}

// Moves each point to the line through its neighbours. At the ends the
// neighbours are on one side only, where a mean would bend a slope. Neighbours
// are chosen by steps, because points are closer together after a restart.
export function smoothed(points) {
  const reach = SMOOTHING * (points.at(-1).x - points[0].x);
  let first = 0;
  let last = 0;
  return points.map(({x}) => {
    while (points[first].x < x - reach) first += 1;
    while (points[last + 1]?.x <= x + reach) last += 1;
    return {x, y: lineAt(points.slice(first, last + 1), x)};
  });
}
