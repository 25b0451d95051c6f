// Canvases, their axes and their pixels.

const LEFT = 106;            // width of the axis labels, the same for all charts
const RIGHT = 14;
const AXIS = 22;             // height of the time labels
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const MONO = '11px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

/** Adds what a chart needs to a canvas of the page. */
function makeChart(id, top, bottom, heightOf) {
  const canvas = byId(id);
  const frame = canvas.parentElement;
  const cursor = element('div', {class: 'cursor', hidden: ''});
  const selection = element('div', {class: 'selection', hidden: ''});
  frame.append(cursor, selection);
  return {id, canvas, frame, cursor, selection, top, bottom, heightOf,
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
function timeTicks(width, range) {
  const least = Math.max((range.end - range.begin) / Math.max(1, width / 110), 1);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999) * power;
  const ticks = [];
  for (let n = Math.ceil(range.begin / step); n * step <= range.end; ++n) ticks.push(n * step);
  const [scale, unit] = TIME_UNITS.find(([size]) => range.end >= size) || [1, 'ns'];
  const decimals = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
  const plain = (time) => `${(time / scale).toFixed(decimals)} ${unit}`;
  const isDeep = decimals > 4;
  return {ticks, label: (time, i) =>
      isDeep && i > 0 ? `+${formatTime(time - ticks[0], 6)}` : plain(time)};
}

function drawTimeAxis(chart, range = view) {
  const {ticks, label} = timeTicks(chart.plot.width, range);
  drawTicks(chart, ticks.map((time, i) => [timeToX(chart, time, range), label(time, i)]));
}

/** Draws a line at each tick, [x, text], and the texts that have room. */
function drawTicks(chart, ticks) {
  const {context, plot} = chart;
  context.textBaseline = 'top';
  context.textAlign = 'center';
  let free = 0;
  for (const [at, text] of ticks) {
    const x = Math.round(at) + 0.5;
    context.fillStyle = theme.grid;
    context.fillRect(x - 0.5, plot.y, 1, plot.height);
    const half = context.measureText(text).width / 2;
    const middle = Math.min(Math.max(x, LEFT / 2 + half), chart.width - half - 2);
    if (middle - half < free) continue;
    free = middle + half + 8;
    context.fillStyle = theme.quiet;
    context.fillText(text, middle, plot.y + plot.height + 6);
  }
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
