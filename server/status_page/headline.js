// The most important facts: the state in words, and five answers.

import {byId, make, setText, setTexts} from './dom.js';
import {UNKNOWN, capitalised, count, decimal, duration, known, percent, plural, secondsSince, shortTime, smallPercent} from './format.js';
import {isLong, smoothed} from './smooth.js';
import {goneText, missingShards, shardList} from './shards.js';
import {isElastic, isMissed, isWaiting, lacking, lagText, rankList, sizeText, slowest, waitedFor} from './workers.js';

// Messages that add no work: their content was applied already,
// or is computed again.
const REPEATED_VERDICTS = ['duplicate', 'fenced'];
// Pushes whose work did not reach the weights.
const LOST_VERDICTS = ['dropped', 'rejected_nonfinite', 'invalid'];

function toneOf(status) {
  // A run that was drained or given up ends before its last image.
  if (status.ended) {
    return status.samples >= status.samples_total ? 'done' : 'stopped';
  }
  return isWaiting(status) ? 'waiting' : 'running';
}

// The default name contains the identifier.
function runText(status) {
  if (!status.run_name) return status.run_id;
  return status.run_name.includes(status.run_id) ?
      status.run_name : `${status.run_name} (${status.run_id})`;
}

function showState(status) {
  const text = capitalised(status.state || UNKNOWN);
  setText(byId('state'), text);
  byId('hero').dataset.tone = toneOf(status);
  // Announced when the state changes, not with each tenth of a second.
  const waited = waitedFor(status);
  const shards = missingShards(status);
  const announcement = shards.length > 0 ? `Waiting: ${shardList(shards)}` :
      waited.length > 0 ?
      `${capitalised(status.phase)}: ${rankList(waited)}` :
      capitalised(status.phase || '');
  setText(byId('announcement'), announcement);
  const quality = known(status.test_accuracy) ?
      `${percent(status.test_miou ?? status.test_accuracy)} · ` : '';
  document.title = `${quality}${text} – Cohort`;
  const identity = [];
  if (status.run_id) identity.push(`run ${runText(status)}`);
  if (status.address) identity.push(status.address);
  setText(byId('identity'), identity.join(' · '));
}

function showProgress(status) {
  const share = status.samples_total > 0 ?
      Math.min(status.samples / status.samples_total, 1) : 0;
  const bar = byId('progress');
  byId('progress-fill').style.width = `${100 * share}%`;
  bar.setAttribute('aria-valuenow', String(Math.floor(100 * share)));
  const facts = [`step ${count(status.version)}`];
  if (status.local_steps > 0) {
    facts.push(plural(status.local_steps, 'local step'));
  }
  if (status.epochs > 0) {
    const epoch = Math.min(status.data_epoch, status.epochs - 1) + 1;
    facts.push(`epoch ${count(epoch)} of ${count(status.epochs)}`);
  }
  if (status.samples_total > 0) {
    // Rounded down, so that a run in progress never shows 100 %.
    facts.push(`${Math.floor(100 * share)}\u202f% of ` +
               `${plural(status.samples_total, 'image')}`);
  }
  for (const [name, value] of Object.entries(status.measures ?? {})) {
    if (known(value)) facts.push(`${name} ${decimal(value)}`);
  }
  if (status.attempt > 1) facts.push(`attempt ${count(status.attempt)}`);
  if (!status.ended &&
      (isElastic(status) || status.workers_live < status.workers_expected)) {
    facts.push(isElastic(status) ? `workers: ${sizeText(status)}` :
        `${count(status.workers_live)} of ` +
        `${plural(status.workers_expected, 'worker')} live`);
  }
  setTexts(byId('progress-facts'), facts, () => make('li'));
}

function showTile(id, value, note, tone = '') {
  const tile = byId(id);
  setText(tile.querySelector('.value'), value);
  setText(tile.querySelector('.note'), note);
  tile.dataset.tone = tone;
}

const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;

// Compares the newest fifth of the curve with the fifth before it.
function lossTrend(curve) {
  const losses = (curve ?? []).map((point) => point.loss).filter(known);
  const few = Math.floor(losses.length / 5);
  if (few < 4) return '';
  const before = mean(losses.slice(-2 * few, -few));
  const change = mean(losses.slice(-few)) - before;
  if (Math.abs(change) < 0.005 * Math.abs(before)) return 'steady';
  return change < 0 ? 'falling' : 'rising';
}

// The same value as in the curve's key.
function lateLoss(status) {
  const points = (status.curves?.train ?? []).filter(({loss}) => known(loss))
      .map(({version, loss}) => ({x: version, y: loss}));
  return isLong(points) ? smoothed(points).at(-1).y :
                          points.at(-1)?.y ?? status.train_loss;
}

function showLearning(status) {
  const trend = status.ended ? '' : lossTrend(status.curves?.train);
  const train = lateLoss(status);
  const loss = known(train) ?
      `train loss ${decimal(train)}${trend && `, ${trend}`}` : '';
  const tone = trend === 'rising' ? 'notice' : '';
  if (known(status.test_accuracy)) {
    const dense = known(status.test_miou);
    const name = (dense ? 'mIoU' : 'test accuracy') +
        // In training the test is always a little older; its point in the curve
        // shows that.
        (status.ended && status.test_version !== status.version ?
          ` of step ${count(status.test_version)}` : '');
    showTile('tile-learning', percent(status.test_miou ?? status.test_accuracy),
             loss ? `${name} · ${loss}` : name, tone);
  } else if (known(train)) {
    showTile('tile-learning', decimal(train),
             `train loss${trend && `, ${trend}`} · not tested yet`, tone);
  } else {
    showTile('tile-learning', 'Not yet', status.version > 0 ?
      'no step since the server was started again' : 'no step is done');
  }
}

const rateText = (rate) => (known(rate) && rate > 0 ?
  `${rate < 10 ? rate.toFixed(1) : count(rate)} images/s` : UNKNOWN);

function showSpeed(status) {
  const rate = status.samples_per_second;
  const value = rateText(rate);
  if (status.ended) {
    const train = status.curves?.train ?? [];
    const [first, last] = [train[0], train.at(-1)];
    const seconds = last?.elapsed_seconds - first?.elapsed_seconds;
    const average = (last?.samples - first?.samples) / seconds;
    showTile('tile-speed', seconds > 0 ? rateText(average) : UNKNOWN,
             known(last?.elapsed_seconds) ?
               `on average · ended after ${duration(last.elapsed_seconds)}` :
               'the run is over');
  } else if (known(status.eta_seconds)) {
    showTile('tile-speed', value, `${duration(status.eta_seconds)} left`);
  } else {
    showTile('tile-speed', value,
             !(status.version > 0) ? 'training has not begun' :
                 isWaiting(status) ? 'held up' : 'time left not known yet');
  }
}

function showHoldup(status) {
  const waited = waitedFor(status);
  const missing = (status.workers ?? []).filter(
      (worker) => isMissed(status, worker));
  const shards = missingShards(status);
  if (status.ended) {
    showTile('tile-holdup', 'No worker', 'the run is over');
  } else if (shards.length > 0) {
    showTile('tile-holdup', capitalised(shardList(shards)), goneText(status, shards),
             'warning');
  } else if (lacking(status) > 0) {
    showTile('tile-holdup', plural(lacking(status), 'more worker'),
             'any worker that joins will do', 'warning');
  } else if (waited.length > 0) {
    const silent = Math.max(...waited.map(
        (rank) => (status.workers ?? [])
            .find((worker) => worker.rank === rank)?.silent_ms ?? 0)) / 1000;
    showTile('tile-holdup', capitalised(rankList(waited)),
             silent >= 1 ? `silent for ${duration(silent)}` : 'waited for',
             'warning');
  } else if (missing.length > 0) {
    showTile('tile-holdup',
             capitalised(rankList(missing.map((worker) => worker.rank))),
             'missing; the others continue', 'warning');
  } else {
    const slow = slowest(status);
    showTile('tile-holdup', slow ? `Worker ${slow.rank}` : 'No worker',
             slow ? `${shortTime(slow.own_seconds)} of own work a step, half ` +
                 `of all: up to ${shortTime(slow.median_seconds)}` :
                 lagText(status), slow ? 'notice' : '');
  }
}

function showDropped(status) {
  const verdicts = status.push_verdicts ?? {};
  const all = Object.entries(verdicts)
      .filter(([verdict]) => !REPEATED_VERDICTS.includes(verdict))
      .reduce((sum, [, n]) => sum + n, 0);
  const lost = LOST_VERDICTS.reduce((sum, v) => sum + (verdicts[v] ?? 0), 0);
  if (all === 0) {
    showTile('tile-dropped', 'Nothing', 'no push so far');
    return;
  }
  const parts = [];
  if (lost > 0) {
    for (const verdict of LOST_VERDICTS) {
      if (verdicts[verdict] > 0) {
        parts.push(`${count(verdicts[verdict])} ${verdict.replace('_', ' ')}`);
      }
    }
  } else {
    // Verdicts are counted since the server's last start.
    const since = status.checkpoint?.restored ? ' since the restart' : '';
    parts.push(`of ${plural(all, 'push', 'pushes')}${since}`);
  }
  if (verdicts.damped > 0) parts.push(`${count(verdicts.damped)} damped`);
  const bad = (verdicts.rejected_nonfinite ?? 0) + (verdicts.invalid ?? 0);
  showTile('tile-dropped',
           lost > 0 ? `${smallPercent(lost / all)} of pushes` : 'Nothing',
           parts.join(', '), bad > 0 ? 'warning' : lost > 0 ? 'notice' : '');
}

function showSafe(status) {
  const checkpoint = status.checkpoint ?? {};
  const failures = checkpoint.failures ?? 0;
  const problem = status.checkpoint_problem ||
      `${plural(failures, 'checkpoint')} failed`;
  if (checkpoint.enabled === undefined) {
    showTile('tile-safe', UNKNOWN, '');
  } else if (status.ended && known(checkpoint.model_version)) {
    const note = [`the model of step ${count(checkpoint.model_version)} is written`];
    if (failures > 0) note.push(`${plural(failures, 'checkpoint')} failed`);
    showTile('tile-safe', 'Saved', note.join(' · '), failures > 0 ? 'warning' : '');
  } else if (!checkpoint.enabled) {
    showTile('tile-safe', 'Not saved', 'checkpoints are off', 'notice');
  } else if (!known(checkpoint.version)) {
    showTile('tile-safe', 'Not yet',
             failures > 0 ? problem : 'no checkpoint so far',
             failures > 0 ? 'warning' : 'notice');
  } else {
    const note = [`step ${count(checkpoint.version)} is saved`];
    if (failures > 0) note.push(problem);
    const age = secondsSince(status, checkpoint.written_unix_s);
    showTile('tile-safe', `${duration(age)} ago`,
             note.join(' · '), failures > 0 ? 'warning' : '');
  }
}

export function updateHeadline(status) {
  showState(status);
  showProgress(status);
  showLearning(status);
  showSpeed(status);
  showHoldup(status);
  showDropped(status);
  showSafe(status);
}
