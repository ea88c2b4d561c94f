// Small helpers for the document. Names that come from outside (processes,
// layers, settings) enter it only as text, never as markup.

export const byId = (id) => document.getElementById(id);

// Leaves a node alone if its text is the same, so that selections and screen
// readers are not disturbed every second.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function make(tag, className = '', text = '') {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

// Gives `parent` exactly `count` children, keeping existing ones, and returns
// them in order.
export function resize(parent, count, create) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(create());
  return [...parent.children];
}

export function setTexts(parent, texts, create) {
  resize(parent, texts.length, create)
      .forEach((node, i) => setText(node, texts[i]));
}

// The number of `total` rows to show: all of them after a click on `button`.
export function shownRows(button, total, limit, noun) {
  if (!button.dataset.ready) {
    button.dataset.ready = 'yes';
    button.setAttribute('aria-expanded', 'false');
    button.addEventListener('click', () => {
      const open = button.getAttribute('aria-expanded') === 'true';
      button.setAttribute('aria-expanded', String(!open));
      button.dispatchEvent(new CustomEvent('rows', {bubbles: true}));
    });
  }
  const open = button.getAttribute('aria-expanded') === 'true';
  button.hidden = total <= limit;
  setText(button, open ? 'Show fewer' : `Show all ${total} ${noun}`);
  return open ? total : Math.min(limit, total);
}

function makeBar() {
  const row = make('li');
  row.append(make('span', 'name'), make('span', 'track'), make('span', 'size'));
  row.children[1].setAttribute('aria-hidden', 'true');
  row.children[1].append(make('span', 'fill'));
  return row;
}

// rows: {name, share (0..1 of the track), size (text), tone, title}.
export function setBars(list, rows) {
  resize(list, rows.length, makeBar).forEach((node, i) => {
    const row = rows[i];
    setText(node.children[0], row.name);
    node.children[0].title = row.name;
    setText(node.children[2], row.size);
    node.dataset.tone = row.tone || '';
    const percent = 100 * Math.min(Math.max(row.share, 0), 1);
    node.children[1].firstElementChild.style.width = `${percent}%`;
  });
}

// A row of a table that becomes a block on a phone, so each cell repeats what
// the table's head says. The second column has the state of what it describes.
function makeLabelledRow(head) {
  const row = make('tr');
  row.setAttribute('role', 'row');
  [...head.children].forEach(({className, textContent}, i) => {
    const cell = make(i === 0 ? 'th' : 'td', className);
    if (i === 0) cell.scope = 'row';
    cell.setAttribute('role', i === 0 ? 'rowheader' : 'cell');
    cell.dataset.label = textContent;
    row.append(cell);
  });
  row.children[1].append(make('span', 'badge'));
  return row;
}

export function resizeRows(body, count) {
  const [head] = body.parentElement.tHead.rows;
  return resize(body, count, () => makeLabelledRow(head));
}

function makeFigure() {
  const group = make('div');
  group.append(make('dt'), make('dd'));
  return group;
}

// rows: [name, text].
export function setFigures(list, rows) {
  resize(list, rows.length, makeFigure).forEach((node, i) => {
    setText(node.children[0], rows[i][0]);
    setText(node.children[1], rows[i][1]);
  });
}
