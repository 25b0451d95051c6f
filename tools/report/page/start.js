// Reads the data, builds the page, and gives tests a handle.

function makeControls() {
  for (const mode of ['tag', 'device', 'stream', 'state']) {
    byId('modes').append(element('button', {type: 'button', value: mode,
        title: mode === 'state' ? 'Live, pending and cached memory'
                                : `Stack live memory by ${mode}`,
        onclick: () => setMode(mode)}, mode));
  }
  byId('device').addEventListener('change', () => setDevice(Number(byId('device').value)));
  byId('zoom-in').addEventListener('click', () => zoom(0.6));
  byId('zoom-out').addEventListener('click', () => zoom(1 / 0.6));
  byId('zoom-reset').addEventListener('click', resetView);
  byId('picked-none').addEventListener('click', () => setLine(null));
  byId('theme').addEventListener('click', () =>
      setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
}

function listDevices() {
  const used = [...new Set(model.blocks.device)].sort((a, b) => a - b);
  const choices = used.length === 1 ? used : [-1, ...used];
  byId('device').replaceChildren(...choices.map((device) =>
      element('option', {value: device}, deviceName(device))));
  byId('device-field').hidden = used.length < 2;
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

function loadTrace(factsId, columnsId) {
  const loaded = {facts: JSON.parse(byId(factsId).textContent)};
  loaded.model = loadModel(loaded.facts, columnReader(
      loaded.facts, decodeBase64(byId(columnsId).textContent)));
  inTrace(loaded, planLanes);
  return loaded;
}

/** Shows one of the traces in everything below the comparison. */
function openTrace(index) {
  ({facts, model} = traces[index]);
  selectedBlock = -1;
  shown.line = null;
  byId('picked').hidden = true;
  byId('block').hidden = true;
  if (charts.map) charts.map.rows = null;
  Object.assign(view, {begin: 0, end: spanNs()});
  // Memory of the host is rarely what is short.
  const isHost = (peak) => Number(facts.devices[peak.device].is_host ?? false);
  const highest = [...facts.peaks].sort((a, b) => isHost(a) - isHost(b) || b.live - a.live)[0];
  shown.device = highest ? highest.device : -1;
  for (const button of byId('traces').querySelectorAll('button')) {
    button.setAttribute('aria-pressed', String(Number(button.value) === index));
  }
  listDevices();
  showHeader();
  showTransfers();
  showLegends();
  setMode(shown.mode);
  setDevice(shown.device);
}

function start() {
  const comparison = JSON.parse(byId('comparison-facts').textContent);
  traces = [...(comparison ? [loadTrace('facts-before', 'columns-before')] : []),
            loadTrace('facts', 'columns')];
  ({facts, model} = traces[traces.length - 1]);
  readTheme();
  makeControls();
  if (comparison) makeComparison(comparison);
  Object.assign(charts, {
    memory: makeChart('memory', MARKER_BAND, AXIS, () => 320),
    overview: makeChart('overview', 2, 2, () => 44),
    map: makeChart('map', 4, AXIS, () => 400),
    streams: makeChart('streams', 2, AXIS, streamsHeight),
  });
  openTrace(traces.length - 1);
  setTheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
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
  setTheme: drawn(setTheme), setLine: drawn(setLine), zoomToBlock: drawn(zoomToBlock), resetView: drawn(resetView),
  openTrace: drawn(openTrace), compareAt,
  view: () => ({...view}), shown: () => ({...shown}),
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
