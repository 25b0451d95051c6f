// Legends and the head of the page.

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
    const index = peak ? upperBound(model.events.time, peak.time) - 1 : -1;
    const pending = pendingAt(index, held, shown.device);
    if (pendingOf(shown.device).time.length > 0) {
      items.push(legendItem('pending: freed, not passed yet', theme.pending,
                            formatBytes(pending)));
    }
    items.push(legendItem('cached: held, but not live', theme.cached,
                          formatBytes(Math.max(0, held - (peak ? peak.live : 0) - pending))));
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
  showGrowing();
  showBlocked();
  showBudgets();
  showWaits();
  showMoves();
  showCheckerFindings();
}

function showHeader() {
  const titles = traces.map((trace) => trace.facts.title).join(' and ');
  document.title = `Tern report: ${titles}`;
  byId('title').textContent = titles;
  const process = facts.process ? `, process ${facts.process}` : '';
  const which = traces.length > 1 ? `${facts.title}: ` : '';
  byId('origin').textContent = `${which}${facts.program || 'unknown program'}${process}` +
                               `${facts.started ? `, started ${facts.started}` : ''}`;
  const figures = [
    ['Duration', formatTime(facts.duration)], ['Events', formatCount(facts.events)],
    ['Blocks', formatCount(model.blocks.count)],
    ['Lost events', formatCount(facts.lost), facts.lost > 0],
    ['Refused requests', formatCount(facts.refused - facts.served_later),
     facts.refused > facts.served_later],
    ['Not freed', formatBytes(facts.leaks.reduce((sum, row) => sum + row.bytes, 0))],
  ];
  byId('figures').replaceChildren(...figures.map(([name, value, isBad]) =>
      element('div', isBad ? {class: 'bad'} : {}, element('dt', {}, name),
              element('dd', {}, value))));
  const notes = [...facts.notes];
  if (facts.is_complete === false && notes.length === 0) notes.push('The trace was not closed.');
  byId('notes').hidden = notes.length === 0;
  byId('notes').replaceChildren(...notes.map((note) => element('li', {}, note)));
  showFindings();
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
