// The server's verdicts on pushes, and its own use of resources.

import {byId, setBars, setFigures, setText} from './dom.js';
import {UNKNOWN, bytes, count, duration, known, percent, smallPercent} from './format.js';

const TONES = {
  applied: '', damped: 'notice', dropped: 'notice', rejected_nonfinite: 'warning',
  invalid: 'warning', replay_mismatch: 'warning',
};

let previousCpu = null;

function setCounts(list, rows, all) {
  const most = Math.max(1, ...rows.map(({n}) => n));
  setBars(list, rows.map(({name, n, tone}) => ({
    name, share: n / most, tone: n > 0 ? tone : 'none',
    size: n > 0 && n < all ? `${count(n)} · ${smallPercent(n / all)}` : count(n),
  })));
}

export function updatePushes(status) {
  const verdicts = Object.entries(status.verdicts ?? {});
  const all = verdicts.reduce((sum, [, n]) => sum + n, 0);
  const words = (verdict) => verdict.replace('_', ' ');
  setCounts(byId('verdict-bars'), verdicts.filter(([, n]) => n > 0)
      .map(([verdict, n]) => ({
        name: words(verdict), n, tone: TONES[verdict] ?? '',
      })), all);
  const none = verdicts.filter(([, n]) => n === 0).map(([v]) => words(v));
  setText(byId('verdict-note'), all === 0 ? 'No push has come yet.' :
      none.length > 0 ? `None ${none.join(', ')}.` : '');

  const stale = status.staleness ?? [];
  const decided = stale.reduce((sum, {count: n}) => sum + n, 0);
  setCounts(byId('staleness-bars'), decided === 0 ? [] : stale.map((bucket) => ({
    name: String(bucket.versions), n: bucket.count, tone: '',
  })), decided);
  setText(byId('staleness-note'), decided === 0 ?
      'Under sync no push is stale.' :
      'Steps between reading weights and changing them, by pushes.');
}

// Cores in use between the last two answers.
function cpuText(status) {
  const now = {at: status.now, seconds: status.server?.cpu_seconds};
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
  const server = status.server ?? {};
  const build = status.build ?? {};
  const limit = known(server.inflight_limit_bytes) ?
      ` of ${bytes(server.inflight_limit_bytes)}` : '';
  setFigures(byId('server-figures'), [
    ['Gradients in flight', `${bytes(server.inflight_bytes)}${limit}`],
    ['Memory', bytes(server.resident_bytes)],
    ['CPU', cpuText(status)],
    ['Open files', count(server.open_fds)],
    ['Up for', duration(status.uptime_seconds)],
  ]);
  setText(byId('server-note'), [build.version, build.commit?.slice(0, 12)]
      .filter(Boolean).join(' · '));
}
