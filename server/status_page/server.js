// The server's verdicts on pushes, and its own use of resources.

import {byId, setBars, setFigures, setText} from './dom.js';
import {UNKNOWN, bytes, count, duration, known, nowOf, percent, smallPercent} from './format.js';

const TONES = {
  applied: '', damped: 'notice', dropped: 'notice', rejected_nonfinite: 'warning',
  invalid: 'warning', replay_mismatch: 'warning',
};

// The server counts higher ones as this.
const STALENESS_COUNTED_MAX = 256;

let previousCpu = null;

function setCounts(list, rows, all) {
  const most = Math.max(1, ...rows.map(({n}) => n));
  setBars(list, rows.map(({name, n, tone}) => ({
    name, share: n / most, tone: n > 0 ? tone : 'none',
    size: n > 0 && n < all ? `${count(n)} · ${smallPercent(n / all)}` : count(n),
  })));
}

// Pushes by staleness, in ranges whose bounds double.
function inRanges(pushes) {
  const ranges = new Map();
  for (const [versions, n] of Object.entries(pushes)) {
    const begin = versions < 1 ? 0 : 2 ** Math.floor(Math.log2(versions));
    ranges.set(begin, (ranges.get(begin) ?? 0) + n);
  }
  const nameOf = (begin) => (begin >= STALENESS_COUNTED_MAX ? `${begin}+` :
      begin < 2 ? String(begin) : `${begin}-${2 * begin - 1}`);
  return [...ranges].sort(([a], [b]) => a - b)
      .map(([begin, n]) => ({name: nameOf(begin), n, tone: ''}));
}

export function updatePushes(status) {
  const verdicts = Object.entries(status.push_verdicts ?? {});
  const all = verdicts.reduce((sum, [, n]) => sum + n, 0);
  const words = (verdict) => verdict.replace('_', ' ');
  setCounts(byId('verdict-bars'), verdicts.filter(([, n]) => n > 0)
      .map(([verdict, n]) => ({
        name: words(verdict), n, tone: TONES[verdict] ?? '',
      })), all);
  const none = verdicts.filter(([, n]) => n === 0).map(([v]) => words(v));
  setText(byId('verdict-note'), all === 0 ? 'No push has come yet.' :
      none.length > 0 ? `None ${none.join(', ')}.` : '');

  const stale = inRanges(status.staleness_versions ?? {});
  const decided = stale.reduce((sum, {n}) => sum + n, 0);
  setCounts(byId('staleness-bars'), stale, decided);
  setText(byId('staleness-note'), decided === 0 ?
      'Under sync no push is stale.' :
      'Steps between reading weights and changing them, by pushes.');
}

// Cores in use between the last two answers.
function cpuText(status) {
  const now = {at: nowOf(status), seconds: status.process?.cpu_seconds};
  const before = previousCpu;
  previousCpu = now;
  if (!known(now.seconds)) return UNKNOWN;
  const elapsed = before === null ? 0 : now.at - before.at;
  if (!(elapsed > 0) || now.seconds < before.seconds) {
    return `${duration(now.seconds)} in all`;
  }
  return `${percent((now.seconds - before.seconds) / elapsed, 0)} of a core`;
}

// The server accepts only links of these kinds; a fixture may not.
function showDashboards(url) {
  const shown = /^https?:\/\//.test(url ?? '');
  byId('dashboards').hidden = !shown;
  if (shown) byId('dashboards').firstElementChild.href = url;
}

export function updateServer(status) {
  showDashboards(status.dashboards_url);
  const process = status.process ?? {};
  const limit = known(process.inflight_bytes_max) ?
      ` of ${bytes(process.inflight_bytes_max)}` : '';
  setFigures(byId('server-figures'), [
    ['Gradients in flight', `${bytes(process.inflight_bytes)}${limit}`],
    ['Memory', bytes(process.resident_bytes)],
    ['CPU', cpuText(status)],
    ['Open files', count(process.open_fds)],
    ['Up for', duration(status.uptime_seconds)],
  ]);
  setText(byId('server-note'), status.build ?? '');
}
