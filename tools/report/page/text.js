// Numbers, names and elements as text. Strings of a trace become text nodes only.

const DIRECTIONS = ['to the device', 'to the host', 'within a device', 'between devices',
                    'other memory', 'within the host'];
const byId = (id) => document.getElementById(id);

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
const TIME_UNITS = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];

function formatBytes(bytes, decimals = 1) {
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < BYTE_UNITS.length) {
    bytes /= 1024;
    ++unit;
  }
  return `${bytes.toFixed(unit === 0 ? 0 : decimals)} ${BYTE_UNITS[unit]}`;
}

function formatTime(ns, digits = 4) {
  if (ns === 0) return '0 s';
  const [scale, unit] = TIME_UNITS.find(([size]) => Math.abs(ns) >= size) || [1, 'ns'];
  return `${Number((ns / scale).toPrecision(digits))} ${unit}`;
}

/** For axes: as few decimals as the value needs. */
const formatRound = (bytes) =>
    formatBytes(bytes, 2).replace(/(\.\d*?)0+ /, '$1 ').replace('. ', ' ');
const formatCount = (count) => count.toLocaleString('en-US');
const formatShare = (part) => `${(100 * part).toFixed(1)} %`;
const formatRate = (bytes, ns) => `${(bytes / ns).toPrecision(3)} GB/s`;
const formatAddress = (units) => `0x${(BigInt(Math.floor(units)) * 256n).toString(16)}`;
const plural = (count, noun) => `${formatCount(count)} ${noun}${count === 1 ? '' : 's'}`;
const tagName = (index) => facts.tags[index] ?? 'untagged';
const siteName = (index) => facts.sites[index] ?? 'unknown';
const kernelName = (index) => facts.kernels[index] ?? 'unknown';
const streamName = (index) => facts.streams[index]?.name ?? 'unknown';
const deviceName = (index) => index < 0 ? 'all devices' : facts.devices[index]?.name ?? 'unknown';
/** The host waits for a stream, or for stream 0: for all of them. */
const waitTarget = (index) => index === 0 ? 'all streams' : streamName(index);
const directionName = (value) => DIRECTIONS[value] ?? String(value);

/** Creates an element. Children are nodes or strings, and strings become text nodes. */
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'onclick') node.addEventListener('click', value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function swatch(color, kind = '') {
  const node = element('span', {class: `swatch ${kind}`, 'aria-hidden': 'true'});
  if (kind === 'line') node.style.borderColor = color;
  else if (kind === 'arrow') node.style.color = color;
  else node.style.background = color;
  return node;
}
