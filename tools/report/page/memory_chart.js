// The chart of memory over time, and the overview of the whole trace below it.

const MARKER_BAND = 20;      // height of the marker labels above the memory chart

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
  drawHeld(chart);
  drawMarkers(chart);
  if (model.blocks.count === 0) drawSentence(chart, 'The trace has no allocations.');
}

function paintStack(chart, curve, columns, most) {
  const {image: {width, height}, pixels} = chart;
  const colors = layerColors().map((color) => pixelOf(color));
  const edges = layerColors().map((color) => pixelOf(color, EDGE_SHADE));
  const cached = pixelOf(theme.cached);
  const pending = pixelOf(theme.pending);
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
      if (bottom - top > 2) pixels[top * width + x] = edges[layer];
      bottom = Math.min(bottom, top);
    }
    if (shown.mode !== 'state') continue;
    const fill = (level, color) => {
      const top = Math.round(height * (1 - level / most));
      for (let y = top; y < bottom; ++y) pixels[y * width + x] = color;
      bottom = Math.min(bottom, top);
    };
    fill(sum + pendingAt(columns.index[x], columns.held[x], shown.device), pending);
    fill(columns.held[x], cached);
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
  facts.findings.forEach((finding, at) => {
    if (finding.time >= spanNs() || !isInView(finding.time)) return;
    if (finding.device >= 0 && !isShown(finding.device)) return;
    const x = timeToX(chart, finding.time);
    drawMarkerLine(context, x, plot.y - 4, plot.y + plot.height, theme.warning, [2, 3]);
    label(`Finding ${at + 1}`, x, theme.warning);
  });
  let lastX = -1;
  for (const refusal of facts.refusals) {
    if (!isShown(refusal.device) || !isInView(refusal.time)) continue;
    const x = timeToX(chart, refusal.time);
    if (Math.abs(x - lastX) < 1) continue;
    lastX = x;
    if (refusal.is_served_later) {
      // It was served after something was evicted or freed: a tick is enough.
      drawMarkerLine(context, x, plot.y - 4, plot.y + 4, theme.refusal, []);
      continue;
    }
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
