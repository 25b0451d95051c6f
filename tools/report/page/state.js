// What the page shows: the part of the trace, the device, the theme.

const EDGE_SHADE = 0.5;      // of the edge of an area beside its color
const COLORS = 8;            // colors for groups; the remaining groups share one more
const MIN_SPAN_NS = 20;

let traces = [];  // {facts, model} of each trace of the page: one, or before and after
let facts;        // of the open trace
let model;
let theme;
const view = {begin: 0, end: 1};
const addresses = {low: 0, high: 1};  // the shown part of the address axis
const shown = {mode: 'tag', device: -1, line: null};  // line: {tag, site}, see isPicked()
const report = {loadMilliseconds: 0, lastRedrawMilliseconds: 0};
let selectedBlock = -1;
const charts = {};

/** Calls `compute` as if another trace were open. */
function inTrace(trace, compute) {
  const open = {facts, model};
  ({facts, model} = trace);
  try {
    return compute();
  } finally {
    ({facts, model} = open);
  }
}

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

/** Whether the block is of the line that is highlighted. A site of -1 is every line of the tag. */
function isPicked(block) {
  const {tag, site} = shown.line;
  return model.blocks.tag[block] === tag && (site < 0 || model.blocks.site[block] === site);
}

const lineName = ({tag, site}) => site < 0 ? tagName(tag) : `${siteName(site)} (${tagName(tag)})`;

/** Highlights the blocks of a line, or of a tag, and lists them; null: of none. */
function setLine(line) {
  shown.line = line;
  byId('picked').hidden = line === null;
  if (line) byId('picked-line').textContent = lineName(line);
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
    layers, cached: get('layer-cached'), pending: get('layer-pending'), text: get('text'),
    quiet: get('quiet'), grid: get('grid'),
    line: get('line'), card: get('card'), empty: get('empty'), refusal: get('refusal'),
    accent: get('accent'), warning: get('warning'),
  };
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId('theme').textContent = name === 'dark' ? 'Light theme' : 'Dark theme';
  readTheme();
  showLegends();
  if (compared) setComparison({});
  scheduleDraw();
}

const colorPart = (color, at) => parseInt(color.slice(at, at + 2), 16);

/** Returns the color of what is not highlighted: mostly that of the background. */
const faded = (color) => `#${[1, 3, 5].map((at) => Math.round(
    0.28 * colorPart(color, at) + 0.72 * colorPart(theme.empty, at)).toString(16).padStart(2, '0'))
    .join('')}`;

/** Returns the colors of the layers of the memory chart. */
function layerColors() {
  if (!splitsLine()) return theme.layers;
  return [tagColor(shown.line.tag), ...theme.layers.map(faded)];
}

/** Converts #rrggbb to the value of a pixel in ImageData, which is little-endian here. A factor
    below 1 mixes the color with black. */
function pixelOf(color, factor = 1) {
  const part = (at) => Math.min(255, Math.round(colorPart(color, at) * factor));
  return (255 << 24 | part(5) << 16 | part(3) << 8 | part(1)) >>> 0;
}
