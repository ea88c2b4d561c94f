// The policy in force, the pending change, and earlier changes.

import {byId, make, resize, setFigures, setText} from './dom.js';
import {UNKNOWN, capitalised, count, settingsText} from './format.js';

function makeChange() {
  const row = make('tr');
  row.append(make('td'), make('td', 'number'), make('td', 'what'));
  return row;
}

function showPending(policy) {
  const pending = settingsText(policy.pending);
  byId('policy-pending').hidden = pending === '';
  const reason = policy.pending_reason ? `, ${policy.pending_reason}` : '';
  setText(byId('policy-pending'), `Change in progress: ${pending}${reason}`);
}

// The first record is the initial policy, not a change.
export const isChange = (record) => record.policy_epoch > 1;

// "aggregation=async, by ana@host: too slow".
function changeText({settings, text, author, reason}) {
  return [settingsText(settings) || text,
    [author ? `by ${author}` : '', reason].filter(Boolean).join(': ')]
      .filter(Boolean).join(', ');
}

export function updatePolicy(status) {
  const policy = status.policy ?? {};
  const changes = (policy.history ?? []).filter(isChange).reverse();
  setText(byId('policy-text'), capitalised(policy.text || UNKNOWN));
  setText(byId('policy-since'), changes.length > 0 ?
      `since step ${count(changes[0].version)}` : '');
  showPending(policy);
  resize(byId('policy-rows'), changes.length, makeChange).forEach((row, i) => {
    const change = changes[i];
    setText(row.children[0], count(change.policy_epoch));
    setText(row.children[1], count(change.version));
    setText(row.children[2], changeText(change));
  });
  byId('policy-rows').parentElement.hidden = changes.length === 0;
  setText(byId('policy-none'),
          changes.length === 0 ? 'Not changed since the run began.' : '');
  setFigures(byId('policy-settings'), Object.entries(policy.settings ?? {})
      .map(([name, value]) => [name, String(value)]));
}
