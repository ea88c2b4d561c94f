// The batch-norm panel: exchanges, moving statistics, drift by layer.

import {byId, setBars, setFigures, setText, shownRows} from './dom.js';
import {UNKNOWN, count, known, plural, shortTime} from './format.js';
import {lately} from './recent.js';

const ROWS = 60;
// Full-scale values of the bars; the smallest that fits is used.
const SCALES = [0.1, 0.25, 0.5, 1, 2, 5, 10, 25, 100];

const driftText = (drift) => (known(drift) ? drift.toFixed(3) : UNKNOWN);

// Workers exchange moments only if they normalise together.
function waitText(norm, phase) {
  if (norm.normalization === 'local') return 'no exchange';
  const n = lately(`${phase}_count`);
  const all = norm[`${phase}_waits`];
  return shortTime(n > 0 ? lately(`${phase}_seconds`) / n :
                           all?.count > 0 ? all.total_seconds / all.count : null);
}

// The statistics that the drift is measured against.
const reference = (status) =>
    ((status.policy?.settings?.aggregation ?? 'sync') === 'sync' ?
      'the combined ones' : 'the moving ones');

export function updateBatchNorm(status) {
  const norm = status.batch_norm ?? {};
  const kinds = (norm.statistics ?? []).join(', ');
  setFigures(byId('bn-figures'), [
    ['Normalisation', norm.normalization || UNKNOWN],
    ['Moving statistics', kinds || UNKNOWN],
    ['Folded', count(norm.folded)],
    ['Damped', count(norm.damped)],
    ['Dropped', count(norm.dropped)],
    ['Wait a layer, forward', waitText(norm, 'forward')],
    ['Wait a layer, backward', waitText(norm, 'backward')],
  ]);
  const layers = norm.layers ?? [];
  const measured = layers.filter((layer) => known(layer.drift));
  const largest = measured.reduce(
      (a, b) => (a === null || b.drift > a.drift ? b : a), null);
  setText(byId('bn-note'), plural(layers.length, 'layer'));
  const shown = shownRows(byId('bn-more'), layers.length, ROWS, 'layers');
  const scale = SCALES.find((s) => s >= (largest?.drift ?? 0)) ??
      largest?.drift ?? 1;
  setBars(byId('bn-bars'), layers.slice(0, shown).map((layer) => ({
    name: layer.name,
    share: known(layer.drift) ? layer.drift / scale : 0,
    size: driftText(layer.drift),
    tone: layer === largest ? 'most' : '',
  })));
  byId('bn-drift-title').hidden = layers.length === 0;
  setText(byId('bn-drift-note'), largest === null ?
      'No drift measured yet.' :
      `How far the worst worker's batch means lie from ${reference(status)}, ` +
      `in standard deviations; a full bar is ${scale}. Largest: ` +
      `${driftText(largest.drift)} in ${largest.name}.`);
}
