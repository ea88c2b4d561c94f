// The table of workers, and which of them delay the others.

import {byId, resizeRows, setText, shownRows} from './dom.js';
import {UNKNOWN, bytes, count, duration, known, percent} from './format.js';
import {missingShards} from './shards.js';

const ROWS = 12;

export const isWaiting = (status) =>
    !status.ended && status.phase === 'waiting';

export const isMissing = (worker) =>
    ['vacant', 'reconnecting'].includes(worker.activity);

export const isElastic = (status) => status.workers_min > 0;

// "3 of 4", or of an elastic cohort "3, from 2 to 8".
export const sizeText = (status) => isElastic(status) ?
    `${count(status.workers_live)}, from ${count(status.workers_min)} to ` +
        `${count(status.workers_expected)}` :
    `${count(status.workers_live)} of ${count(status.workers_expected)}`;

// The workers without which an elastic cohort does not train.
export const lacking = (status) => status.ended || !isElastic(status) ? 0 :
    Math.max(status.workers_min - status.workers_live, 0);

export const waitedFor = (status) => status.waited_for ?? [];

// After the run, no worker counts as missing, and an elastic cohort misses none
// in particular. While a shard is missing, no worker can join.
export const isMissed = (status, worker) =>
    !status.ended && !isElastic(status) && missingShards(status).length === 0 &&
    isMissing(worker);

// "workers 0, 3 and 7", "workers 0, 1, 2 and 61 more".
export function rankList(ranks) {
  if (ranks.length === 0) return 'no worker';
  if (ranks.length === 1) return `worker ${ranks[0]}`;
  if (ranks.length > 4) {
    return `workers ${ranks.slice(0, 3).join(', ')} and ${ranks.length - 3} more`;
  }
  return `workers ${ranks.slice(0, -1).join(', ')} and ${ranks.at(-1)}`;
}

// Without a barrier no worker waits for the last one.
const hasBarrier = (status) =>
    (status.policy?.settings?.aggregation ?? 'sync') === 'sync';

// The slowest of the workers that the server calls slow; null if there is none.
export const slowest = (status) => (status.slow_workers ?? []).reduce(
    (a, b) => (b.own_seconds > (a?.own_seconds ?? 0) ? b : a), null);

// Without a barrier each worker is behind by what the others have done since.
export function lagText(status) {
  const behind = (status.workers ?? []).reduce(
      (a, b) => ((b.lag_versions ?? 0) > (a?.lag_versions ?? 0) ? b : a), null);
  if (behind !== null && behind.lag_versions > 2 * status.workers_live) {
    return `worker ${behind.rank} is furthest back, by ${
        count(behind.lag_versions)}`;
  }
  return isWaiting(status) ? 'no worker is named' : 'all keep up';
}

function showRow(row, worker, {waited, missed, late, all, barrier, ended}) {
  const cells = row.children;
  const holdsUp = waited.includes(worker.rank);
  row.dataset.tone = holdsUp || missed(worker) ? 'warning' :
      late(worker) ? 'notice' : '';
  setText(cells[0], String(worker.rank));
  setText(cells[1].firstElementChild, (worker.activity || UNKNOWN) +
      (holdsUp ? ', waited for' : late(worker) ? ', slow' : ''));
  setText(cells[2], count(worker.lag_versions));
  setText(cells[3], count(worker.staleness_versions));
  const share = all > 0 && known(worker.last_arrivals) ?
      ` (${percent(worker.last_arrivals / all, 0)})` : '';
  setText(cells[4], barrier ? count(worker.last_arrivals) + share : UNKNOWN);
  setText(cells[5], count(worker.pushes));
  setText(cells[6], count(worker.batch_size));
  setText(cells[7], known(worker.cpu_cores) ?
      `${worker.cpu_cores.toFixed(1)} cores` : UNKNOWN);
  setText(cells[8], bytes(worker.resident_bytes));
  // After the run, no worker is heard from.
  setText(cells[9], worker.incarnation === 0 ? 'never seen' :
      ended ? UNKNOWN : duration(worker.silent_ms / 1000));
  setText(cells[10], worker.transport || UNKNOWN);
  setText(cells[11], worker.description || UNKNOWN);
}

export function updateWorkers(status) {
  const waited = waitedFor(status);
  const slow = new Set((status.slow_workers ?? []).map(({rank}) => rank));
  const barrier = hasBarrier(status);
  const late = (worker) => !status.ended && slow.has(worker.rank);
  const missed = (worker) => isMissed(status, worker);
  const trouble = (worker) => waited.includes(worker.rank) ||
      missed(worker) || late(worker);
  // Workers in trouble come first, so that they are visible without scrolling.
  const workers = [...status.workers ?? []].sort(
      (a, b) => trouble(b) - trouble(a) || a.rank - b.rank);
  const all = workers.reduce((sum, w) => sum + (w.last_arrivals ?? 0), 0);
  const shown = shownRows(byId('workers-more'), workers.length, ROWS, 'workers');
  resizeRows(byId('worker-rows'), shown)
      .forEach((row, i) => showRow(
          row, workers[i],
          {waited, missed, late, all, barrier, ended: status.ended}));
  setText(byId('workers-note'), status.ended ? 'as they were at the end' :
      isElastic(status) ? sizeText(status).replace(',', ' live,') :
                          `${sizeText(status)} live`);
}
