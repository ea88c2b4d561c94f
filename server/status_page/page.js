// Fetches the server's status once a second and shows it. In a report, shows
// the status that is saved in the file.

import {updateBatchNorm} from './batch_norm.js';
import {updateCurves} from './curves.js';
import {byId, setText} from './dom.js';
import {clock, count, dateTime, duration, nowOf} from './format.js';
import {updateEvents} from './events.js';
import {updateHeadline} from './headline.js';
import {updatePolicy} from './policy.js';
import {remember} from './recent.js';
import {updatePushes, updateServer} from './server.js';
import {updateShards} from './shards.js';
import {updateSteps} from './steps.js';
import {updateWorkers} from './workers.js';

const POLL_MS = 1000;
const POLL_LOST_MS = 5000;
const ANSWER_LIMIT_MS = 5000;

let newest = null;
let lostSince = null;
let waitMs = POLL_MS;

const panels = [
  updateHeadline, updateCurves, updateSteps, updateWorkers, updatePolicy,
  updatePushes, updateEvents, updateBatchNorm, updateShards, updateServer,
];

function show(status) {
  for (const update of panels) update(status);
}

function showConnection() {
  const banner = byId('banner');
  const over = newest !== null && newest.ended;
  document.body.classList.toggle('stale', lostSince !== null);
  document.body.classList.toggle('over', over);
  banner.hidden = lostSince === null;
  banner.classList.toggle('calm', over);
  if (lostSince === null) {
    if (newest !== null) setText(byId('fresh'), `updated ${clock(nowOf(newest))}`);
    return;
  }
  const at = clock(lostSince / 1000);
  // The running time is in another node: a screen reader announces the alert
  // whenever it changes.
  setText(banner, over ?
      'The run is over and the server has ended. These are its last numbers.' :
      `Connection lost since ${at}. The numbers below are from then; the ` +
          'server is asked again every few seconds.');
  setText(byId('fresh'), over ? '' :
          `no answer for ${duration((Date.now() - lostSince) / 1000)}`);
}

async function ask() {
  const response = await fetch('/status.json?parts=all', {
    cache: 'no-store',
    signal: AbortSignal.timeout(ANSWER_LIMIT_MS),
  });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

async function poll() {
  let answer = null;
  try {
    answer = await ask();
  } catch {
    lostSince ??= Date.now();
    // Retries soon at first, because a restarted server is back quickly.
    waitMs = Math.min(2 * waitMs, POLL_LOST_MS);
  }
  if (answer !== null) {
    newest = answer;
    remember(answer);
    lostSince = null;
    waitMs = POLL_MS;
  }
  showConnection();
  // Scheduled before showing: a panel that throws must not stop the page.
  setTimeout(poll, waitMs);
  if (answer !== null) show(answer);
}

// A report stands alone, so there is nothing to fetch or to link to.
function showSaved(status) {
  newest = status;
  remember(status);
  show(status);
  document.body.classList.toggle('over', status.ended);
  byId('links').hidden = true;
  const banner = byId('banner');
  banner.hidden = status.ended;
  banner.classList.add('calm');
  setText(banner, `This report was written at step ${count(status.version)}, ` +
      'before the end of the run.');
  setText(byId('fresh'), `report of ${dateTime(nowOf(status))}`);
}

byId('live').hidden = false;
byId('live').addEventListener('rows', () => newest !== null && show(newest));
matchMedia('(prefers-color-scheme: dark)').addEventListener(
    'change', () => newest !== null && show(newest));
const saved = byId('saved-status');
if (saved === null) {
  poll();
} else {
  showSaved(JSON.parse(saved.textContent));
}
