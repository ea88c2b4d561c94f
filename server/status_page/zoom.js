// The steps that the curves show: the whole run, or a range that was chosen by
// dragging across a curve. All curves show the same range.

import {make} from './dom.js';

// A shorter drag is a click.
const DRAG_MIN_PX = 6;
const STEPS_MIN = 2;

// {from, to} in steps; null for the whole run. `to` is infinite if the range
// was dragged to the newest step: it then grows with the run.
let range = null;

// The drag in progress: {chart, from, to} in pixels.
let drag = null;

export function shownSteps(newest) {
  const last = Math.max(newest, 1);
  if (range === null) return {from: 0, to: last};
  return {from: range.from, to: Math.min(range.to, last)};
}

const redraw = (node) =>
    node.dispatchEvent(new CustomEvent('rows', {bubbles: true}));

function setRange(next, node) {
  range = next;
  redraw(node);
}

// Adds to each curve a button that ends the zoom, shown while there is one.
export function showZoom() {
  for (const caption of document.querySelectorAll('.curve figcaption')) {
    let button = caption.querySelector('.whole');
    if (button === null) {
      button = make('button', 'whole', 'Whole run');
      button.type = 'button';
      button.addEventListener('click', () => setRange(null, button));
      caption.append(button);
    }
    button.hidden = range === null;
  }
}

function rangeOf({chart, from, to}) {
  const {x} = chart.scales;
  const [first, last] = [from, to].sort((a, b) => a - b)
      .map((pixel) => x.getValueForPixel(pixel));
  const newest = last >= x.max - (x.max - x.min) / 100;
  return {from: Math.max(0, Math.floor(first)),
    to: newest ? Infinity : Math.ceil(last)};
}

// `chartOf` returns the chart of the canvas, or null while there is none.
export function zoomByDragging(canvas, chartOf) {
  const within = (event) => {
    const {left, right} = chartOf().chartArea;
    return Math.min(Math.max(event.offsetX, left), right);
  };
  canvas.title = 'Drag across to zoom';
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0 || chartOf() === null) return;
    const x = within(event);
    drag = {chart: chartOf(), from: x, to: x};
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (drag === null || drag.chart !== chartOf()) return;
    drag.to = within(event);
    drag.chart.draw();
  });
  canvas.addEventListener('pointerup', () => {
    const ended = drag;
    drag = null;
    if (ended === null) return;
    const next = rangeOf(ended);
    const wide = Math.abs(ended.to - ended.from) >= DRAG_MIN_PX &&
        next.to - next.from >= STEPS_MIN;
    if (wide) setRange(next, canvas);
    else ended.chart.draw();
  });
  canvas.addEventListener('pointercancel', () => {
    drag = null;
  });
  canvas.addEventListener('dblclick', () => setRange(null, canvas));
}

// Draws the drag in progress.
export const selectedRange = {
  id: 'selectedRange',
  afterDraw(chart) {
    if (drag?.chart !== chart) return;
    const {ctx, chartArea: {top, bottom}} = chart;
    ctx.save();
    ctx.fillStyle = getComputedStyle(document.documentElement)
        .getPropertyValue('--accent').trim();
    ctx.globalAlpha = 0.15;
    ctx.fillRect(Math.min(drag.from, drag.to), top,
                 Math.abs(drag.to - drag.from), bottom - top);
    ctx.restore();
  },
};
