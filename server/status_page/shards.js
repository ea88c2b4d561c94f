// The server processes that share the model, where there are several.

import {byId, resizeRows, setText} from './dom.js';
import {UNKNOWN, bytes, count, duration, known, percent, secondsSince, shortTime} from './format.js';

// A shard that all others wait for this share of the time they prepare is named.
const SLOW_SHARE = 0.25;
const SLOW_SECONDS_MIN = 1;

export const missingShards = (status) =>
    status.ended ? [] : (status.shards ?? []).filter((s) => !s.connected);

// "shard 1", "shards 1 and 2".
export const shardList = (shards) => (shards.length === 1 ?
  `shard ${shards[0].shard}` :
  `shards ${shards.slice(0, -1).map((s) => s.shard).join(', ')} and ${
    shards.at(-1).shard}`);

export function goneText(status, shards) {
  const lost = shards.filter((s) => s.generation > 0 && known(s.since_unix_s));
  const since = Math.min(...lost.map((s) => s.since_unix_s));
  return lost.length === 0 ? 'not there yet' :
      `gone for ${duration(secondsSince(status, since))}`;
}

const holdupShare = (shard) => (shard.prepare_seconds_total > 0 ?
  shard.holdup_seconds_total / shard.prepare_seconds_total : null);

const isSlow = (shard) => shard.connected &&
    shard.holdup_seconds_total >= SLOW_SECONDS_MIN &&
    holdupShare(shard) >= SLOW_SHARE;

function showRow(row, shard, status) {
  const cells = row.children;
  const gone = !shard.connected && !status.ended;
  row.dataset.tone = gone ? 'warning' : isSlow(shard) ? 'notice' : '';
  setText(cells[0], String(shard.shard));
  setText(cells[1].firstElementChild, shard.connected ?
      `connected${isSlow(shard) ? ', slow' : ''}` :
      status.ended ? UNKNOWN : goneText(status, [shard]));
  setText(cells[2], count(shard.partitions));
  setText(cells[3], bytes(shard.weights_bytes));
  setText(cells[4], shortTime(shard.prepare_seconds));
  setText(cells[5], percent(holdupShare(shard), 0));
  setText(cells[6], shard.losses > 0 ? count(shard.losses) : 'never');
  setText(cells[7], shard.shard === 0 ? 'this server' :
      shard.address || UNKNOWN);
}

export function updateShards(status) {
  const shards = status.shards ?? [];
  byId('shards').hidden = shards.length < 2;
  if (shards.length < 2) return;
  const there = shards.filter((s) => s.connected).length;
  setText(byId('shards-note'), status.ended ? 'as they were at the end' :
      `${count(there)} of ${count(shards.length)} connected`);
  resizeRows(byId('shard-rows'), shards.length)
      .forEach((row, i) => showRow(row, shards[i], status));
}
