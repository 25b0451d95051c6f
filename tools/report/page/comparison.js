// The comparison of two traces: both memory curves in one chart, and tables of what differs.

const COMPARED_LINES = [{color: 0, dash: [7, 4]}, {color: 5, dash: []}];  // before, after

let compared = null;  // the comparison: its facts, its chart, and what the chart shows

function makeComparison(comparison) {
  compared = {facts: comparison, chart: makeChart('compare', 8, AXIS, () => 300),
              memory: 'live', axis: 'time', device: comparison.devices[0]?.name ?? ''};
  byId('comparison').hidden = byId('trace-choice').hidden = false;
  byId('differences').replaceChildren(...comparison.devices.map((device) =>
      element('p', {}, device.text)));
  const choose = (id, name, choices) => byId(id).append(...choices.map(([value, label]) =>
      element('button', {type: 'button', value, onclick: () => setComparison({[name]: value})},
              label)));
  choose('compare-memory', 'memory', [['live', 'live'], ['held', 'held']]);
  choose('compare-axis', 'axis', [['time', 'time'], ['share', 'share of the duration']]);
  const select = byId('compare-device');
  select.append(...comparison.devices.map(({name}) => element('option', {value: name}, name)));
  select.addEventListener('change', () => setComparison({device: select.value}));
  byId('compare-device-field').hidden = comparison.devices.length < 2;
  byId('traces').append(...comparison.titles.map((title, index) => element('button',
      {type: 'button', value: index, onclick: () => openTrace(index)}, title)));
  listenToComparison(compared.chart);
  setComparison({});
  showComparisonTables();
}

function setComparison(change) {
  Object.assign(compared, change);
  for (const name of ['memory', 'axis']) {
    for (const button of byId(`compare-${name}`).querySelectorAll('button')) {
      button.setAttribute('aria-pressed', String(button.value === compared[name]));
    }
  }
  byId('compare-legend').replaceChildren(...compared.facts.titles.map((title, side) => {
    const item = legendItem(title, theme.layers[COMPARED_LINES[side].color],
                            {value: side === 0 ? 'before' : 'after', kind: 'line'});
    if (side === 1) item.firstChild.style.borderTopStyle = 'solid';
    return item;
  }));
  const device = compared.facts.devices.find(({name}) => name === compared.device);
  byId('compare').setAttribute('aria-label', device
      ? `Both curves of ${compared.memory} bytes over time. ${device.text}`
      : 'No memory was allocated in either trace.');
  scheduleDraw();
}

const deviceIndex = (trace) =>
    trace.facts.devices.findIndex((device) => device.name === compared.device);
const longestNs = () => Math.max(1, ...traces.map((trace) => trace.facts.duration));
/** The end of the axis, in nanoseconds of one trace. */
const axisEnd = (trace) => compared.axis === 'time' ? longestNs()
                                                    : Math.max(1, trace.facts.duration);

/** Returns the bytes of each pixel column: the highest value in the column. */
function comparedColumns(trace, width) {
  const device = deviceIndex(trace);
  if (device < 0) return new Float64Array(width);
  return inTrace(trace, () => {
    const columns = sampleColumns(device, 0, axisEnd(trace), width);
    if (compared.memory === 'held') return columns.held;
    const {total} = totalsOf(device);
    return Float64Array.from(columns.index, (index) => index < 0 ? 0 : total[index]);
  });
}

function drawComparison() {
  if (!compared) return;
  const {chart} = compared;
  prepare(chart);
  const width = Math.max(1, Math.round(chart.plot.width * chart.ratio));
  chart.columns = traces.map((trace) => comparedColumns(trace, width));
  const most = 1.06 * chart.columns.reduce((all, columns) =>
      columns.reduce((a, b) => Math.max(a, b), all), 1);
  drawBytesAxis(chart, most);
  if (compared.axis === 'time') {
    drawTimeAxis(chart, {begin: 0, end: longestNs()});
  } else {
    drawTicks(chart, [0, 20, 40, 60, 80, 100].map((share) =>
        [chart.plot.x + chart.plot.width * share / 100, `${share} %`]));
  }
  traces.forEach((trace, side) => drawComparedLine(chart, trace, side, most));
}

function drawComparedLine({context, plot, ratio, columns}, trace, side, most) {
  const values = columns[side];
  // A trace ends where its recording ended.
  const last = Math.min(values.length, Math.ceil(values.length * trace.facts.duration /
                                                 axisEnd(trace)));
  const yOf = (bytes) => plot.y + plot.height * (1 - bytes / most);
  context.strokeStyle = theme.layers[COMPARED_LINES[side].color];
  context.lineWidth = 2;
  context.setLineDash(COMPARED_LINES[side].dash);
  context.beginPath();
  for (let column = 0; column < last; ++column) {
    const x = plot.x + column / ratio;
    if (column === 0) context.moveTo(x, yOf(values[0]));
    else if (values[column] !== values[column - 1]) context.lineTo(x, yOf(values[column - 1]));
    if (values[column] !== values[column - 1]) context.lineTo(x, yOf(values[column]));
  }
  context.lineTo(plot.x + last / ratio, yOf(values[Math.max(0, last - 1)]));
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
}

/** Returns what both curves show at a share of the axis, from 0 to 1. */
function compareAt(share) {
  const {chart: {columns}, axis} = compared;
  const width = columns[0].length;
  const column = Math.min(width - 1, Math.max(0, Math.floor(share * width)));
  const at = axis === 'time' ? formatTime(share * longestNs(), 6) : `${(100 * share).toFixed(1)} %`;
  return {at, bytes: columns.map((values) => values[column])};
}

function comparedFacts(share) {
  const {at, bytes} = compareAt(share);
  return {at, rows: [...bytes.map((value, side) =>
      [compared.facts.titles[side], formatBytes(value)]), ['difference', formatChange(bytes)]]};
}

function listenToComparison(chart) {
  let share = 0;
  const show = () => {
    const {plot, cursor} = chart;
    cursor.hidden = false;
    Object.assign(cursor.style, {left: `${plot.x + share * plot.width}px`, top: `${plot.y}px`,
                                 height: `${plot.height}px`});
  };
  chart.canvas.addEventListener('pointermove', (event) => {
    const {plot} = chart;
    share = Math.min(1, Math.max(0, (pointIn(chart, event).x - plot.x) / plot.width));
    show();
    const {at, rows} = comparedFacts(share);
    showTooltip(event, [element('b', {}, at), factTable(rows)]);
  });
  chart.canvas.addEventListener('pointerleave', (event) => {
    chart.cursor.hidden = true;
    showTooltip(event, []);
  });
  chart.canvas.addEventListener('keydown', (event) => {
    const sign = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!sign || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    share = Math.min(1, Math.max(0, share + sign * (event.shiftKey ? 0.1 : 0.01)));
    show();
    const {at, rows} = comparedFacts(share);
    byId('compare-at').textContent =
        `At ${at}: ${rows.map(([name, value]) => `${name} ${value}`).join(', ')}.`;
  });
}

// ---- Tables of differences ---------------------------------------------------------------------

/** A difference with its sign, or "same". */
function formatChange([before, after], format = formatBytes) {
  if (before === after) return 'same';
  return `${after > before ? '+' : '\u2212'}${format(Math.abs(after - before))}`;
}

const sideColumns = (value, format) => [
  numberColumn('Before', (row) => value(row)[0], format),
  numberColumn('After', (row) => value(row)[1], format),
];
const changeColumn = (label, value, format) => ({
  label, isNumber: true, value: (row) => Math.abs(value(row)[1] - value(row)[0]),
  show: (row) => formatChange(value(row), format),
});
const UNITS = {bytes: (value) => formatBytes(value), count: (value) => formatCount(value),
               ns: (value) => formatTime(value)};

function showComparisonTables() {
  const {devices, figures, transfers, tags, lines, leaks} = compared.facts;
  const rows = [
    ...devices.flatMap(({name, live, held}) => [
      {name: `${name}: peak live`, unit: 'bytes', value: live},
      {name: `${name}: peak held`, unit: 'bytes', value: held}]),
    ...figures.filter(({value}) => value[0] + value[1] > 0),
    ...transfers.flatMap(({direction, calls, bytes}) => [
      {name: `copied ${direction}`, unit: 'bytes', value: bytes},
      {name: `copies ${direction}`, unit: 'count', value: calls}]),
  ];
  const side = (label, at) => ({label, isNumber: true, value: (row) => row.value[at],
                                show: (row) => UNITS[row.unit](row.value[at])});
  const bytes = (row) => row.bytes;
  const device = devices.length < 2 ? [] : [{label: 'Device', value: (row) => row.device}];
  const tag = {label: 'Tag', value: (row) => row.tag};
  const siteText = (row) => row.site_before ? `${row.site}, before ${row.site_before}` : row.site;
  const site = {label: 'Allocated at', kind: 'words site', value: siteText,
                show: (row) => lineNode(siteText(row))};
  const sizes = [changeColumn('Difference', bytes), ...sideColumns(bytes, formatBytes)];
  const allocations = changeColumn('Allocations', (row) => row.allocations, formatCount);
  const table = (caption, columns, of) => of.length
      ? makeTable(caption, columns, of, {sort: 'Difference'})
      : element('p', {class: 'same'}, `${caption}: no difference.`);
  byId('compare-tables').replaceChildren(element('div', {class: 'columns-two even'},
      makeTable('Figures', [
        {label: 'Figure', value: (row) => row.name},
        side('Before', 0), side('After', 1),
        {label: 'Difference', isNumber: true, value: (row) => row.value[1] - row.value[0],
         show: (row) => formatChange(row.value, UNITS[row.unit])},
      ], rows, {limit: Infinity}),
      table('Live at the peaks, by tag', [tag, ...device, ...sizes, allocations], tags)),
      table('Live at the peaks, by line', [site, tag, ...device, ...sizes, allocations], lines),
      table('Not freed when the recording ended, more than before',
            [site, tag, ...device, ...sizes], leaks));
}
