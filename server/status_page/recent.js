// Recent values of sums that the server counts since its start: the difference
// from the answer a minute ago.

import {known, nowOf} from './format.js';

// The length of "lately".
const RECENT_MS = 60000;

// Earlier answers, reduced to their sums: {at, run, start, sums}.
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
  const run = status.run_id;
  const start = Math.round(nowOf(status) - (status.uptime_seconds ?? 0));
  // A restarted server counts from zero. The start of a process is known only
  // to the second.
  const isOld = (before) => at - before.at > RECENT_MS || before.run !== run ||
      Math.abs(before.start - start) > 2;
  while (answers.length > 0 && isOld(answers[0])) answers.shift();
  answers.push({at, run, start, sums: sumsOf(status)});
}

// A sum's growth within the last minute; since the start if there is no earlier
// answer; null if the server does not report it.
export function lately(name) {
  const newest = answers.at(-1)?.sums[name];
  if (!known(newest)) return null;
  const before = answers.length > 1 ? answers[0].sums[name] : 0;
  return newest - (known(before) ? before : 0);
}
