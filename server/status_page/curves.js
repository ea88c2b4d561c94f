// The curves of the run, with the changes of its policy marked on them.

import {byId, make, resize, setText} from './dom.js';
import {count, decimal, known, percent} from './format.js';
import {isChange} from './policy.js';
import {isLong, smoothed} from './smooth.js';
import {selectedRange, showZoom, shownSteps, zoomByDragging} from './zoom.js';

// Styles of series: distinguished by line and point, not only by colour.
const LOOKS = {
  main: {color: '--accent', width: 1.75, point: 0},
  test: {color: '--ink', width: 1.75, point: 3.5, style: 'circle'},
  second: {color: '--muted', width: 1.5, point: 3.5, style: 'triangle',
    dash: [2, 3]},
  other: {color: '--faint', width: 1.5, point: 3, style: 'rect', dash: [6, 4]},
};

// Share of the run over which a speed is computed.
const SPEED_WINDOW = 1 / 40;
const SPEED_WINDOW_MIN_S = 2;

// A row of history.csv covers this many steps; curves are continued from it.
const RECORDED_STEPS = 50;

const color = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// x is the step of a value.
const pointsOf = (curve, field) =>
    (curve ?? []).filter((point) => known(point[field]))
        .map((point) => ({x: point.version, y: point[field]}));

// One series for each kind of moving statistics that was tested, the exported
// kind first. Tests with another kind, before a change of policy, are a separate
// series.
function testSeries(status, field, name, look) {
  const test = status.curves?.test ?? [];
  const exported = status.batch_norm?.statistics?.[0];
  const kinds = [...new Set(test.map((point) => point.statistics ?? ''))]
      .sort((a, b) => (b === exported) - (a === exported));
  const newest = test.at(-1)?.version;
  return kinds.map((kind, i) => {
    const points =
        pointsOf(test.filter((p) => (p.statistics ?? '') === kind), field);
    return {name: i === 0 ? name : `${name} (${kind})`,
      look: i === 0 ? look : 'other', points,
      finished: points.length > 0 && points.at(-1).x < newest};
  });
}

function lossSeries(status) {
  return [
    {name: 'train', look: 'main', noisy: true,
      points: pointsOf(status.curves?.train, 'loss')},
    ...testSeries(status, 'loss', 'test', 'test'),
  ];
}

function qualitySeries(status) {
  const train = {name: 'train accuracy', look: 'main', noisy: true,
    points: pointsOf(status.curves?.train, 'accuracy')};
  const miou = testSeries(status, 'miou', 'test mIoU', 'test');
  const dense = miou.some(({points}) => points.length > 0);
  return dense ?
      [train, ...miou,
        ...testSeries(status, 'accuracy', 'test accuracy', 'second')] :
      [train, ...testSeries(status, 'accuracy', 'test accuracy', 'test')];
}

const isSmoothed = ({noisy, points}) => noisy && isLong(points);

const rateSeries = (status) =>
    [{name: '', look: 'main',
      points: pointsOf(status.curves?.train, 'learning_rate')}];

const secondsBetween = (a, b) => b.elapsed_seconds - a?.elapsed_seconds;

// Images per second of wall time. Single steps say little: without a barrier
// two of them may end within the same microsecond.
function speedSeries(status) {
  const train = (status.curves?.train ?? []).filter(
      (point) => known(point.elapsed_seconds) && known(point.samples));
  const span = train.length > 0 ? secondsBetween(train[0], train.at(-1)) : 0;
  const window = Math.max(SPEED_WINDOW_MIN_S, SPEED_WINDOW * span);
  const pauses = (i) =>
      i > 0 && secondsBetween(train[i - 1], train[i]) >= window;
  const points = [];
  let first = 0;
  train.forEach((point, i) => {
    // A pause counts as one slow step and does not slow the steps after it.
    if (pauses(i) || pauses(i - 1)) first = i - 1;
    while (secondsBetween(train[first + 1], point) >= window) first += 1;
    const seconds = secondsBetween(train[first], point);
    // Shorter spans occur only at the beginning, and are mostly noise.
    if (seconds < window / 4) return;
    points.push({x: point.version,
      y: (point.samples - train[first].samples) / seconds});
  });
  return [{name: '', look: 'main', points,
    // The same value as in the headline.
    now: status.ended ? null : status.samples_per_second}];
}

// "async", "learning_rate 0.02".
function changeText(settings) {
  const texts = Object.entries(settings ?? {}).map(([name, value]) =>
    (name === 'aggregation' ? String(value) :
                              `${name.replaceAll('_', ' ')} ${value}`));
  const text = texts.length > 1 ? `${texts[0]} +${texts.length - 1}` :
                                  texts[0] ?? '';
  return text.length > 22 ? `${text.slice(0, 21)}…` : text;
}

// The first step of the curves, if a restarted server has no records of earlier
// steps. In a long run one point stands for many steps.
function gapEnd(status) {
  const [first, second] = status.curves?.train ?? [];
  if (!status.checkpoint?.restored || first === undefined) return null;
  const width = Math.max(RECORDED_STEPS, (second ?? first).version - first.version);
  return first.version > 2 * width ? first.version : null;
}

function marksOf(status) {
  const marks = (status.policy?.history ?? [])
      .filter(isChange)
      .map((change) => ({x: change.version, text: changeText(change.settings)}));
  const gap = gapEnd(status);
  return gap === null ? marks :
                        [{x: gap, text: 'recorded from here'}, ...marks];
}

// Where the label of the mark at `x` begins: to its right or to its left, but
// not over another mark, another label or the border; null if it fits nowhere.
function labelLeft(x, width, xs, area, free) {
  const fits = (left) => left >= free && left >= area.left &&
      left + width <= area.right &&
      xs.every((other) => other === x || other < left - 3 ||
          other > left + width + 3);
  return [x + 4, x - 4 - width].find(fits) ?? null;
}

// Draws a line at each change, with a label if there is room.
const changeMarks = {
  id: 'changeMarks',
  beforeDatasetsDraw(chart) {
    const {ctx, chartArea: area, scales} = chart;
    const labels = chart.options.plugins.changeMarks.labels;
    let free = -Infinity;
    const marks = (chart.$marks ?? [])
        .map(({x, text}) => ({x: scales.x.getPixelForValue(x), text}))
        .filter(({x}) => x >= area.left && x <= area.right);
    const xs = marks.map(({x}) => x);
    ctx.save();
    ctx.font = `11px ${Chart.defaults.font.family}`;
    ctx.textBaseline = 'top';
    for (const {x, text} of marks) {
      ctx.strokeStyle = color('--faint');
      ctx.setLineDash([3, 3]);
      ctx.beginPath();
      ctx.moveTo(x, area.top);
      ctx.lineTo(x, area.bottom);
      ctx.stroke();
      const width = ctx.measureText(text).width;
      const left = labelLeft(x, width, xs, area, free);
      if (!labels || left === null) continue;
      ctx.fillStyle = color('--muted');
      ctx.fillText(text, left, area.top);
      free = left + width + 8;
    }
    ctx.restore();
  },
};

function themed(chart, options) {
  const {x, y} = chart.options.scales;
  for (const scale of [x, y]) scale.ticks.color = color('--muted');
  y.grid.color = color('--line');
  x.grid.borderColor = color('--line');
  Object.assign(chart.options.plugins.tooltip, {
    backgroundColor: color('--ink'), titleColor: color('--card'),
    bodyColor: color('--card'),
  });
  chart.options.plugins.changeMarks.labels = options.labels;
}

function scalesOf(options) {
  const tick = {maxRotation: 0, autoSkipPadding: 16, padding: 6};
  return {
    x: {type: 'linear', grid: {display: false, drawTicks: false},
      ticks: {...tick, precision: 0, maxTicksLimit: 6,
        callback: (value) => count(value)}},
    y: {grid: {drawBorder: false, drawTicks: false},
      afterDataLimits: (axis) => {
        axis.max = Math.min(axis.max, options.most ?? Infinity);
      },
      suggestedMin: options.from,
      ticks: {...tick, maxTicksLimit: 6, callback: options.tick}},
  };
}

function makeChart(canvas, options) {
  return new Chart(canvas, {
    type: 'line',
    data: {datasets: []},
    plugins: [changeMarks, selectedRange],
    options: {
      animation: false, responsive: true, maintainAspectRatio: false,
      parsing: false, normalized: true, locale: 'en-US',
      interaction: {mode: 'nearest', axis: 'x', intersect: false},
      scales: scalesOf(options),
      plugins: {
        legend: {display: false}, changeMarks: {},
        tooltip: {
          filter: ({dataset}) => dataset.order !== 1,
          displayColors: false, padding: 10, cornerRadius: 6, caretSize: 0,
          callbacks: {
            title: ([item]) => (item ? `step ${count(item.parsed.x)}` : ''),
            label: ({dataset, parsed}) =>
              `${dataset.label} ${options.value(parsed.y)}`.trim(),
          },
        },
      },
    },
  });
}

function datasetOf({name, look, points}) {
  const {color: stroke, width, point, style, dash} = LOOKS[look];
  return {
    label: name, data: points, borderColor: color(stroke), borderWidth: width,
    borderDash: dash ?? [], backgroundColor: color(stroke), pointStyle: style,
    // A line needs two points; a single point is shown as such.
    pointRadius: points.length === 1 ? 3 : point, pointHoverRadius: 4,
    // The newest point lies on the border and is drawn whole.
    pointHitRadius: 8, clip: 6, order: 0,
  };
}

// Single steps are drawn pale, with their running mean over them.
function meanOf({look, points}) {
  const line = datasetOf({name: '', look, points: smoothed(points)});
  return {...line, order: 1, pointHoverRadius: 0};
}

function datasetsOf(series) {
  const datasets = series.map(datasetOf);
  series.forEach((one, i) => {
    if (!isSmoothed(one)) return;
    datasets.push(meanOf(one));
    Object.assign(datasets[i], {
      order: 2, borderColor: color('--accent-pale'), borderWidth: 1.25,
    });
  });
  return datasets;
}

function makeKey() {
  const item = make('li');
  item.append(make('span', 'line'), make('span', 'name'), make('b'));
  return item;
}

// Series that have ended, such as tests under an earlier policy, are named when
// hovered.
function showKeys(figure, series, value) {
  const keys = series.filter(
      ({points, finished}) => points.length > 0 && !finished);
  resize(figure.querySelector('.keys'), keys.length, makeKey)
      .forEach((item, i) => {
        const {name, look, points, now} = keys[i];
        const shown = isSmoothed(keys[i]) ? smoothed(points) : points;
        item.children[0].className = name ? `line look-${look}` : '';
        setText(item.children[1], name);
        setText(item.children[2],
                value(known(now) && now > 0 ? now : shown.at(-1).y));
      });
}

function describe(title, series, value) {
  const ends = series.filter(({points}) => points.length > 0)
      .map(({name, points}) => `${name} from ${value(points[0].y)} at step ${
          count(points[0].x)} to ${value(points.at(-1).y)} at step ${
          count(points.at(-1).x)}`.trim());
  return ends.length > 0 ? `${title}: ${ends.join('; ')}` :
                           `${title}: no value yet`;
}

class Curve {
  constructor(id, series, options) {
    this.figure = byId(id);
    this.series = series;
    this.options = options;
    this.canvas = this.figure.querySelector('canvas');
    this.chart = null;
    zoomByDragging(this.canvas, () => this.chart);
  }

  update(status) {
    const series = this.series(status);
    const some = series.some(({points}) => points.length > 0);
    const charts = typeof Chart !== 'undefined';
    const title = this.figure.querySelector('h2').textContent;
    showKeys(this.figure, series, this.options.value);
    setText(this.figure.querySelector('.empty'),
            some && charts ? '' : some ? 'The charts did not load.' :
                                         this.options.empty);
    this.canvas.setAttribute(
        'aria-label', describe(title, series, this.options.value));
    if (charts) this.draw(series, status, some);
  }

  draw(series, status, some) {
    this.canvas.hidden = !some;
    this.chart ??= makeChart(this.canvas, this.options);
    themed(this.chart, this.options);
    const datasets = datasetsOf(series);
    // Datasets are reused between drawings, so that hovered points stay
    // hovered.
    this.chart.data.datasets = datasets.map((dataset, i) =>
      Object.assign(this.chart.data.datasets[i] ?? {}, dataset));
    this.chart.$marks = marksOf(status);
    // Unless zoomed, the axis covers the whole run, even if the first steps were
    // not recorded.
    const {from, to} = shownSteps(status.version);
    this.chart.options.scales.x.min = from;
    this.chart.options.scales.x.max = to;
    // Without mode 'none', which would keep the old colours of points.
    this.chart.update();
  }
}

// Without trailing zeros.
const tickText = (y) =>
    (Math.abs(y) < 1000 && Math.abs(y) > 1e-4 ? String(Number(y.toPrecision(3))) :
                                                decimal(y));
const asPercent = (ratio) => percent(ratio);
const curves = [
  new Curve('curve-loss', lossSeries, {
    value: decimal, tick: tickText, labels: true,
    empty: 'Begins with the first step.',
  }),
  new Curve('curve-quality', qualitySeries, {
    value: asPercent, tick: (y) => percent(y, 0), labels: true, most: 1,
    empty: 'Begins with the first step.',
  }),
  new Curve('curve-rate', rateSeries, {
    value: decimal, tick: tickText, from: 0, labels: false,
    empty: 'Nothing yet.',
  }),
  new Curve('curve-speed', speedSeries, {
    value: count, tick: (y) => count(y), from: 0, labels: false,
    empty: 'Nothing yet.',
  }),
];

export function updateCurves(status) {
  showZoom();
  const dense = (status.curves?.test ?? []).some((p) => known(p.miou)) ||
      known(status.test_miou);
  setText(byId('curve-quality').querySelector('h2'),
          dense ? 'mIoU and pixel accuracy' : 'Accuracy');
  if (typeof Chart !== 'undefined') {
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
  }
  for (const curve of curves) curve.update(status);
}
