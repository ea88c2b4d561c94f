// How the time of a step is spent, by worker.

import {byId, make, resize, setText} from './dom.js';
import {known, shortTime} from './format.js';

// In the order in which they occur in a step.
const PHASES = [
  ['data', 'data'], ['forward', 'forward'], ['rendezvous', 'batch-norm exchange'],
  ['backward', 'backward'], ['push', 'push'], ['wait', 'wait'],
];
const ROWS = 8;

const total = (phases) =>
    PHASES.reduce((sum, [key]) => sum + (known(phases[key]) ? phases[key] : 0), 0);

// A worker's own time. Waiting for others does not count.
const own = (phases) =>
    total(phases) - (phases.wait ?? 0) - (phases.rendezvous ?? 0);

// Null without any.
function meanOf(timed) {
  if (timed.length === 0) return null;
  return Object.fromEntries(PHASES.map(([key]) => [key, timed.reduce(
      (sum, {phases}) => sum + (phases[key] ?? 0), 0) / timed.length]));
}

function makeKey() {
  const item = make('li');
  item.append(make('span', 'swatch'), make('span', 'name'), make('b'));
  return item;
}

function makeStack() {
  const row = make('li');
  const track = make('span', 'track');
  track.setAttribute('aria-hidden', 'true');
  for (const [key] of PHASES) track.append(make('span', `part phase-${key}`));
  row.append(make('span', 'name'), track, make('span', 'size'));
  return row;
}

function showStack(row, name, phases, longest) {
  setText(row.children[0], name);
  PHASES.forEach(([key, label], i) => {
    const part = row.children[1].children[i];
    part.style.width = `${longest > 0 ? 100 * (phases[key] ?? 0) / longest : 0}%`;
    part.title = `${label} ${shortTime(phases[key])}`;
  });
  setText(row.children[2], shortTime(total(phases)));
}

export function updateSteps(status) {
  const timed = (status.workers ?? []).filter(
      ({phase_seconds: phases}) => Object.keys(phases ?? {}).length > 0)
      .map(({rank, phase_seconds: phases}) => ({rank, phases}));
  const mean = meanOf(timed);
  // After the run, the last times stay visible.
  if (!mean && status.ended && byId('phase-bars').children.length > 0) return;
  byId('phase-keys').hidden = !mean;
  if (!mean) {
    resize(byId('phase-bars'), 0, makeStack);
    setText(byId('phase-note'), 'Workers report their times once they train.');
    return;
  }
  resize(byId('phase-keys'), PHASES.length, makeKey).forEach((item, i) => {
    const [key, label] = PHASES[i];
    item.children[0].className = `swatch phase-${key}`;
    setText(item.children[1], label);
    setText(item.children[2], shortTime(mean[key]));
  });
  // With many workers, only the slowest are shown.
  const slowest = [...timed].sort((a, b) => own(b.phases) - own(a.phases))
      .slice(0, ROWS).sort((a, b) => a.rank - b.rank);
  const rows = [['mean', mean],
    ...slowest.map((worker) => [`worker ${worker.rank}`, worker.phases])];
  const longest = Math.max(...rows.map(([, phases]) => total(phases)));
  resize(byId('phase-bars'), rows.length, makeStack)
      .forEach((row, i) => showStack(row, ...rows[i], longest));
  setText(byId('phase-note'), timed.length > ROWS ?
      `Of ${timed.length} workers the ${ROWS} that need longest themselves.` : '');
}
