// What happened lately, where the server tells sums since its start: the
// difference to what it told a minute ago.

import {known} from './format.js';

// How far back "lately" goes.
const RECENT_MS = 60000;

// Earlier answers, of each only the sums: {at, process, sums}.
const answers = [];

function sumsOf(status) {
  const waits = {barrier: status.barrier_waits,
    forward: status.batch_norm?.rendezvous?.forward,
    backward: status.batch_norm?.rendezvous?.backward};
  const sums = {uptime: status.uptime_seconds};
  for (const [name, wait] of Object.entries(waits)) {
    sums[`${name}_count`] = wait?.count;
    sums[`${name}_seconds`] = wait?.seconds;
  }
  for (const worker of status.workers ?? []) {
    sums[`last_${worker.rank}`] = worker.last_arrivals;
  }
  return sums;
}

// To be called once an answer, before anything is asked about it.
export function remember(status) {
  const at = Date.now();
  // A server that was started again counts from zero.
  const process = `${status.run} ${Math.round(
      (status.now ?? 0) - (status.uptime_seconds ?? 0))}`;
  while (answers.length > 0 && (at - answers[0].at > RECENT_MS ||
         !sameProcess(answers[0].process, process))) {
    answers.shift();
  }
  answers.push({at, process, sums: sumsOf(status)});
}

// The start of a process is known to the second.
function sameProcess(a, b) {
  const [runA, startA] = a.split(' ');
  const [runB, startB] = b.split(' ');
  return runA === runB && Math.abs(startA - startB) <= 2;
}

// A sum's growth within the last minute; since the start where no earlier
// answer is known; null if it is not told.
export function lately(name) {
  const newest = answers.at(-1)?.sums[name];
  if (!known(newest)) return null;
  const before = answers.length > 1 ? answers[0].sums[name] : 0;
  return newest - (known(before) ? before : 0);
}

// The share of their time that the workers waited for each other lately; null
// if it is not told.
export function waitingShare(status) {
  const parts = ['barrier', 'forward', 'backward']
      .map((name) => lately(`${name}_seconds`));
  const time = lately('uptime') * status.workers_live;
  if (parts.some((part) => part === null) || !(time > 0)) return null;
  return parts.reduce((sum, part) => sum + part, 0) / time;
}
