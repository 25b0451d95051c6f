// Legends and the head of the page.

/** Highlights `line` when it is clicked, if there is one. */
function legendItem(name, color, {value = '', kind = '', line = null} = {}) {
  return element('li', {}, swatch(color, kind),
                 element('span', {class: 'name', title: name}, line ? lineButton(line, name) : name),
                 ...(value ? [element('span', {class: 'value'}, value)] : []));
}

/** Returns the tag of each layer that is one tag. */
function tagsOfLayers() {
  const tags = [];
  rankingOf('tag').layerOf.forEach((layer, tag) => { if (layer < COLORS) tags[layer] = tag; });
  return tags;
}
const lineOfTag = (tag) => tag === undefined ? null : {tag, site: -1};

function showMemoryLegend() {
  const curve = curveOf(shown.mode, shown.device);
  const peak = peakOf(shown.device);
  const isState = shown.mode === 'state';
  const time = isState ? mostHeldTime(shown.device) : peak?.time ?? 0;
  const index = upperBound(model.events.time, time) - 1;
  const values = new Float64Array(curve.layers + 1);
  readLayers(curve, index, values);
  const present = presentLayers(curve);
  const colors = layerColors();
  const tags = shown.mode === 'tag' ? tagsOfLayers() : [];
  if (splitsLine()) tags.unshift(undefined);
  const items = curve.names.map((name, layer) => present[layer]
      ? legendItem(name, colors[layer], {value: formatBytes(values[layer]),
                                         line: lineOfTag(tags[layer])}) : null).filter(Boolean);
  const hasHolds = heldOf(shown.device).time.length > 0;
  const held = heldAt(time, shown.device);
  if (!hasHolds) items.push(element('li', {class: 'quiet'}, 'Held memory was not recorded.'));
  else if (isState) {
    const pending = pendingAt(index, held, shown.device);
    if (pendingOf(shown.device).time.length > 0) {
      items.push(legendItem('pending: freed, not passed yet', theme.pending,
                            {value: formatBytes(pending)}));
    }
    const cached = Math.max(0, held - values[0] - pending);
    items.push(legendItem('cached: held, but not live', theme.cached,
                          {value: formatBytes(cached)}));
  } else items.push(legendItem('held', theme.text, {value: formatBytes(held), kind: 'line'}));
  if (peak) {
    items.push(element('li', {class: 'quiet'}, isState
        ? `Sizes are those at ${formatTime(time, 6)}, when the most was held.`
        : 'Sizes are those at the peak.'));
  }
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
  const tags = tagsOfLayers();
  byId('map-legend').replaceChildren(...rankingOf('tag').names.map((name, layer) =>
      legendItem(name, theme.layers[layer], {line: lineOfTag(tags[layer])})));
  const used = new Set(model.copies.kind);
  const items = DIRECTIONS.map((name, kind) => used.has(kind)
      ? legendItem(`copy ${name}`, theme.layers[kind]) : null).filter(Boolean);
  if (model.launches.time.length) items.push(legendItem('launch', theme.quiet, {kind: 'tick'}));
  if (model.waits.stream.includes(0)) items.push(legendItem('host waits', theme.refusal));
  if (model.calls.time.length) {
    items.push(legendItem('host function: from its submission until it was seen to be over',
                          theme.accent, {kind: 'faint'}));
  }
  if (model.waits.stream.some((stream) => stream !== 0)) {
    items.push(legendItem('wait: arrow to the stream that waits', theme.text, {kind: 'arrow'}));
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
      ? [...facts.peaks.map((peak) => element('p', {}, peak.text)),
         ...facts.held_peaks.map((peak) => element('p', {}, `${peak.text} `,
             element('button', {type: 'button', title: 'Show this moment in the charts',
                                onclick: () => showInChart(peak, 'state', null)}, 'Show')))]
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
