// Recent values of sums that the server counts since its start: the difference
// from the answer a minute ago.

import {known, nowOf} from './format.js';

// The length of "lately".
const RECENT_MS = 60000;

// Earlier answers, reduced to their sums: {at, process, sums}.
const answers = [];

function sumsOf(status) {
  const waits = {forward: status.batch_norm?.forward_waits,
    backward: status.batch_norm?.backward_waits};
  const sums = {};
  for (const [name, wait] of Object.entries(waits)) {
    sums[`${name}_count`] = wait?.count;
    sums[`${name}_seconds`] = wait?.total_seconds;
  }
  return sums;
}

// Must be called once for each answer, before the other functions.
export function remember(status) {
  const at = Date.now();
  // A restarted server counts from zero.
  const process = `${status.run_id} ${Math.round(
      nowOf(status) - (status.uptime_seconds ?? 0))}`;
  while (answers.length > 0 && (at - answers[0].at > RECENT_MS ||
         !sameProcess(answers[0].process, process))) {
    answers.shift();
  }
  answers.push({at, process, sums: sumsOf(status)});
}

// The start of a process is known only to the second.
function sameProcess(a, b) {
  const [runA, startA] = a.split(' ');
  const [runB, startB] = b.split(' ');
  return runA === runB && Math.abs(startA - startB) <= 2;
}

// A sum's growth within the last minute; since the start if there is no earlier
// answer; null if the server does not report it.
export function lately(name) {
  const newest = answers.at(-1)?.sums[name];
  if (!known(newest)) return null;
  const before = answers.length > 1 ? answers[0].sums[name] : 0;
  return newest - (known(before) ? before : 0);
}
