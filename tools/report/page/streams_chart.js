// The timeline of streams: copies, launches, waits, host functions, and the ranges of threads.

const EDGE_COLOR = 'rgba(0, 0, 0, 0.55)';  // below a bar, so that a light bar has contrast
const LANE = 36;
const RANGE_ROW = 18;
const MAX_RANGE_ROWS = 16;
const MAX_LANES = 64;        // a canvas has a maximum height

const BAR = {top: 4, height: 14};       // copies
const TICK = {top: 21, height: 10};     // launches, waits of the host, and host functions

function planLanes() {
  const {copies, launches, waits, calls, ranges} = model;
  const used = new Set([0]);
  for (const streams of [copies.stream, launches.stream, waits.stream, waits.source,
                         calls.stream]) {
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
  const {lanes, copies, launches, waits, calls} = model;
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
  context.globalAlpha = 0.35;
  drawMarks(chart, calls, TICK, () => 0, [theme.accent]);
  context.globalAlpha = 1;
  drawMarks(chart, {...calls, end: calls.time}, TICK, () => 0, [theme.accent]);
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
    context.fillStyle = EDGE_COLOR;
    context.fillRect(run.left, laneTop(lane) + place.top + place.height - 1,
                     run.right - run.left, 1);
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
  const [copy, ...others] = [copyItem, waitItem, launchItem, callItem].map((find) =>
      find(stream, begin, end));
  const isUpper = y - laneTop(lane) < TICK.top;
  const other = others.find((item) => item !== null);
  return isUpper ? copy ?? other : other ?? copy;
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
  return {heading: `${streamName(stream)} waits for ${waitTarget(waits.source[i])}`, rows};
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

function callItem(stream, begin, end) {
  const {calls} = model;
  const i = markAt(calls, stream, begin, end);
  if (i < 0) return null;
  return {heading: 'Host function', rows: [
    ['Stream', streamName(stream)], ['Site', siteName(calls.site[i])],
    ['Submitted', formatTime(calls.time[i], 6)],
    ['Seen to be over', calls.end[i] === Infinity ? 'no' : formatTime(calls.end[i], 6)],
  ]};
}
