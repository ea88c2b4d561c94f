// Numbers for people. Unknown values are shown as a dash.

export const UNKNOWN = '–';
const NARROW = '\u202f';
const WHOLE = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});

export const known = (value) =>
    typeof value === 'number' && Number.isFinite(value);

// Seconds since 1970, by the server's clock.
export const nowOf = (status) => status.server_unix_us / 1e6;

// Null if the time is not known.
export const secondsSince = (status, unixSeconds) =>
    (known(unixSeconds) ? nowOf(status) - unixSeconds : null);

export const count = (value) => (known(value) ? WHOLE.format(value) : UNKNOWN);

export const plural = (value, one, many = `${one}s`) =>
    `${count(value)} ${value === 1 ? one : many}`;

// Three to four significant digits, without exponents where possible.
export function decimal(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1000) return WHOLE.format(value);
  if (size >= 100) return value.toFixed(1);
  if (size >= 10) return value.toFixed(2);
  if (size >= 0.1) return value.toFixed(3);
  if (size >= 0.0001) return String(Number(value.toPrecision(3)));
  return size === 0 ? '0' : value.toExponential(1);
}

export const percent = (ratio, digits = 1) =>
    known(ratio) ? `${(100 * ratio).toFixed(digits)}${NARROW}%` : UNKNOWN;

// Shows small shares as an upper bound rather than as zero.
export function smallPercent(ratio) {
  if (!known(ratio)) return UNKNOWN;
  if (ratio > 0 && ratio < 0.001) return `< 0.1${NARROW}%`;
  return percent(ratio);
}

// "5 min 3 s", or "5 min" without a rest.
function withRest(seconds, size, unit, smaller, smallerUnit) {
  const rest = Math.floor((seconds % size) / smaller);
  return `${Math.floor(seconds / size)} ${unit}` +
      (rest > 0 ? ` ${rest} ${smallerUnit}` : '');
}

// For times that people wait.
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const s = Math.max(seconds, 0);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return withRest(s, 60, 'min', 1, 's');
  if (s < 86400) return withRest(s, 3600, 'h', 60, 'min');
  return withRest(s, 86400, 'd', 3600, 'h');
}

// For times that programs take.
export function shortTime(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds >= 10) return duration(seconds);
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  const milliseconds = 1000 * seconds;
  if (milliseconds >= 100) return `${milliseconds.toFixed(0)} ms`;
  if (milliseconds >= 1) return `${milliseconds.toFixed(1)} ms`;
  return `${(1000 * milliseconds).toFixed(0)} µs`;
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${unit > 0 && rest < 100 ? rest.toFixed(1) : WHOLE.format(rest)} ${
      units[unit]}`;
}

export const clock = (unixSeconds) =>
    new Date(1000 * unixSeconds).toLocaleTimeString('en-GB');

export const dateTime = (unixSeconds) =>
    new Date(1000 * unixSeconds).toLocaleString(
        'en-GB', {dateStyle: 'medium', timeStyle: 'short'});

export const capitalised = (text) =>
    (text ? text[0].toUpperCase() + text.slice(1) : text);

// "aggregation=async learning_rate=0.02".
export const settingsText = (settings) =>
    Object.entries(settings ?? {})
        .map(([name, value]) => `${name}=${value}`)
        .join(' ');
