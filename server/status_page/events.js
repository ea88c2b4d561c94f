// The events of the run, for people who were not watching.

import {byId, make, resize, setText, shownRows} from './dom.js';
import {capitalised, clock, dateTime} from './format.js';

const ROWS = 8;

// Includes the date if the event was not today.
function when(at) {
  const date = new Date(1000 * at);
  if (date.toDateString() === new Date().toDateString()) return clock(at);
  return dateTime(at);
}

function makeEvent() {
  const row = make('li');
  row.append(make('time'), make('span', 'what'));
  return row;
}

export function updateEvents(status) {
  const events = [...status.events ?? []].reverse();
  const shown = shownRows(byId('events-more'), events.length, ROWS, 'events');
  resize(byId('event-rows'), shown, makeEvent).forEach((row, i) => {
    const {unix_s: at, severity, text} = events[i];
    row.dataset.tone = severity === 'info' ? '' : 'warning';
    setText(row.children[0], when(at));
    row.children[0].dateTime = new Date(1000 * at).toISOString();
    setText(row.children[1], capitalised(text));
  });
  setText(byId('events-none'), events.length === 0 ? 'Nothing so far.' : '');
}
