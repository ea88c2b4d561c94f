// Curves of single steps are noisy; what they tell is told smoothly as well.

// A curve with fewer points than this is shown as it is.
const LONG_MIN = 20;
// How far a line reaches to either side, as a share of the steps.
const SMOOTHING = 1 / 40;

export const isLong = (points) => points.length >= LONG_MIN;

// The straight line through points by least squares, at x.
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

// Each point on the line through its neighbours. At the ends these are on one
// side only: a mean would bend a slope there. Neighbours by steps: where a curve
// goes on after a restart, points lie closer.
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
