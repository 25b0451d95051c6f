// Redraws, and the pointer, wheel and keyboard that cause them.

let frame = 0;
let listTimer = 0;

function redraw() {
  if (frame) cancelAnimationFrame(frame);
  frame = 0;
  const begin = performance.now();
  drawMemory();
  drawOverview();
  drawMap();
  drawStreams();
  drawComparison();
  report.lastRedrawMilliseconds = performance.now() - begin;
  showRange();
  clearTimeout(listTimer);
  listTimer = setTimeout(showBlockList, 150);
}

function scheduleDraw() {
  if (!frame) frame = requestAnimationFrame(redraw);
}

function showRange() {
  byId('range').textContent = `${formatTime(view.begin, 6)} to ${formatTime(view.end, 6)} ` +
      `(${formatTime(view.end - view.begin)} of ${formatTime(spanNs())})`;
}

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
  const colors = layerColors();
  const rows = curve.names.map((name, layer) => [name, values[layer], colors[layer]])
      .filter(([, bytes]) => bytes > 0).reverse().map((row) => line(...row));
  const total = index < 0 ? 0 : totalsOf(shown.device).total[index];
  if (shown.mode !== 'state') rows.push(line('live in total', total));
  const held = chart.columns.held[column];
  if (shown.mode === 'state') {
    const pending = pendingAt(index, held, shown.device);
    rows.push(line('pending', pending, theme.pending),
              line('cached', Math.max(0, held - total - pending), theme.cached));
  }
  if (heldOf(shown.device).time.length > 0) rows.push(line('held', held));
  const near = facts.refusals.find((refusal) => isShown(refusal.device) &&
      Math.abs(timeToX(chart, refusal.time) - x) < 5);
  const refused = near ? [element('p', {}, `Refused: ${formatBytes(near.bytes)} for ` +
      `'${tagName(near.tag)}' at ${siteName(near.site)}, ${near.error}` +
      `${near.is_served_later ? ', served later' : ''}`)] : [];
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
