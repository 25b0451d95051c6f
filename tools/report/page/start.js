// Reads the data, builds the page, and gives tests a handle.

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
