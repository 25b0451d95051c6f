// The program of the report page. README.md in this folder specifies the data.
//
// All events stay in typed arrays. A redraw reads them for each pixel column: a binary search finds
// the events of the column, and checkpoints every CHUNK events bound the work for one column. The
// block map is drawn as block indices first and as colors second, so that the block under the
// pointer is a lookup. Strings of the trace become text nodes only.

(() => {
'use strict';

const CHUNK = 256;           // events between two checkpoints, blocks in a skippable run
const COLORS = 8;            // colors for groups; the remaining groups share one more
const MIN_SPAN_NS = 20;
const ADDRESS_UNIT = 256;    // bytes
const LEFT = 106;            // width of the axis labels, the same for all charts
const RIGHT = 14;
const AXIS = 22;             // height of the time labels
const MARKER_BAND = 20;      // height of the marker labels above the memory chart
const LANE = 36;
const RANGE_ROW = 18;
const MAX_RANGE_ROWS = 16;
const MAX_LANES = 64;        // a canvas has a maximum height
const FIRST_ROWS = 12;       // rows of a table before "Show all"
const EDGE = 0x40000000;     // marks a pixel at the edge of a block in the map
const DIRECTIONS = ['to the device', 'to the host', 'within a device', 'between devices',
                    'other memory'];
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const MONO = '11px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

const byId = (id) => document.getElementById(id);

// ---- Decoding ----------------------------------------------------------------------------------

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const codes = new Uint8Array(128);
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
  for (let i = 0; i < 64; ++i) codes[alphabet.charCodeAt(i)] = i;
  const source = text.trim();
  const padding = source.endsWith('==') ? 2 : source.endsWith('=') ? 1 : 0;
  const bytes = new Uint8Array(source.length / 4 * 3 - padding);
  // A write past the end, which the padding causes, has no effect on a typed array.
  for (let from = 0, to = 0; from < source.length; from += 4) {
    const word = codes[source.charCodeAt(from)] << 18 | codes[source.charCodeAt(from + 1)] << 12 |
                 codes[source.charCodeAt(from + 2)] << 6 | codes[source.charCodeAt(from + 3)];
    bytes[to++] = word >> 16;
    bytes[to++] = word >> 8;
    bytes[to++] = word;
  }
  return bytes;
}

function decodeVarints(bytes, from, out) {
  for (let i = 0; i < out.length; ++i) {
    let byte = bytes[from++];
    let value = byte & 127;
    // Multiplication instead of shifts, because values may need 53 bits.
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[from++];
      value += (byte & 127) * scale;
    }
    out[i] = value;
  }
  return from;
}

function columnReader(facts, bytes) {
  return (name, Kind = Uint32Array) => {
    const place = facts.columns[name];
    if (!place) return new Kind(0);
    const values = new Kind(place.count);
    const end = place.offset + place.bytes;
    if (end > bytes.length || decodeVarints(bytes, place.offset, values) !== end) {
      throw new Error(`The column '${name}' of the report is damaged.`);
    }
    return values;
  };
}

function addUp(values) {
  for (let i = 1; i < values.length; ++i) values[i] += values[i - 1];
  return values;
}

function addUpZigzag(values) {
  let sum = 0;
  for (let i = 0; i < values.length; ++i) {
    const value = values[i];
    sum += value & 1 ? -(value + 1) / 2 : value / 2;
    values[i] = sum;
  }
  return values;
}

// ---- Searching and sorting ---------------------------------------------------------------------

/** Returns the first index in [first, sorted.length) whose value is at least `value`. */
function lowerBound(sorted, value, first = 0) {
  let last = sorted.length;
  while (first < last) {
    const middle = (first + last) >>> 1;
    if (sorted[middle] < value) first = middle + 1;
    else last = middle;
  }
  return first;
}

/** Returns the first index whose value is above `value`. */
function upperBound(sorted, value) {
  let first = 0;
  let last = sorted.length;
  while (first < last) {
    const middle = (first + last) >>> 1;
    if (sorted[middle] <= value) first = middle + 1;
    else last = middle;
  }
  return first;
}

/** Returns the indices that sort `keys`, which are integers from 0 to 2^53. Radix sort: a sort
    with a comparison function would take most of the loading time. */
function sortedOrder(keys) {
  const count = keys.length;
  let order = new Uint32Array(count);
  let next = new Uint32Array(count);
  let largest = 0;
  for (let i = 0; i < count; ++i) {
    order[i] = i;
    if (keys[i] > largest) largest = keys[i];
  }
  const digits = new Uint16Array(count);
  for (let scale = 1; scale <= largest; scale *= 65536) {
    const starts = new Uint32Array(65537);
    for (let i = 0; i < count; ++i) {
      digits[i] = scale < 4294967296 ? (keys[i] >>> 0) / scale : keys[i] / scale;
      ++starts[digits[i] + 1];
    }
    addUp(starts);
    for (let i = 0; i < count; ++i) next[starts[digits[order[i]]]++] = order[i];
    [order, next] = [next, order];
  }
  return order;
}

// ---- Model -------------------------------------------------------------------------------------

function readBlocks(facts, column) {
  const begin = addUp(column('block_begin', Float64Array));
  const end = column('block_life', Float64Array);
  for (let i = 0; i < end.length; ++i) end[i] = end[i] === 0 ? Infinity : begin[i] + end[i] - 1;
  const kind = column('block_kind');
  /** Most blocks are like many others, so a block names a row of a table. */
  const ofKind = (name, Kind = Uint32Array) => {
    const row = column(name, Kind);
    const values = new Kind(kind.length);
    for (let i = 0; i < values.length; ++i) values[i] = row[kind[i]];
    return values;
  };
  const resource = ofKind('kind_resource');
  const deviceOf = facts.resources.map((entry) => entry.device);
  const device = new Uint16Array(begin.length);
  for (let i = 0; i < device.length; ++i) device[i] = deviceOf[resource[i]];
  const latestEnd = new Float64Array(Math.ceil(begin.length / CHUNK));
  for (let i = 0; i < end.length; ++i) {
    const run = Math.floor(i / CHUNK);
    if (end[i] > latestEnd[run]) latestEnd[run] = end[i];
  }
  return {
    count: begin.length, begin, end, latestEnd, resource, device,
    bytes: ofKind('kind_bytes', Float64Array),
    address: addUpZigzag(column('block_address', Float64Array)),
    tag: ofKind('kind_tag'),
    stream: ofKind('kind_stream'),
    freeStream: ofKind('kind_free_stream'),
    site: ofKind('kind_site'),
    freeSite: ofKind('kind_free_site'),
  };
}

/** Allocations (block index) and frees (inverted block index) by time. Frees come first at equal
    times, so that a block which replaces another adds no peak. */
function orderEvents(blocks) {
  const freed = new Uint32Array(blocks.count);
  let frees = 0;
  for (let i = 0; i < blocks.count; ++i) if (blocks.end[i] !== Infinity) freed[frees++] = i;
  const ends = new Float64Array(frees);
  for (let i = 0; i < frees; ++i) ends[i] = blocks.end[freed[i]];
  const order = sortedOrder(ends);
  const time = new Float64Array(blocks.count + frees);
  const block = new Int32Array(blocks.count + frees);
  for (let at = 0, a = 0, f = 0; at < time.length; ++at) {
    const isFree = f < frees && (a === blocks.count || ends[order[f]] <= blocks.begin[a]);
    time[at] = isFree ? ends[order[f]] : blocks.begin[a];
    block[at] = isFree ? ~freed[order[f++]] : a++;
  }
  return {time, block};
}

/** Address ranges in use, by device. Unused addresses are left out where they would take more than
    a fiftieth of the used ones. */
function findRegions(blocks, devices) {
  const order = sortedOrder(blocks.address);
  const spans = devices.map(() => []);
  for (let n = 0; n < order.length; ++n) {
    const i = order[n];
    const begin = blocks.address[i];
    const end = begin + Math.max(1, blocks.bytes[i] / ADDRESS_UNIT);
    const known = spans[blocks.device[i]];
    const last = known[known.length - 1];
    if (last && begin <= last.end) last.end = Math.max(last.end, end);
    else known.push({begin, end});
  }
  const regions = [];
  spans.forEach((known, device) => {
    const used = known.reduce((sum, span) => sum + span.end - span.begin, 0);
    known.forEach((span, i) => {
      const last = regions[regions.length - 1];
      if (i > 0 && span.begin - last.end <= used / 50) last.end = span.end;
      else regions.push({device, begin: span.begin, end: span.end});
    });
  });
  return {regions, regionOf: assignRegions(blocks, order, regions, devices.length)};
}

function assignRegions(blocks, order, regions, deviceCount) {
  const regionOf = new Uint32Array(blocks.count);
  const current = [];
  for (let device = 0; device < deviceCount; ++device) {
    current.push(regions.findIndex((region) => region.device === device));
  }
  for (let n = 0; n < order.length; ++n) {
    const i = order[n];
    const device = blocks.device[i];
    while (blocks.address[i] >= regions[current[device]].end) ++current[device];
    regionOf[i] = current[device];
  }
  return regionOf;
}

function readMarks(column, name, endOf) {
  const time = addUp(column(`${name}_time`, Float64Array));
  const took = column(`${name}_took`, Float64Array);
  const end = new Float64Array(time.length);
  let longest = 0;
  for (let i = 0; i < time.length; ++i) {
    end[i] = time[i] + endOf(took[i]);
    longest = Math.max(longest, end[i] - time[i]);
  }
  return {time, took, end, longest, stream: column(`${name}_stream`), site: column(`${name}_site`)};
}

function loadModel(facts, column) {
  const blocks = readBlocks(facts, column);
  const copies = readMarks(column, 'copy', (took) => Math.max(0, took - 1));
  Object.assign(copies, {bytes: column('copy_bytes', Float64Array),
                         kind: column('copy_direction'), tag: column('copy_tag')});
  const launches = readMarks(column, 'launch', () => 0);
  launches.kernel = column('launch_kernel');
  const waits = readMarks(column, 'wait', (took) => took);
  waits.source = column('wait_for');
  const ranges = {
    time: addUp(column('range_begin', Float64Array)), end: column('range_took', Float64Array),
    depth: column('range_depth'), thread: column('range_thread'), name: column('range_name'),
  };
  for (let i = 0; i < ranges.end.length; ++i) ranges.end[i] += ranges.time[i];
  return {
    blocks, copies, launches, waits, ranges,
    events: orderEvents(blocks),
    ...findRegions(blocks, facts.devices),
    holds: {
      time: addUp(column('hold_time', Float64Array)), resource: column('hold_resource'),
      bytes: column('hold_bytes', Float64Array),
    },
  };
}

// ---- Curves: live bytes over time --------------------------------------------------------------

/** Live bytes of a device (-1: all) after each event, and the highest event of each run. */
function makeTotals(device) {
  const {events: {block}, blocks} = model;
  const total = new Float64Array(block.length);
  const highest = new Uint32Array(Math.ceil(block.length / CHUNK));
  let live = 0;
  for (let i = 0; i < block.length; ++i) {
    const id = block[i] < 0 ? ~block[i] : block[i];
    if (device < 0 || blocks.device[id] === device) {
      live += block[i] < 0 ? -blocks.bytes[id] : blocks.bytes[id];
    }
    total[i] = live;
    const run = Math.floor(i / CHUNK);
    if (i % CHUNK === 0 || live > total[highest[run]]) highest[run] = i;
  }
  return {total, highest};
}

function highestEvent({total, highest}, first, last) {
  let best = first;
  for (let i = first; i < last;) {
    const isWholeRun = i % CHUNK === 0 && i + CHUNK <= last;
    const candidate = isWholeRun ? highest[i / CHUNK] : i;
    if (total[candidate] > total[best]) best = candidate;
    i += isWholeRun ? CHUNK : 1;
  }
  return best;
}

function groupsOf(mode) {
  const {blocks} = model;
  if (mode === 'tag') return {keys: blocks.tag, names: facts.tags};
  const [keys, entries] = mode === 'stream' ? [blocks.stream, facts.streams]
                                            : [blocks.device, facts.devices];
  return {keys, names: entries.map((entry) => entry.name)};
}

/** Assigns layers to the groups (tags, streams or devices) with the highest peaks of their own.
    Steady groups come first, because the stack is easier to read if its lowest layers are flat. The
    order does not depend on the selected device, so that a tag keeps its color. */
function rankGroups(mode) {
  const {events: {time, block}, blocks} = model;
  const {keys, names} = groupsOf(mode);
  const layerOf = new Uint8Array(names.length);
  if (mode === 'state') return {keys, layerOf, names: ['live']};
  const live = new Float64Array(names.length);
  const peak = new Float64Array(names.length);
  const area = new Float64Array(names.length);  // bytes times nanoseconds until the end
  for (let i = 0; i < block.length; ++i) {
    const id = block[i] < 0 ? ~block[i] : block[i];
    const group = keys[id];
    const change = block[i] < 0 ? -blocks.bytes[id] : blocks.bytes[id];
    live[group] += change;
    area[group] += change * (spanNs() - time[i]);
    if (live[group] > peak[group]) peak[group] = live[group];
  }
  const used = [...peak.keys()].filter((group) => peak[group] > 0)
      .sort((a, b) => peak[b] - peak[a]);
  const steadiness = (group) => area[group] / peak[group];
  const colored = used.slice(0, COLORS).sort((a, b) => steadiness(b) - steadiness(a));
  const shared = used.length - colored.length;
  layerOf.fill(COLORS);
  colored.forEach((group, layer) => { layerOf[group] = layer; });
  const shownNames = colored.map((group) => names[group]);
  return {keys, layerOf, names: shared > 0 ? [...shownNames, `other (${shared})`] : shownNames};
}

/** The state of every layer after each CHUNK events of a device. */
function makeCheckpoints(ranking, device) {
  const {events: {block}, blocks} = model;
  const layers = Math.max(1, ranking.names.length);
  const layerOfBlock = new Uint8Array(blocks.count);
  for (let i = 0; i < blocks.count; ++i) {
    const isShown = device < 0 || blocks.device[i] === device;
    layerOfBlock[i] = isShown ? ranking.layerOf[ranking.keys[i]] : layers;
  }
  // One place more than there are layers collects the blocks of other devices.
  const values = new Float64Array(layers + 1);
  const checkpoints = new Float64Array((Math.floor(block.length / CHUNK) + 1) * layers);
  for (let i = 0; i < block.length; ++i) {
    if (i % CHUNK === 0) checkpoints.set(values.subarray(0, layers), i / CHUNK * layers);
    const id = block[i] < 0 ? ~block[i] : block[i];
    values[layerOfBlock[id]] += block[i] < 0 ? -blocks.bytes[id] : blocks.bytes[id];
  }
  if (block.length % CHUNK === 0) {
    checkpoints.set(values.subarray(0, layers), block.length / CHUNK * layers);
  }
  return {layers, layerOfBlock, checkpoints, names: ranking.names};
}

/** Writes the bytes of every layer after event `index` (-1: before the first) to `values`. */
function readLayers(curve, index, values) {
  const {events: {block}, blocks: {bytes}} = model;
  const run = Math.floor((index + 1) / CHUNK);
  for (let l = 0; l < curve.layers; ++l) values[l] = curve.checkpoints[run * curve.layers + l];
  values[curve.layers] = 0;
  for (let i = run * CHUNK; i <= index; ++i) {
    const id = block[i] < 0 ? ~block[i] : block[i];
    values[curve.layerOfBlock[id]] += block[i] < 0 ? -bytes[id] : bytes[id];
  }
}

function makeHeld(device) {
  const {holds} = model;
  const latest = new Float64Array(facts.resources.length);
  const time = [];
  const total = [];
  let held = 0;
  for (let i = 0; i < holds.time.length; ++i) {
    const resource = holds.resource[i];
    if (device >= 0 && facts.resources[resource].device !== device) continue;
    held += holds.bytes[i] - latest[resource];
    latest[resource] = holds.bytes[i];
    time.push(holds.time[i]);
    total.push(held);
  }
  return {time: Float64Array.from(time), total: Float64Array.from(total)};
}

function memoized(make) {
  const known = new Map();
  return (...key) => {
    const name = key.join(' ');
    if (!known.has(name)) known.set(name, make(...key));
    return known.get(name);
  };
}

const totalsOf = memoized(makeTotals);
const heldOf = memoized(makeHeld);
const rankingOf = memoized(rankGroups);
const curveOf = memoized((mode, device) => makeCheckpoints(rankingOf(mode), device));

function liveAt(timeNs, device = -1) {
  const index = upperBound(model.events.time, timeNs) - 1;
  return index < 0 ? 0 : totalsOf(device).total[index];
}

function heldAt(timeNs, device) {
  const {time, total} = heldOf(device);
  const index = upperBound(time, timeNs) - 1;
  return index < 0 ? 0 : total[index];
}

/** The highest moment of each pixel column: an event index (-1: before all), and held bytes. */
function sampleColumns(device, begin, end, width) {
  const {time} = model.events;
  const totals = totalsOf(device);
  const held = heldOf(device);
  const step = (end - begin) / width;
  const columns = {index: new Int32Array(width), held: new Float64Array(width), step};
  let next = lowerBound(time, begin);
  let hold = lowerBound(held.time, begin);
  for (let x = 0; x < width; ++x) {
    // The last column ends at the end of the view, which belongs to the view.
    const limit = x + 1 < width ? begin + (x + 1) * step : end + 0.5;
    const last = lowerBound(time, limit, next);
    let best = next - 1;
    if (last > next) {
      const candidate = highestEvent(totals, next, last);
      if (best < 0 || totals.total[candidate] >= totals.total[best]) best = candidate;
    }
    columns.index[x] = best;
    next = last;
    let most = hold > 0 ? held.total[hold - 1] : 0;
    for (; hold < held.time.length && held.time[hold] < limit; ++hold) {
      most = Math.max(most, held.total[hold]);
    }
    columns.held[x] = most;
  }
  return columns;
}

function peakOf(device) {
  const known = facts.peaks.find((peak) => peak.device === device);
  if (known) return {time: known.time, live: known.live};
  const {time} = model.events;
  if (time.length === 0) return null;
  const totals = totalsOf(device);
  const index = highestEvent(totals, 0, time.length);
  return totals.total[index] > 0 ? {time: time[index], live: totals.total[index]} : null;
}

// ---- Text --------------------------------------------------------------------------------------

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

// ---- State -------------------------------------------------------------------------------------

let facts;
let model;
let theme;
const view = {begin: 0, end: 1};
const addresses = {low: 0, high: 1};  // the shown part of the address axis
const shown = {mode: 'tag', device: -1};
const report = {loadMilliseconds: 0, lastRedrawMilliseconds: 0};
let selectedBlock = -1;
const charts = {};

const spanNs = () => Math.max(facts.duration, 1);

function setView(begin, end) {
  const span = Math.min(Math.max(end - begin, Math.min(MIN_SPAN_NS, spanNs())), spanNs());
  const middle = (begin + end) / 2;
  view.begin = Math.min(Math.max(middle - span / 2, 0), spanNs() - span);
  view.end = view.begin + span;
  scheduleDraw();
}

function zoom(factor, timeNs = (view.begin + view.end) / 2) {
  setView(timeNs - (timeNs - view.begin) * factor, timeNs + (view.end - timeNs) * factor);
}

function pan(fraction) {
  const span = view.end - view.begin;
  const begin = Math.min(Math.max(view.begin + fraction * span, 0), spanNs() - span);
  setView(begin, begin + span);
}

function setAddresses(low, high) {
  const size = Math.min(Math.max(high - low, 1e-9), 1);
  addresses.low = Math.min(Math.max((low + high - size) / 2, 0), 1 - size);
  addresses.high = addresses.low + size;
  scheduleDraw();
}

function resetView() {
  setAddresses(0, 1);
  setView(0, spanNs());
}

function setMode(mode) {
  shown.mode = mode;
  for (const button of byId('modes').querySelectorAll('button')) {
    button.setAttribute('aria-pressed', String(button.value === mode));
  }
  showMemoryLegend();
  scheduleDraw();
}

function setDevice(device) {
  shown.device = device;
  byId('device').value = String(device);
  setAddresses(0, 1);
  showMemoryLegend();
  showPeakTables();
  scheduleDraw();
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const layers = [];
  for (let i = 0; i < COLORS; ++i) layers.push(get(`layer-${i}`));
  layers.push(get('layer-other'));
  theme = {
    layers, cached: get('layer-cached'), text: get('text'), quiet: get('quiet'), grid: get('grid'),
    line: get('line'), card: get('card'), empty: get('empty'), refusal: get('refusal'),
    accent: get('accent'),
  };
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId('theme').textContent = name === 'dark' ? 'Light theme' : 'Dark theme';
  readTheme();
  showLegends();
  scheduleDraw();
}

/** Converts #rrggbb to the value of a pixel in ImageData, which is little-endian here. A factor
    below 1 mixes the color with black. */
function pixelOf(color, factor = 1) {
  const part = (at) => Math.min(255, Math.round(parseInt(color.slice(at, at + 2), 16) * factor));
  return (255 << 24 | part(5) << 16 | part(3) << 8 | part(1)) >>> 0;
}

// ---- Drawing: frame and axes -------------------------------------------------------------------

function makeChart(id, top, bottom, heightOf) {
  const canvas = byId(id);
  const frame = canvas.parentElement;
  const cursor = element('div', {class: 'cursor', hidden: ''});
  const selection = element('div', {class: 'selection', hidden: ''});
  frame.append(cursor, selection);
  charts[id] = {id, canvas, frame, cursor, selection, top, bottom, heightOf,
                context: canvas.getContext('2d')};
}

/** Fits the canvas to its place on the page and returns its context, cleared, in CSS pixels. */
function prepare(chart) {
  const ratio = window.devicePixelRatio || 1;
  const width = chart.canvas.clientWidth;
  const height = chart.heightOf();
  if (chart.width !== width || chart.height !== height || chart.ratio !== ratio) {
    Object.assign(chart, {width, height, ratio});
    chart.canvas.width = Math.round(width * ratio);
    chart.canvas.height = Math.round(height * ratio);
    chart.canvas.style.height = `${height}px`;
    chart.plot = {x: LEFT, y: chart.top, width: Math.max(1, width - LEFT - RIGHT),
                  height: height - chart.top - chart.bottom};
    chart.image = chart.pixels = chart.ids = chart.rows = null;
  }
  const {context} = chart;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.lineWidth = 1;
  return context;
}

/** Pixels of the plot. They are written as 32-bit values and copied in one call. */
function pixelsOf(chart) {
  if (!chart.image) {
    const width = Math.max(1, Math.round(chart.plot.width * chart.ratio));
    const height = Math.max(1, Math.round(chart.plot.height * chart.ratio));
    chart.image = new ImageData(width, height);
    chart.pixels = new Uint32Array(chart.image.data.buffer);
    chart.ids = new Int32Array(chart.id === 'map' ? width * height : 0);
  }
  return chart.image;
}

function copyPixels(chart) {
  chart.context.putImageData(chart.image, Math.round(chart.plot.x * chart.ratio),
                             Math.round(chart.plot.y * chart.ratio));
}

const timeToX = (chart, time, range = view) =>
    chart.plot.x + (time - range.begin) / (range.end - range.begin) * chart.plot.width;
const xToTime = (chart, x, range = view) =>
    range.begin + (x - chart.plot.x) / chart.plot.width * (range.end - range.begin);

/** Steps of 1, 2 or 5 times a power of ten. Deep inside a long trace, labels are offsets from the
    first one, which would otherwise differ in the ninth digit only. */
function timeTicks(width) {
  const least = Math.max((view.end - view.begin) / Math.max(1, width / 110), 1);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999) * power;
  const ticks = [];
  for (let n = Math.ceil(view.begin / step); n * step <= view.end; ++n) ticks.push(n * step);
  const [scale, unit] = TIME_UNITS.find(([size]) => view.end >= size) || [1, 'ns'];
  const decimals = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
  const plain = (time) => `${(time / scale).toFixed(decimals)} ${unit}`;
  const isDeep = decimals > 4;
  return {ticks, label: (time, i) =>
      isDeep && i > 0 ? `+${formatTime(time - ticks[0], 6)}` : plain(time)};
}

function drawTimeAxis(chart, withLabels = true) {
  const {context, plot} = chart;
  const {ticks, label} = timeTicks(plot.width);
  context.textBaseline = 'top';
  context.textAlign = 'center';
  let free = 0;
  ticks.forEach((time, i) => {
    const x = Math.round(timeToX(chart, time)) + 0.5;
    context.fillStyle = theme.grid;
    context.fillRect(x - 0.5, plot.y, 1, plot.height);
    if (!withLabels) return;
    const text = label(time, i);
    const half = context.measureText(text).width / 2;
    const middle = Math.min(Math.max(x, LEFT / 2 + half), chart.width - half - 2);
    if (middle - half < free) return;
    free = middle + half + 8;
    context.fillStyle = theme.quiet;
    context.fillText(text, middle, plot.y + plot.height + 6);
  });
}

function drawBytesAxis(chart, most) {
  const {context, plot} = chart;
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, most) / 6));
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  for (let bytes = 0; bytes <= most; bytes += step) {
    const y = Math.round(plot.y + plot.height * (1 - bytes / most));
    context.fillStyle = theme.grid;
    context.fillRect(plot.x, y, plot.width, 1);
    context.fillStyle = theme.quiet;
    context.fillText(formatRound(bytes), plot.x - 8, Math.max(y, 7));
  }
}

function clipText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = Math.min(text.length, Math.ceil(width / 4));
  while (length > 0 && context.measureText(`${text.slice(0, length)}…`).width > width) --length;
  return length > 2 ? `${text.slice(0, length)}…` : '';
}

function drawSentence(chart, sentence) {
  const {context, plot} = chart;
  context.fillStyle = theme.quiet;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  context.fillText(sentence, plot.x + plot.width / 2, plot.y + plot.height / 2);
}

// ---- Drawing: memory over time -----------------------------------------------------------------

function drawMemory() {
  const chart = charts.memory;
  prepare(chart);
  const image = pixelsOf(chart);
  const curve = curveOf(shown.mode, shown.device);
  const columns = sampleColumns(shown.device, view.begin, view.end, image.width);
  const {total} = totalsOf(shown.device);
  let most = 1;
  for (let x = 0; x < image.width; ++x) {
    most = Math.max(most, columns.index[x] < 0 ? 0 : total[columns.index[x]], columns.held[x]);
  }
  most *= 1.06;
  paintStack(chart, curve, columns, most);
  Object.assign(chart, {columns, most});
  copyPixels(chart);
  drawBytesAxis(chart, most);
  drawTimeAxis(chart);
  if (shown.mode !== 'state') drawHeld(chart);
  drawMarkers(chart);
  if (model.blocks.count === 0) drawSentence(chart, 'The trace has no allocations.');
}

function paintStack(chart, curve, columns, most) {
  const {image: {width, height}, pixels} = chart;
  const colors = theme.layers.map((color) => pixelOf(color));
  const cached = pixelOf(theme.cached);
  const values = new Float64Array(curve.layers + 2);
  pixels.fill(pixelOf(theme.empty));
  for (let x = 0; x < width; ++x) {
    readLayers(curve, columns.index[x], values);
    let sum = 0;
    let bottom = height;
    for (let layer = 0; layer < curve.layers; ++layer) {
      sum += values[layer];
      const top = Math.round(height * (1 - sum / most));
      for (let y = top; y < bottom; ++y) pixels[y * width + x] = colors[layer];
      bottom = Math.min(bottom, top);
    }
    if (shown.mode !== 'state') continue;
    const top = Math.round(height * (1 - columns.held[x] / most));
    for (let y = top; y < bottom; ++y) pixels[y * width + x] = cached;
  }
}

function drawHeld({context, plot, columns, most, ratio}) {
  if (heldOf(shown.device).time.length === 0) return;
  context.strokeStyle = theme.text;
  context.lineWidth = 1.5;
  context.setLineDash([5, 3]);
  context.beginPath();
  let last = -1;
  columns.held.forEach((held, column) => {
    const x = plot.x + column / ratio;
    const y = plot.y + plot.height * (1 - held / most);
    if (column === 0) context.moveTo(x, y);
    else if (held !== last) context.lineTo(x, plot.y + plot.height * (1 - last / most));
    if (held !== last) context.lineTo(x, y);
    last = held;
  });
  context.lineTo(plot.x + plot.width, plot.y + plot.height * (1 - last / most));
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
}

const isShown = (device) => shown.device < 0 || device === shown.device;
const isInView = (time) => time >= view.begin && time <= view.end;

function drawMarkers(chart) {
  const {context, plot, most} = chart;
  const occupied = [];
  context.textBaseline = 'middle';
  const label = (text, x, color) => {
    const width = context.measureText(text).width;
    const fits = (left) => left >= plot.x && left + width <= plot.x + plot.width &&
        !occupied.some(([from, to]) => left < to + 10 && left + width > from - 10);
    const beside = occupied.map(([, to]) => to + 12).filter((left) => Math.abs(left - x) < 60);
    const left = [x - width / 2, x - 2, x - width + 2, ...beside].find(fits);
    if (left === undefined) return;
    occupied.push([left, left + width]);
    context.fillStyle = color;
    context.textAlign = 'left';
    context.fillText(text, left, MARKER_BAND / 2 - 2);
  };
  const peak = peakOf(shown.device);
  if (peak && isInView(peak.time)) {
    const x = timeToX(chart, peak.time);
    const y = plot.y + plot.height * (1 - peak.live / most);
    drawMarkerLine(context, x, plot.y - 4, y, theme.text, []);
    context.beginPath();
    context.arc(x, y, 4.5, 0, 2 * Math.PI);
    context.fillStyle = theme.card;
    context.fill();
    context.strokeStyle = theme.text;
    context.lineWidth = 2;
    context.stroke();
    context.lineWidth = 1;
    label(`Peak ${formatBytes(peak.live)}`, x, theme.text);
  }
  let lastX = -1;
  for (const refusal of facts.refusals) {
    if (!isShown(refusal.device) || !isInView(refusal.time)) continue;
    const x = timeToX(chart, refusal.time);
    if (Math.abs(x - lastX) < 1) continue;
    lastX = x;
    drawMarkerLine(context, x, plot.y - 4, plot.y + plot.height, theme.refusal, [4, 3]);
    label(`Refused ${formatBytes(refusal.bytes)}`, x, theme.refusal);
  }
}

function drawMarkerLine(context, x, top, bottom, color, dash) {
  context.strokeStyle = color;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(Math.round(x) + 0.5, top);
  context.lineTo(Math.round(x) + 0.5, bottom);
  context.stroke();
  context.setLineDash([]);
}

function drawOverview() {
  const chart = charts.overview;
  const context = prepare(chart);
  const {width, height} = pixelsOf(chart);
  const {plot, pixels} = chart;
  const columns = sampleColumns(shown.device, 0, spanNs(), width);
  const {total} = totalsOf(shown.device);
  const levels = Float64Array.from(columns.index, (index) => index < 0 ? 0 : total[index]);
  const most = levels.reduce((a, b) => Math.max(a, b), 1);
  const color = pixelOf(theme.layers[COLORS]);
  pixels.fill(pixelOf(theme.empty));
  for (let x = 0; x < width; ++x) {
    for (let y = Math.round(height * (1 - levels[x] / most)); y < height; ++y) {
      pixels[y * width + x] = color;
    }
  }
  copyPixels(chart);
  const whole = {begin: 0, end: spanNs()};
  const left = timeToX(chart, view.begin, whole);
  const right = Math.max(left + 2, timeToX(chart, view.end, whole));
  context.fillStyle = theme.accent;
  context.globalAlpha = 0.2;
  context.fillRect(left, plot.y, right - left, plot.height);
  context.globalAlpha = 1;
  context.strokeStyle = theme.accent;
  context.strokeRect(left + 0.5, plot.y + 0.5, right - left - 1, plot.height - 1);
  context.fillStyle = theme.quiet;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  context.fillText('whole trace', plot.x - 8, plot.y + plot.height / 2);
}

// ---- Drawing: block map ------------------------------------------------------------------------

/** Assigns every region a part of the axis: a minimum, so that no region disappears, and the rest
    in proportion to its size. Positions go from 0 (lowest address) to 1. */
function layoutRegions(height) {
  const visible = model.regions.filter((region) => isShown(region.device));
  const gap = Math.min(8, height / (4 * visible.length)) / height;
  const room = 1 - gap * (visible.length - 1);
  const least = Math.min(14 / height, room / (2 * visible.length));
  const rest = room - least * visible.length;
  const total = visible.reduce((sum, region) => sum + region.end - region.begin, 0);
  let at = 0;
  for (const region of visible) {
    region.low = at;
    region.high = at + least + rest * (region.end - region.begin) / total;
    at = region.high + gap;
  }
  return visible;
}

/** Returns the distance of a position from the top of the plot as a share of the plot. */
const positionToY = (position) =>
    (addresses.high - position) / (addresses.high - addresses.low);

function addressToPosition(region, address) {
  const share = (address - region.begin) / (region.end - region.begin);
  return region.low + share * (region.high - region.low);
}

/** Returns the indices of the blocks in view, in order of their begin. */
function visibleBlocks() {
  const {begin, end, device, latestEnd} = model.blocks;
  const viewBegin = view.begin;
  const only = shown.device;
  const last = lowerBound(begin, view.end);
  const found = new Uint32Array(last);
  let count = 0;
  for (let i = 0; i < last; ++i) {
    if (i % CHUNK === 0 && latestEnd[i / CHUNK] <= viewBegin) i += CHUNK - 1;
    else if (end[i] > viewBegin && (only < 0 || device[i] === only)) found[count++] = i;
  }
  return found.subarray(0, count);
}

/** Returns the pixel rows of every block, from `top` to before `bottom`; both are 0 for a block
    outside of the shown addresses. Only a change of the address axis computes them again. */
function rowsOfBlocks(chart) {
  const {height} = chart.image;
  const key = [shown.device, addresses.low, addresses.high, height].join(' ');
  if (chart.rows?.key === key) return chart.rows;
  const {blocks: {count, bytes, address, device}, regions, regionOf} = model;
  const rows = {key, top: new Int32Array(count), bottom: new Int32Array(count)};
  const yScale = height / (addresses.high - addresses.low);
  const scales = Float64Array.from(regions, (r) => yScale * (r.high - r.low) / (r.end - r.begin));
  const bases = Float64Array.from(regions, (r) => yScale * (addresses.high - r.low));
  for (let i = 0; i < count; ++i) {
    if (!isShown(device[i])) continue;
    const region = regionOf[i];
    const low = bases[region] - (address[i] - regions[region].begin) * scales[region];
    const high = low - bytes[i] / ADDRESS_UNIT * scales[region];
    if (high >= height || low <= 0) continue;
    rows.bottom[i] = Math.min(height, Math.ceil(low));
    rows.top[i] = Math.max(0, Math.min(rows.bottom[i] - 1, Math.floor(high)));
  }
  chart.rows = rows;
  return rows;
}

/** Writes the index of a block plus one to every pixel that the block touches. */
function paintBlockIds(chart) {
  const {begin, end} = model.blocks;
  const {ids, image: {width}} = chart;
  const {top, bottom} = rowsOfBlocks(chart);
  const viewBegin = view.begin;
  const xScale = width / (view.end - viewBegin);
  const visible = visibleBlocks();
  ids.fill(0);
  for (let n = 0; n < visible.length; ++n) {
    // "| 0" instead of Math.floor keeps integers as integers: this loop runs for every block.
    const i = visible[n];
    const first = (begin[i] - viewBegin) * xScale;
    const last = (end[i] - viewBegin) * xScale;
    const left = first <= 0 ? 0 : first | 0;
    if (last <= left + 1) {
      const stop = bottom[i] * width;
      for (let at = top[i] * width + left; at < stop; at += width) ids[at] = i + 1;
    } else {
      const right = last >= width ? width : Math.ceil(last) | 0;
      fillBlock(ids, width, left, right, top[i], bottom[i], i + 1);
    }
  }
}

function fillBlock(ids, width, left, right, top, bottom, id) {
  const hasEdges = right - left >= 5 && bottom - top >= 5;
  for (let y = top; y < bottom; ++y) {
    const row = y * width;
    const value = hasEdges && y === top ? id | EDGE : id;
    if (right - left > 24) ids.fill(value, row + left, row + right);
    else for (let x = left; x < right; ++x) ids[row + x] = value;
    if (hasEdges) ids[row + left] = id | EDGE;
  }
}

function paintBlockColors(chart) {
  const {ids, pixels} = chart;
  const {layerOf} = rankingOf('tag');
  const {tag} = model.blocks;
  // Neighbors with the same tag differ a little in shade, so that their border can be seen.
  const shades = theme.layers.flatMap((color) => [1, 0.93, 0.86, 0.72].map((factor) =>
      pixelOf(color, factor)));
  const empty = pixelOf(theme.empty);
  for (let at = 0; at < ids.length; ++at) {
    const id = ids[at];
    if (id === 0) {
      pixels[at] = empty;
    } else {
      const block = (id & ~EDGE) - 1;
      pixels[at] = shades[layerOf[tag[block]] * 4 + (id & EDGE ? 3 : block % 3)];
    }
  }
}

function drawMap() {
  const chart = charts.map;
  prepare(chart);
  pixelsOf(chart);
  chart.regions = layoutRegions(chart.plot.height);
  paintBlockIds(chart);
  paintBlockColors(chart);
  copyPixels(chart);
  drawTimeAxis(chart);
  drawAddressAxis(chart);
  drawSelectedBlock(chart);
  if (model.blocks.count === 0) drawSentence(chart, 'The trace has no allocations.');
}

function drawAddressAxis(chart) {
  const {context, plot} = chart;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  let free = Infinity;
  chart.regions.forEach((region, i) => {
    const yOf = (position) => plot.y + plot.height * positionToY(position);
    const bottom = Math.min(yOf(region.low), plot.y + plot.height);
    const top = Math.max(yOf(region.high), plot.y);
    if (bottom < plot.y || top > plot.y + plot.height) return;
    if (i > 0 && region.low > addresses.low) drawGap(chart, yOf(region.low), yOf);
    const write = (text, y, font) => {
      if (y > free - 14 || y < plot.y + 5) return;
      free = y;
      context.font = font;
      context.fillStyle = theme.quiet;
      context.fillText(text, plot.x - 8, y);
    };
    const start = yToAddress(region, bottom, plot);
    write(formatAddress(start), bottom - 6, MONO);
    drawOffsets(region, start, bottom, top, (text, y) => write(text, y, FONT));
    if (shown.device < 0) {
      write(clipText(context, deviceName(region.device), LEFT - 12), top + 7, FONT);
    }
  });
  context.font = FONT;
}

function yToAddress(region, y, plot) {
  const position = addresses.high - (y - plot.y) / plot.height * (addresses.high - addresses.low);
  const share = (position - region.low) / (region.high - region.low);
  return region.begin + Math.min(1, Math.max(0, share)) * (region.end - region.begin);
}

/** Labels in one region: distance from the lowest address shown, about every 50 pixels. */
function drawOffsets(region, start, bottom, top, write) {
  const {plot} = charts.map;
  const bytes = (yToAddress(region, top, plot) - start) * ADDRESS_UNIT;
  const step = 2 ** Math.ceil(Math.log2(bytes * 50 / Math.max(1, bottom - top)));
  if (!(step >= ADDRESS_UNIT)) return;
  for (let offset = step; offset <= bytes; offset += step) {
    write(`+${formatRound(offset)}`, bottom - (bottom - top) * offset / bytes);
  }
}

function drawGap({context, plot}, y) {
  context.strokeStyle = theme.quiet;
  context.setLineDash([2, 4]);
  context.beginPath();
  context.moveTo(plot.x - 6, Math.round(y + 4) + 0.5);
  context.lineTo(plot.x + plot.width, Math.round(y + 4) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

function drawSelectedBlock(chart) {
  if (selectedBlock < 0 || !isShown(model.blocks.device[selectedBlock])) return;
  const {context, plot} = chart;
  const {blocks} = model;
  const region = model.regions[model.regionOf[selectedBlock]];
  const size = blocks.bytes[selectedBlock] / ADDRESS_UNIT;
  const yOf = (address) => plot.y + plot.height * positionToY(addressToPosition(region, address));
  const left = timeToX(chart, blocks.begin[selectedBlock]);
  const right = timeToX(chart, Math.min(blocks.end[selectedBlock], spanNs()));
  const top = yOf(blocks.address[selectedBlock] + size);
  const bottom = yOf(blocks.address[selectedBlock]);
  context.save();
  context.beginPath();
  context.rect(plot.x, plot.y, plot.width, plot.height);
  context.clip();
  for (const [color, width] of [[theme.card, 4], [theme.text, 2]]) {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(left - 1, top - 1, Math.max(2, right - left) + 2, bottom - top + 2);
  }
  context.restore();
}

/** Returns the index of the block at a point of the map in CSS pixels, or -1. */
function blockIndexAt(x, y) {
  const {plot, ratio, ids, image} = charts.map;
  const column = Math.floor((x - plot.x) * ratio);
  const row = Math.floor((y - plot.y) * ratio);
  if (column < 0 || row < 0 || column >= image.width || row >= image.height) return -1;
  return (ids[row * image.width + column] & ~EDGE) - 1;
}

function blockFacts(index) {
  if (index < 0) return null;
  const {blocks} = model;
  const isFreed = blocks.end[index] !== Infinity;
  return {
    index, bytes: blocks.bytes[index], address: blocks.address[index] * ADDRESS_UNIT,
    tag: tagName(blocks.tag[index]), stream: streamName(blocks.stream[index]),
    site: siteName(blocks.site[index]),
    freeStream: isFreed ? streamName(blocks.freeStream[index]) : null,
    freeSite: isFreed ? siteName(blocks.freeSite[index]) : null,
    resource: facts.resources[blocks.resource[index]].name,
    device: deviceName(blocks.device[index]),
    begin: blocks.begin[index], life: isFreed ? blocks.end[index] - blocks.begin[index] : null,
  };
}

function blockRows(index) {
  const block = blockFacts(index);
  return [
    ['Tag', block.tag],
    ['Size', `${formatBytes(block.bytes)} (${formatCount(block.bytes)} bytes)`],
    ['Allocated at', block.site],
    ['Freed at', block.freeSite ?? 'not freed'],
    ['Stream', block.freeSite === null || block.freeStream === block.stream
        ? block.stream : `${block.stream}, freed on ${block.freeStream}`],
    ['Begin', formatTime(block.begin, 6)],
    ['Life', block.life === null ? 'until the end of the trace' : formatTime(block.life)],
    ['Memory', `${block.resource} on ${block.device}`],
    ['Address', formatAddress(model.blocks.address[index])],
  ];
}

function selectBlock(index) {
  selectedBlock = index;
  const list = byId('block');
  list.hidden = index < 0;
  if (index >= 0) {
    const zoomButton = element('button', {type: 'button', onclick: () => zoomToBlock(index)},
                               'Zoom to this block');
    list.replaceChildren(...blockRows(index).map(([name, value]) =>
        element('div', {}, element('dt', {}, name), element('dd', {}, value))), zoomButton);
  }
  for (const row of document.querySelectorAll('#largest tr[data-block]')) {
    row.classList.toggle('selected', Number(row.dataset.block) === index);
  }
  scheduleDraw();
}

/** Fills the middle third of the map with the block, in both directions. */
function zoomToBlock(index) {
  const {begin, end, address, bytes, device} = model.blocks;
  if (!isShown(device[index])) setDevice(device[index]);
  layoutRegions(charts.map.plot.height);
  const region = model.regions[model.regionOf[index]];
  const low = addressToPosition(region, address[index]);
  const high = addressToPosition(region, address[index] + bytes[index] / ADDRESS_UNIT);
  const life = Math.min(end[index], spanNs()) - begin[index];
  setAddresses(2 * low - high, 2 * high - low);
  setView(begin[index] - life, begin[index] + 2 * life);
}

// ---- Drawing: streams --------------------------------------------------------------------------

const BAR = {top: 4, height: 14};       // copies
const TICK = {top: 21, height: 10};     // launches, and waits of the host

function planLanes() {
  const {copies, launches, waits, ranges} = model;
  const used = new Set([0]);
  for (const streams of [copies.stream, launches.stream, waits.stream, waits.source]) {
    for (const stream of streams) used.add(stream);
  }
  const streams = [...used].sort((a, b) => a - b).slice(0, MAX_LANES);
  const laneOf = new Int32Array(facts.streams.length).fill(-1);
  streams.forEach((stream, lane) => { laneOf[stream] = lane; });
  const depths = new Map();
  for (let i = 0; i < ranges.time.length; ++i) {
    depths.set(ranges.thread[i], Math.max(depths.get(ranges.thread[i]) ?? 0, ranges.depth[i]));
  }
  const rows = [];
  const firstRow = new Map();
  let rowCount = 0;
  for (const [thread, depth] of [...depths].sort((a, b) => a[0] - b[0])) {
    firstRow.set(thread, rowCount);
    rowCount += depth + 1;
    for (let d = 0; d <= depth && rows.length < MAX_RANGE_ROWS; ++d) rows.push({thread, depth: d});
  }
  model.lanes = {streams, laneOf, rows, firstRow, threads: depths.size,
                 omittedRows: rowCount - rows.length, omittedStreams: used.size - streams.length};
}

const rangesHeight = () => model.lanes.rows.length * RANGE_ROW + (model.lanes.rows.length ? 6 : 0);
const laneTop = (lane) => charts.streams.plot.y + rangesHeight() + lane * LANE;
const streamsHeight = () => rangesHeight() + model.lanes.streams.length * LANE + AXIS + 4;

function drawStreams() {
  const chart = charts.streams;
  const context = prepare(chart);
  const {plot} = chart;
  const {lanes, copies, launches, waits} = model;
  lanes.streams.forEach((stream, lane) => {
    context.fillStyle = lane % 2 === 0 ? theme.empty : theme.card;
    context.fillRect(plot.x, laneTop(lane), plot.width, LANE);
    context.fillStyle = theme.text;
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    context.fillText(clipText(context, streamName(stream), LEFT - 14), plot.x - 8,
                     laneTop(lane) + LANE / 2);
  });
  drawTimeAxis(chart);
  context.save();
  context.beginPath();
  context.rect(plot.x, plot.y, plot.width, plot.height);
  context.clip();
  drawMarks(chart, launches, TICK, () => 0, [theme.quiet]);
  drawMarks(chart, waits, TICK, (i) => waits.stream[i] === 0 ? 0 : -1, [theme.refusal]);
  drawMarks(chart, copies, BAR, (i) => copies.kind[i], theme.layers);
  drawArrows(chart);
  drawRanges(chart);
  context.restore();
  drawRangeLabels(chart);
}

/** Draws marks as bars. Bars closer than a pixel become one, which bounds the number of calls. */
function drawMarks(chart, marks, place, kindOf, colors) {
  const {context} = chart;
  const {laneOf, streams} = model.lanes;
  const open = streams.map(() => ({kind: -1, left: 0, right: -10}));
  const flush = (lane, run) => {
    if (run.kind < 0) return;
    context.fillStyle = colors[run.kind % colors.length];
    context.fillRect(run.left, laneTop(lane) + place.top, run.right - run.left, place.height);
  };
  const {begin, end} = view;
  const scale = chart.plot.width / (end - begin);
  const last = upperBound(marks.time, end);
  for (let i = lowerBound(marks.time, begin - marks.longest); i < last; ++i) {
    const kind = kindOf(i);
    const lane = laneOf[marks.stream[i]];
    if (kind < 0 || lane < 0 || marks.end[i] < begin) continue;
    const run = open[lane];
    const left = LEFT + Math.max(0, marks.time[i] - begin) * scale;
    const right = Math.max(left + 1.5, LEFT + (Math.min(marks.end[i], end) - begin) * scale);
    if (run.kind === kind && left < run.right + 0.5 && right - left < 3) {
      run.right = Math.max(run.right, right);
      continue;
    }
    flush(lane, run);
    // A bar next to a bar leaves half a pixel free, so that both can be seen.
    const gap = left < run.right + 0.5 && right - left > 3 ? 0.5 : 0;
    open[lane] = {kind, left: left + gap, right};
  }
  open.forEach((run, lane) => flush(lane, run));
}

/** Arrows from the stream that is waited for to the stream that waits. */
function drawArrows(chart) {
  const {context} = chart;
  const {waits, lanes: {laneOf}} = model;
  const lastX = new Map();
  context.strokeStyle = context.fillStyle = theme.text;
  context.beginPath();
  const heads = [];
  const last = upperBound(waits.time, view.end);
  for (let i = lowerBound(waits.time, view.begin); i < last; ++i) {
    if (waits.stream[i] === 0 || waits.stream[i] === waits.source[i]) continue;
    const from = laneOf[waits.source[i]];
    const to = laneOf[waits.stream[i]];
    if (from < 0 || to < 0) continue;
    const pair = from * 65536 + to;
    const x = Math.round(timeToX(chart, waits.time[i])) + 0.5;
    if (x < (lastX.get(pair) ?? -9) + 3) continue;
    lastX.set(pair, x);
    const sign = to > from ? 1 : -1;
    const end = laneTop(to) + (sign > 0 ? 4 : LANE - 4);
    context.moveTo(x, laneTop(from) + LANE / 2);
    context.lineTo(x, end);
    heads.push([x, end, sign]);
  }
  context.stroke();
  context.beginPath();
  for (const [x, y, sign] of heads) {
    context.moveTo(x, y + 2 * sign);
    context.lineTo(x - 3.5, y - 5 * sign);
    context.lineTo(x + 3.5, y - 5 * sign);
  }
  context.fill();
}

const rangeRow = (i) => model.lanes.firstRow.get(model.ranges.thread[i]) + model.ranges.depth[i];

function drawRanges(chart) {
  const {context, plot} = chart;
  const {ranges, lanes} = model;
  const covered = lanes.rows.map(() => -1);
  const last = upperBound(ranges.time, view.end);
  for (let i = 0; i < last; ++i) {
    if (ranges.end[i] < view.begin) continue;
    const row = rangeRow(i);
    if (row >= lanes.rows.length) continue;
    const left = timeToX(chart, Math.max(ranges.time[i], view.begin));
    const right = Math.max(left + 1, timeToX(chart, Math.min(ranges.end[i], view.end)));
    if (right <= covered[row] + 0.5) continue;
    covered[row] = right;
    const y = plot.y + row * RANGE_ROW;
    context.globalAlpha = 0.28;
    context.fillStyle = theme.layers[ranges.name[i] % COLORS];
    context.fillRect(left + 0.5, y + 1, Math.max(1, right - left - 1), RANGE_ROW - 2);
    context.globalAlpha = 1;
    if (right - left < 26) continue;
    context.fillStyle = theme.text;
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    const text = clipText(context, kernelName(ranges.name[i]), right - left - 10);
    context.fillText(text, left + 5, y + RANGE_ROW / 2 + 0.5);
  }
}

function drawRangeLabels({context, plot}) {
  const {lanes} = model;
  context.fillStyle = theme.quiet;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  lanes.rows.forEach(({thread, depth}, row) => {
    if (depth > 0) return;
    const text = lanes.threads > 1 ? `thread ${thread}` : 'ranges';
    context.fillText(text, plot.x - 8, plot.y + row * RANGE_ROW + RANGE_ROW / 2);
  });
}

/** Returns the latest mark of a stream between two times that `accept` allows, or -1. */
function markAt(marks, stream, begin, end, accept = () => true) {
  for (let i = upperBound(marks.time, end) - 1; i >= 0; --i) {
    if (marks.time[i] < begin - marks.longest) break;
    if (marks.stream[i] === stream && marks.end[i] >= begin && accept(i)) return i;
  }
  return -1;
}

function streamItemAt(x, y) {
  const chart = charts.streams;
  const begin = xToTime(chart, x - 3);
  const end = xToTime(chart, x + 3);
  if (y < chart.plot.y + rangesHeight()) return rangeItemAt(y, xToTime(chart, x));
  const lane = Math.floor((y - laneTop(0)) / LANE);
  const stream = model.lanes.streams[lane];
  if (stream === undefined) return null;
  const found = [copyItem, waitItem, launchItem].map((find) => find(stream, begin, end));
  const isUpper = y - laneTop(lane) < TICK.top;
  return (isUpper ? found[0] : null) ?? found[1] ?? found[2] ?? found[0];
}

function rangeItemAt(y, time) {
  const {ranges} = model;
  const row = Math.floor((y - charts.streams.plot.y) / RANGE_ROW);
  for (let i = upperBound(ranges.time, time) - 1; i >= 0; --i) {
    if (ranges.end[i] < time || rangeRow(i) !== row) continue;
    return {heading: kernelName(ranges.name[i]), rows: [
      ['Begin', formatTime(ranges.time[i], 6)],
      ['Took', formatTime(ranges.end[i] - ranges.time[i])],
      ['Thread', String(ranges.thread[i])],
    ]};
  }
  return null;
}

function copyItem(stream, begin, end) {
  const {copies} = model;
  const i = markAt(copies, stream, begin, end);
  if (i < 0) return null;
  const took = copies.end[i] - copies.time[i];
  return {heading: `Copy ${directionName(copies.kind[i])}`, rows: [
    ['Size', formatBytes(copies.bytes[i])],
    ['Rate', took > 0 ? formatRate(copies.bytes[i], took) : 'unknown'],
    ['Took', copies.took[i] > 0 ? formatTime(took) : 'unknown'],
    ['Tag', tagName(copies.tag[i])], ['Site', siteName(copies.site[i])],
    ['Stream', streamName(stream)], ['Begin', formatTime(copies.time[i], 6)],
  ]};
}

function waitItem(stream, begin, end) {
  const {waits} = model;
  const i = markAt(waits, stream, begin, end);
  if (i < 0) return null;
  const took = waits.end[i] - waits.time[i];
  const rows = [['Site', siteName(waits.site[i])], ['Begin', formatTime(waits.time[i], 6)]];
  if (stream === 0) rows.unshift(['Took', formatTime(took)]);
  return {heading: `${streamName(stream)} waits for ${streamName(waits.source[i])}`, rows};
}

function launchItem(stream, begin, end) {
  const {launches} = model;
  const i = markAt(launches, stream, begin, end);
  if (i < 0) return null;
  return {heading: `Launch of ${kernelName(launches.kernel[i])}`, rows: [
    ['Stream', streamName(stream)], ['Site', siteName(launches.site[i])],
    ['Time', formatTime(launches.time[i], 6)],
  ]};
}

// ---- Redrawing ---------------------------------------------------------------------------------

let frame = 0;
let largestTimer = 0;

function redraw() {
  if (frame) cancelAnimationFrame(frame);
  frame = 0;
  const begin = performance.now();
  drawMemory();
  drawOverview();
  drawMap();
  drawStreams();
  report.lastRedrawMilliseconds = performance.now() - begin;
  showRange();
  clearTimeout(largestTimer);
  largestTimer = setTimeout(showLargestBlocks, 150);
}

function scheduleDraw() {
  if (!frame) frame = requestAnimationFrame(redraw);
}

function showRange() {
  byId('range').textContent = `${formatTime(view.begin, 6)} to ${formatTime(view.end, 6)} ` +
      `(${formatTime(view.end - view.begin)} of ${formatTime(spanNs())})`;
}

// ---- Pointer and keyboard ----------------------------------------------------------------------

function showTooltip(event, nodes) {
  const box = byId('tooltip');
  box.hidden = nodes.length === 0;
  if (box.hidden) return;
  box.replaceChildren(...nodes);
  const {width, height} = box.getBoundingClientRect();
  const room = 14;
  const x = event.clientX + room + width > innerWidth ? event.clientX - room - width
                                                      : event.clientX + room;
  const y = Math.min(event.clientY + room, innerHeight - height - 4);
  box.style.left = `${Math.max(4, x)}px`;
  box.style.top = `${Math.max(4, y)}px`;
}

function factTable(rows) {
  return element('table', {}, ...rows.map(([name, value]) =>
      element('tr', {}, element('th', {}, name), element('td', {}, value))));
}

function memoryTooltip(chart, x) {
  const column = Math.min(chart.columns.index.length - 1,
                          Math.max(0, Math.floor((x - chart.plot.x) * chart.ratio)));
  const index = chart.columns.index[column];
  const curve = curveOf(shown.mode, shown.device);
  const values = new Float64Array(curve.layers + 1);
  readLayers(curve, index, values);
  const line = (name, bytes, color) => element('tr', {},
      element('td', {}, ...(color ? [swatch(color)] : []), name),
      element('td', {class: 'number'}, formatBytes(bytes)));
  const rows = curve.names.map((name, layer) => [name, values[layer], theme.layers[layer]])
      .filter(([, bytes]) => bytes > 0).reverse().map((row) => line(...row));
  const total = index < 0 ? 0 : totalsOf(shown.device).total[index];
  if (shown.mode !== 'state') rows.push(line('live in total', total));
  if (heldOf(shown.device).time.length > 0) rows.push(line('held', chart.columns.held[column]));
  const near = facts.refusals.find((refusal) => isShown(refusal.device) &&
      Math.abs(timeToX(chart, refusal.time) - x) < 5);
  const refused = near ? [element('p', {}, `Refused: ${formatBytes(near.bytes)} for ` +
      `'${tagName(near.tag)}' at ${siteName(near.site)}, ${near.error}`)] : [];
  return [element('b', {}, formatTime(xToTime(chart, x), 6)), element('table', {}, ...rows),
          ...refused];
}

function mapTooltip(x, y) {
  const index = blockIndexAt(x, y);
  if (index < 0) return [];
  const {tag} = model.blocks;
  const heading = element('b', {}, swatch(tagColor(tag[index])),
                          `${formatBytes(model.blocks.bytes[index])} ${tagName(tag[index])}`);
  return [heading, factTable(blockRows(index).slice(1))];
}

function streamsTooltip(x, y) {
  const item = streamItemAt(x, y);
  return item ? [element('b', {}, item.heading), factTable(item.rows)] : [];
}

function tooltipFor(chart, x, y) {
  const {plot} = chart;
  if (x < plot.x || x > plot.x + plot.width || chart.id === 'overview') return [];
  if (chart.id === 'memory') return memoryTooltip(chart, x);
  return chart.id === 'map' ? mapTooltip(x, y) : streamsTooltip(x, y);
}

function showCursor(x) {
  for (const chart of Object.values(charts)) {
    const {cursor, plot} = chart;
    cursor.hidden = chart.id === 'overview' || x === null || x < plot.x ||
                    x > plot.x + plot.width;
    Object.assign(cursor.style, {left: `${x}px`, top: `${plot.y}px`, height: `${plot.height}px`});
  }
}

const pointIn = (chart, event) => {
  const box = chart.canvas.getBoundingClientRect();
  return {x: event.clientX - box.left, y: event.clientY - box.top};
};

/** Connects a chart to the pointer: drag zooms, Shift and drag pans, a click selects a block. */
function listenToPointer(chart) {
  const {canvas} = chart;
  let drag = null;
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    const point = pointIn(chart, event);
    canvas.setPointerCapture(event.pointerId);
    const range = chart.id === 'overview' ? {begin: 0, end: spanNs()} : view;
    const time = xToTime(chart, point.x, range);
    const isInside = chart.id === 'overview' && isInView(time) && view.end - view.begin < spanNs();
    drag = {...point, range: {...range}, view: {...view}, isPan: event.shiftKey || isInside};
  });
  canvas.addEventListener('pointermove', (event) => {
    const point = pointIn(chart, event);
    if (drag) {
      showTooltip(event, []);
      moveDrag(chart, drag, point);
    } else {
      showCursor(chart.id === 'overview' ? null : point.x);
      showTooltip(event, tooltipFor(chart, point.x, point.y));
    }
  });
  canvas.addEventListener('pointerup', (event) => {
    if (drag) endDrag(chart, drag, pointIn(chart, event));
    drag = null;
  });
  canvas.addEventListener('pointercancel', () => {
    drag = null;
    chart.selection.hidden = true;
  });
  canvas.addEventListener('pointerleave', (event) => {
    showCursor(null);
    showTooltip(event, []);
  });
  canvas.addEventListener('dblclick', resetView);
}

function moveDrag(chart, drag, point) {
  const {plot, selection} = chart;
  if (drag.isPan) {
    const scale = (drag.range.end - drag.range.begin) / plot.width;
    const sign = chart.id === 'overview' ? 1 : -1;
    const span = drag.view.end - drag.view.begin;
    const wanted = drag.view.begin + sign * (point.x - drag.x) * scale;
    const begin = Math.min(Math.max(wanted, 0), spanNs() - span);
    setView(begin, begin + span);
    return;
  }
  const isBox = chart.id === 'map' && Math.abs(point.y - drag.y) > 12;
  const left = Math.max(plot.x, Math.min(drag.x, point.x));
  const right = Math.min(plot.x + plot.width, Math.max(drag.x, point.x));
  const top = isBox ? Math.max(plot.y, Math.min(drag.y, point.y)) : plot.y;
  const bottom = isBox ? Math.min(plot.y + plot.height, Math.max(drag.y, point.y))
                       : plot.y + plot.height;
  selection.hidden = false;
  Object.assign(selection.style, {left: `${left}px`, width: `${Math.max(0, right - left)}px`,
                                  top: `${top}px`, height: `${bottom - top}px`});
  Object.assign(drag, {left, right, top, bottom, isBox});
}

function endDrag(chart, drag, point) {
  chart.selection.hidden = true;
  if (drag.isPan) return;
  if (Math.abs(point.x - drag.x) < 5) {
    if (chart.id === 'map') selectBlock(blockIndexAt(point.x, point.y));
    return;
  }
  if (drag.isBox) {
    const size = addresses.high - addresses.low;
    const position = (y) => addresses.high - (y - chart.plot.y) / chart.plot.height * size;
    setAddresses(position(drag.bottom), position(drag.top));
  }
  setView(xToTime(chart, drag.left, drag.range), xToTime(chart, drag.right, drag.range));
}

/** The wheel scrolls the page, as everywhere else, until a click or Tab has focused the chart. */
function listenToWheel(chart) {
  const hint = element('div', {class: 'hint', hidden: ''},
                       'Click the chart, or hold Ctrl, to zoom with the wheel.');
  chart.frame.append(hint);
  let timer = 0;
  chart.canvas.addEventListener('wheel', (event) => {
    const isActive = document.activeElement === chart.canvas || event.ctrlKey || event.metaKey;
    if (!isActive) {
      hint.hidden = false;
      clearTimeout(timer);
      timer = setTimeout(() => { hint.hidden = true; }, 900);
      return;
    }
    event.preventDefault();
    hint.hidden = true;
    const point = pointIn(chart, event);
    const factor = Math.exp(Math.max(-100, Math.min(100, event.deltaY || 0)) * 0.004);
    if (chart.id === 'map' && event.shiftKey) {
      zoomAddresses(Math.exp((event.deltaY || event.deltaX) * 0.004), point.y);
    } else {
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / chart.plot.width);
      else zoom(factor, chart.id === 'overview' ? undefined : xToTime(chart, point.x));
    }
  }, {passive: false});
}

function zoomAddresses(factor, y) {
  const {plot} = charts.map;
  const {low, high} = addresses;
  const at = high - (y - plot.y) / plot.height * (high - low);
  setAddresses(at - (at - low) * factor, at + (high - at) * factor);
}

function listenToKeys(chart) {
  const actions = {
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
    ArrowUp: () => zoom(0.6), ArrowDown: () => zoom(1 / 0.6),
    '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1 / 0.6), '_': () => zoom(1 / 0.6),
    0: resetView, Home: resetView,
    Escape: () => { selectBlock(-1); chart.canvas.blur(); },
  };
  chart.canvas.addEventListener('keydown', (event) => {
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  });
}

// ---- Tables ------------------------------------------------------------------------------------

/** Builds a table that its column headers sort. A column is {label, value, show, isNumber}: `value`
    is what sorts, `show` returns what the cell contains. */
function makeTable(caption, columns, rows, {rowAttributes = () => ({}), sort = -1} = {}) {
  const body = element('tbody');
  let order = [...rows];
  let limit = FIRST_ROWS;
  const more = element('button', {type: 'button', class: 'more',
                                  onclick: () => { limit = Infinity; fill(); }});
  const fill = () => {
    body.replaceChildren(...order.slice(0, limit).map((row) =>
        element('tr', rowAttributes(row), ...columns.map((column) =>
            element('td', {class: column.isNumber ? 'number' : 'words'},
                    (column.show || column.value)(row))))));
    more.hidden = order.length <= limit;
    more.textContent = `Show all ${formatCount(order.length)} rows`;
  };
  const headers = columns.map((column, at) => element('th',
      {scope: 'col', ...(column.isNumber ? {class: 'number'} : {}),
       ...(at === sort ? {'aria-sort': 'descending'} : {})},
      element('button', {type: 'button', onclick: () => sortBy(at)}, column.label)));
  const sortBy = (at) => {
    const before = headers[at].getAttribute('aria-sort');
    const isDescending = before ? before === 'ascending' : columns[at].isNumber === true;
    headers.forEach((header) => header.removeAttribute('aria-sort'));
    headers[at].setAttribute('aria-sort', isDescending ? 'descending' : 'ascending');
    const {value} = columns[at];
    const compare = (a, b) => columns[at].isNumber ? value(a) - value(b)
                                                   : String(value(a)).localeCompare(value(b));
    order = [...rows].sort((a, b) => isDescending ? compare(b, a) : compare(a, b));
    fill();
  };
  fill();
  const table = element('table', {}, element('caption', {}, caption),
                        element('thead', {}, element('tr', {}, ...headers)), body);
  return element('div', {class: 'table-frame'}, table, more);
}

const numberColumn = (label, value, show) =>
    ({label, value, show: (row) => show(value(row)), isNumber: true});
const bytesColumn = (label, value) => ({
  label, value, isNumber: true,
  show: (row) => element('span', {title: `${formatCount(value(row))} bytes`},
                         formatBytes(value(row))),
});
const tagColor = (tag) => theme.layers[rankingOf('tag').layerOf[tag] ?? COLORS];
const tagColumn = (label = 'Tag') => ({
  label, value: (row) => tagName(row.tag),
  show: (row) => element('span', {}, swatch(tagColor(row.tag)), tagName(row.tag)),
});
const siteColumn = (label) => ({label, value: (row) => siteName(row.site)});
const blocksColumn = numberColumn('Blocks', (row) => row.blocks, formatCount);

function shareColumn(label, value, total) {
  return {label, value, isNumber: true, show: (row) => {
    const share = total > 0 ? value(row) / total : 0;
    const bar = element('span', {class: 'share', 'aria-hidden': 'true'});
    bar.style.width = `${Math.round(60 * share)}px`;
    return element('span', {}, bar, formatShare(share));
  }};
}

function showPeakTables() {
  const peaks = facts.peaks.filter((peak) => isShown(peak.device));
  const nodes = peaks.flatMap((peak) => {
    const share = shareColumn('Share', (row) => row.bytes, peak.live);
    const bytes = bytesColumn('Live', (row) => row.bytes);
    return [
      element('h3', {}, `${deviceName(peak.device)}: ${formatBytes(peak.live)} live of ` +
                        `${formatBytes(peak.held)} held at ${formatTime(peak.time, 6)}`),
      element('div', {class: 'columns-two'},
              makeTable('By tag', [tagColumn(), bytes, share, blocksColumn], peak.tags, {sort: 1}),
              makeTable('By line', [siteColumn('Allocated at'), tagColumn(), bytes, share,
                                    blocksColumn], peak.sites, {sort: 2})),
    ];
  });
  byId('at-peak').replaceChildren(...(nodes.length ? nodes
      : [element('p', {}, 'No memory was allocated.')]));
}

function showRefusals() {
  const place = byId('refusals');
  if (facts.refusals.length === 0) {
    place.replaceChildren(element('p', {}, 'No request was refused.'));
    return;
  }
  const liveThen = (row) => row.tags.slice(0, 4).map((entry) =>
      `${tagName(entry.tag)} ${formatBytes(entry.bytes)}`).join(', ') +
      (row.tags.length > 4 ? `, and ${plural(row.tags.length - 4, 'more tag')}` : '');
  place.replaceChildren(makeTable(plural(facts.refusals.length, 'refused request'), [
    {label: 'Time', isNumber: true, value: (row) => row.time, show: (row) => element('button',
        {type: 'button', title: 'Show this moment in the charts',
         onclick: () => showMoment(row.time)}, formatTime(row.time, 6))},
    bytesColumn('Asked for', (row) => row.bytes), tagColumn(), siteColumn('At'),
    {label: 'Device', value: (row) => deviceName(row.device)},
    bytesColumn('Live', (row) => row.live), bytesColumn('Held', (row) => row.held),
    {label: 'Error', value: (row) => String(row.error)},
    {label: 'Live by tag', value: liveThen},
  ], facts.refusals));
}

function showMoment(time) {
  const span = Math.min(view.end - view.begin, spanNs() / 10);
  setView(time - span / 2, time + span / 2);
  byId('memory').scrollIntoView({block: 'center'});
}

function showLeaks() {
  const place = byId('leaks');
  if (facts.leaks.length === 0) {
    place.replaceChildren(element('p', {}, 'Every block was freed.'));
    return;
  }
  const bytes = facts.leaks.reduce((sum, row) => sum + row.bytes, 0);
  const blocks = facts.leaks.reduce((sum, row) => sum + row.blocks, 0);
  place.replaceChildren(makeTable(`${plural(blocks, 'block')}, ${formatBytes(bytes)}`, [
    siteColumn('Allocated at'), tagColumn(),
    {label: 'Device', value: (row) => deviceName(row.device)},
    bytesColumn('Size', (row) => row.bytes), blocksColumn,
  ], facts.leaks, {sort: 3}));
}

function showTransfers() {
  const place = byId('transfers');
  if (facts.transfers.length === 0) {
    place.replaceChildren(element('p', {}, 'Nothing was copied.'));
    return;
  }
  const busy = facts.transfers.reduce((sum, row) => sum + row.busy, 0);
  const calls = facts.transfers.reduce((sum, row) => sum + row.calls, 0);
  const unknown = (value, show) => value > 0 ? show(value) : 'unknown';
  place.replaceChildren(makeTable(`${calls === 1 ? '1 copy' : `${formatCount(calls)} copies`}`, [
    {label: 'Direction', value: (row) => directionName(row.direction)},
    numberColumn('Copies', (row) => row.calls, formatCount),
    bytesColumn('Size', (row) => row.bytes),
    numberColumn('Busy', (row) => row.busy, (value) => unknown(value, formatTime)),
    shareColumn('Share of the busy time', (row) => row.busy, busy),
    numberColumn('Share of the trace', (row) => row.busy / spanNs(),
                 (value) => unknown(value, formatShare)),
    {label: 'Average rate', isNumber: true, value: (row) => row.busy > 0 ? row.timed_bytes / row.busy : 0,
     show: (row) => unknown(row.busy, () => formatRate(row.timed_bytes, row.busy))},
  ], facts.transfers));
}

/** The largest blocks in view: the way to a block for those who do not use a pointer. */
function showLargestBlocks() {
  const {blocks} = model;
  const best = [];
  for (const i of visibleBlocks()) {
    if (best.length === 10 && blocks.bytes[i] <= blocks.bytes[best[9]]) continue;
    let at = best.length;
    while (at > 0 && blocks.bytes[best[at - 1]] < blocks.bytes[i]) --at;
    best.splice(at, 0, i);
    if (best.length > 10) best.pop();
  }
  if (best.length === 0) {
    byId('largest').replaceChildren(
        element('p', {class: 'help'}, 'No block is live in this view.'));
    return;
  }
  const rows = best.map((block) => ({block, tag: blocks.tag[block], site: blocks.site[block]}));
  byId('largest').replaceChildren(makeTable('Largest blocks in view', [
    {label: 'Size', isNumber: true, value: (row) => blocks.bytes[row.block],
     show: (row) => element('button', {type: 'button', title: 'Show this block in the map',
         onclick: () => selectBlock(row.block)}, formatBytes(blocks.bytes[row.block]))},
    tagColumn(), siteColumn('Allocated at'),
    {label: 'Freed at', value: (row) => blockFacts(row.block).freeSite ?? 'not freed'},
    {label: 'Stream', value: (row) => streamName(blocks.stream[row.block])},
    numberColumn('Begin', (row) => blocks.begin[row.block], (value) => formatTime(value, 6)),
    numberColumn('Life', (row) => blocks.end[row.block] - blocks.begin[row.block],
                 (value) => value === Infinity ? 'to the end' : formatTime(value)),
  ], rows, {sort: 0, rowAttributes: (row) => ({'data-block': row.block,
      ...(row.block === selectedBlock ? {class: 'selected'} : {})})}));
}

// ---- Legends and header ------------------------------------------------------------------------

function legendItem(name, color, value = '', kind = '') {
  return element('li', {}, swatch(color, kind), element('span', {class: 'name', title: name}, name),
                 ...(value ? [element('span', {class: 'value'}, value)] : []));
}

function showMemoryLegend() {
  const curve = curveOf(shown.mode, shown.device);
  const peak = peakOf(shown.device);
  const values = new Float64Array(curve.layers + 1);
  if (peak) readLayers(curve, upperBound(model.events.time, peak.time) - 1, values);
  const present = presentLayers(curve);
  const items = curve.names.map((name, layer) => present[layer]
      ? legendItem(name, theme.layers[layer], formatBytes(values[layer])) : null).filter(Boolean);
  const hasHolds = heldOf(shown.device).time.length > 0;
  const held = peak ? heldAt(peak.time, shown.device) : 0;
  if (!hasHolds) items.push(element('li', {class: 'quiet'}, 'Held memory was not recorded.'));
  else if (shown.mode === 'state') {
    items.push(legendItem('cached: held, but not live', theme.cached,
                          formatBytes(Math.max(0, held - (peak ? peak.live : 0)))));
  } else items.push(legendItem('held', theme.text, formatBytes(held), 'line'));
  if (peak) items.push(element('li', {class: 'quiet'}, 'Sizes are those at the peak.'));
  byId('memory-legend').replaceChildren(...items);
  byId('memory').setAttribute('aria-label', memorySummary(peak));
}

function presentLayers(curve) {
  const present = new Array(curve.layers + 1).fill(false);
  for (const layer of curve.layerOfBlock) present[layer] = true;
  return present;
}

function memorySummary(peak) {
  const what = `Live bytes over time, ${deviceName(shown.device)}, by ${shown.mode}.`;
  if (!peak) return `${what} Nothing was allocated.`;
  return `${what} The peak is ${formatBytes(peak.live)} at ${formatTime(peak.time, 6)}. ` +
         'The tables below list what was live then.';
}

function showLegends() {
  showMemoryLegend();
  byId('map-legend').replaceChildren(...rankingOf('tag').names.map((name, layer) =>
      legendItem(name, theme.layers[layer])));
  const used = new Set(model.copies.kind);
  const items = DIRECTIONS.map((name, kind) => used.has(kind)
      ? legendItem(`copy ${name}`, theme.layers[kind]) : null).filter(Boolean);
  if (model.launches.time.length) items.push(legendItem('launch', theme.quiet, '', 'tick'));
  if (model.waits.stream.includes(0)) items.push(legendItem('host waits', theme.refusal));
  if (model.waits.stream.some((stream) => stream !== 0)) {
    items.push(legendItem('wait: arrow to the stream that waits', theme.text, '', 'arrow'));
  }
  byId('streams-legend').replaceChildren(...items);
  showPeakTables();
  showRefusals();
  showLeaks();
}

function showHeader() {
  document.title = `Tern report: ${facts.title}`;
  byId('title').textContent = facts.title;
  const process = facts.process ? `, process ${facts.process}` : '';
  byId('origin').textContent = `${facts.program || 'unknown program'}${process}` +
                               `${facts.started ? `, started ${facts.started}` : ''}`;
  const figures = [
    ['Duration', formatTime(facts.duration)], ['Events', formatCount(facts.events)],
    ['Blocks', formatCount(model.blocks.count)],
    ['Lost events', formatCount(facts.lost), facts.lost > 0],
    ['Refused requests', formatCount(facts.refusals.length), facts.refusals.length > 0],
    ['Not freed', formatBytes(facts.leaks.reduce((sum, row) => sum + row.bytes, 0))],
  ];
  byId('figures').replaceChildren(...figures.map(([name, value, isBad]) =>
      element('div', isBad ? {class: 'bad'} : {}, element('dt', {}, name),
              element('dd', {}, value))));
  const notes = [...facts.notes];
  if (facts.is_complete === false && notes.length === 0) notes.push('The trace was not closed.');
  byId('notes').hidden = notes.length === 0;
  byId('notes').replaceChildren(...notes.map((note) => element('li', {}, note)));
  byId('peaks').replaceChildren(...(facts.peaks.length
      ? facts.peaks.map((peak) => element('p', {}, peak.text))
      : [element('p', {}, 'No memory was allocated.')]));
  byId('map').setAttribute('aria-label',
      `Address ranges of ${plural(model.blocks.count, 'block')} over time, colored by tag. ` +
      'The table below lists the largest blocks in view.');
  byId('overview').setAttribute('aria-label',
      'Live bytes over the whole trace. A frame marks the part in view.');
  byId('streams').setAttribute('aria-label',
      `Timeline of ${plural(model.lanes.streams.length, 'lane')}: ` +
      `${formatCount(model.copies.time.length)} copies, ` +
      `${formatCount(model.launches.time.length)} launches and ` +
      `${formatCount(model.waits.time.length)} waits.`);
  const {omittedRows, omittedStreams} = model.lanes;
  byId('streams-note').textContent = omittedRows + omittedStreams === 0 ? ''
      : `Not shown: ${plural(omittedStreams, 'stream')}, ${plural(omittedRows, 'row')} of ranges.`;
}

// ---- Start -------------------------------------------------------------------------------------

function makeControls() {
  for (const mode of ['tag', 'device', 'stream', 'state']) {
    byId('modes').append(element('button', {type: 'button', value: mode,
        title: mode === 'state' ? 'Live memory, and memory that is held but not live'
                                : `Stack live memory by ${mode}`,
        onclick: () => setMode(mode)}, mode));
  }
  const select = byId('device');
  const used = [...new Set(model.blocks.device)].sort((a, b) => a - b);
  const choices = used.length === 1 ? used : [-1, ...used];
  select.append(...choices.map((device) => element('option', {value: device}, deviceName(device))));
  select.addEventListener('change', () => setDevice(Number(select.value)));
  byId('device-field').hidden = used.length < 2;
  byId('zoom-in').addEventListener('click', () => zoom(0.6));
  byId('zoom-out').addEventListener('click', () => zoom(1 / 0.6));
  byId('zoom-reset').addEventListener('click', resetView);
  byId('theme').addEventListener('click', () =>
      setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
}

function listenToWindow() {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  dark.addEventListener('change', () => setTheme(dark.matches ? 'dark' : 'light'));
  new ResizeObserver(scheduleDraw).observe(document.querySelector('main'));
  // Paper is white, and printing copies the canvases as they are.
  let before = 'light';
  addEventListener('beforeprint', () => {
    before = document.documentElement.dataset.theme;
    setTheme('light');
    redraw();
  });
  addEventListener('afterprint', () => setTheme(before));
}

function start() {
  facts = JSON.parse(byId('facts').textContent);
  model = loadModel(facts, columnReader(facts, decodeBase64(byId('columns').textContent)));
  planLanes();
  makeChart('memory', MARKER_BAND, AXIS, () => 320);
  makeChart('overview', 2, 2, () => 44);
  makeChart('map', 4, AXIS, () => 400);
  makeChart('streams', 2, AXIS, streamsHeight);
  Object.assign(view, {begin: 0, end: spanNs()});
  const highest = [...facts.peaks].sort((a, b) => b.live - a.live)[0];
  shown.device = highest ? highest.device : -1;
  readTheme();
  makeControls();
  showHeader();
  showTransfers();
  setTheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  setMode('tag');
  setDevice(shown.device);
  redraw();
  for (const chart of Object.values(charts)) {
    listenToPointer(chart);
    listenToWheel(chart);
    listenToKeys(chart);
  }
  listenToWindow();
}

/** For tests: a point of the map, in CSS pixels, for a time and an address in bytes. */
function mapPoint(timeNs, address, device) {
  const units = address / ADDRESS_UNIT;
  const {plot} = charts.map;
  const region = model.regions.find((r) =>
      r.device === device && units >= r.begin && units <= r.end);
  return {x: timeToX(charts.map, timeNs),
          y: plot.y + plot.height * positionToY(addressToPosition(region, units))};
}

/** Draws at once: a test reads the result in its next call. */
const drawn = (change) => (...values) => {
  change(...values);
  redraw();
};

Object.assign(report, {
  redraw, liveAt, mapPoint,
  blockAt: (x, y) => blockFacts(blockIndexAt(x, y)),
  setView: drawn(setView), setMode: drawn(setMode), setDevice: drawn(setDevice),
  setTheme: drawn(setTheme), zoomToBlock: drawn(zoomToBlock), resetView: drawn(resetView),
  view: () => ({...view}),
});
window.ternReport = report;
report.ready = (async () => {
  try {
    start();
  } catch (error) {
    byId('problem').hidden = false;
    byId('problem').textContent = `The report cannot be shown: ${error.message}`;
    throw error;
  }
  report.loadMilliseconds = performance.now();
})();
})();
