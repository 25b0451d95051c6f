// Tables.

const FIRST_ROWS = 12;       // rows of a table before "Show all"

/** Builds a table that its column headers sort. A column is {label, value, show, isNumber}: `value`
    is what sorts, `show` returns what the cell contains. */
function makeTable(caption, columns, rows, {rowAttributes = () => ({}), sort = -1} = {}) {
  const body = element('tbody');
  let order = [...rows];
  let limit = FIRST_ROWS;
  const more = element('button', {type: 'button', class: 'more',
                                  onclick: () => { limit = Infinity; fill(); }});
  const fill = () => {
    body.replaceChildren(...order.slice(0, limit).map((row) =>
        element('tr', rowAttributes(row), ...columns.map((column) =>
            element('td', {class: column.isNumber ? 'number' : 'words'},
                    (column.show || column.value)(row))))));
    more.hidden = order.length <= limit;
    more.textContent = `Show all ${formatCount(order.length)} rows`;
  };
  const headers = columns.map((column, at) => element('th',
      {scope: 'col', ...(column.isNumber ? {class: 'number'} : {}),
       ...(at === sort ? {'aria-sort': 'descending'} : {})},
      element('button', {type: 'button', onclick: () => sortBy(at)}, column.label)));
  const sortBy = (at) => {
    const before = headers[at].getAttribute('aria-sort');
    const isDescending = before ? before === 'ascending' : columns[at].isNumber === true;
    headers.forEach((header) => header.removeAttribute('aria-sort'));
    headers[at].setAttribute('aria-sort', isDescending ? 'descending' : 'ascending');
    const {value} = columns[at];
    const compare = (a, b) => columns[at].isNumber ? value(a) - value(b)
                                                   : String(value(a)).localeCompare(value(b));
    order = [...rows].sort((a, b) => isDescending ? compare(b, a) : compare(a, b));
    fill();
  };
  fill();
  const table = element('table', {}, element('caption', {}, caption),
                        element('thead', {}, element('tr', {}, ...headers)), body);
  return element('div', {class: 'table-frame'}, table, more);
}

const numberColumn = (label, value, show) =>
    ({label, value, show: (row) => show(value(row)), isNumber: true});
const bytesColumn = (label, value) => ({
  label, value, isNumber: true,
  show: (row) => element('span', {title: `${formatCount(value(row))} bytes`},
                         formatBytes(value(row))),
});
const tagColor = (tag) => theme.layers[rankingOf('tag').layerOf[tag] ?? COLORS];
const tagColumn = (label = 'Tag') => ({
  label, value: (row) => tagName(row.tag),
  show: (row) => element('span', {}, swatch(tagColor(row.tag)), tagName(row.tag)),
});
const siteColumn = (label) => ({label, value: (row) => siteName(row.site)});
const blocksColumn = numberColumn('Blocks', (row) => row.blocks, formatCount);

function shareColumn(label, value, total) {
  return {label, value, isNumber: true, show: (row) => {
    const share = total > 0 ? value(row) / total : 0;
    const bar = element('span', {class: 'share', 'aria-hidden': 'true'});
    bar.style.width = `${Math.round(60 * share)}px`;
    return element('span', {}, bar, formatShare(share));
  }};
}

function showPeakTables() {
  const peaks = facts.peaks.filter((peak) => isShown(peak.device));
  const nodes = peaks.flatMap((peak) => {
    const share = shareColumn('Share', (row) => row.bytes, peak.live);
    const bytes = bytesColumn('Live', (row) => row.bytes);
    return [
      element('h3', {}, `${deviceName(peak.device)}: ${formatBytes(peak.live)} live of ` +
                        `${formatBytes(peak.held)} held at ${formatTime(peak.time, 6)}`),
      element('div', {class: 'columns-two'},
              makeTable('By tag', [tagColumn(), bytes, share, blocksColumn], peak.tags, {sort: 1}),
              makeTable('By line', [siteColumn('Allocated at'), tagColumn(), bytes, share,
                                    blocksColumn], peak.sites, {sort: 2})),
    ];
  });
  byId('at-peak').replaceChildren(...(nodes.length ? nodes
      : [element('p', {}, 'No memory was allocated.')]));
}

function showRefusals() {
  const place = byId('refusals');
  if (facts.refusals.length === 0) {
    place.replaceChildren(element('p', {}, 'No request was refused.'));
    return;
  }
  const liveThen = (row) => row.tags.slice(0, 4).map((entry) =>
      `${tagName(entry.tag)} ${formatBytes(entry.bytes)}`).join(', ') +
      (row.tags.length > 4 ? `, and ${plural(row.tags.length - 4, 'more tag')}` : '');
  place.replaceChildren(makeTable(plural(facts.refusals.length, 'refused request'), [
    {label: 'Time', isNumber: true, value: (row) => row.time, show: (row) => element('button',
        {type: 'button', title: 'Show this moment in the charts',
         onclick: () => showMoment(row.time)}, formatTime(row.time, 6))},
    bytesColumn('Asked for', (row) => row.bytes), tagColumn(), siteColumn('At'),
    {label: 'Device', value: (row) => deviceName(row.device)},
    bytesColumn('Live', (row) => row.live), bytesColumn('Held', (row) => row.held),
    {label: 'Error', value: (row) => String(row.error)},
    {label: 'Live by tag', value: liveThen},
  ], facts.refusals));
}

function showMoment(time) {
  const span = Math.min(view.end - view.begin, spanNs() / 10);
  setView(time - span / 2, time + span / 2);
  byId('memory').scrollIntoView({block: 'center'});
}

function showLeaks() {
  const place = byId('leaks');
  if (facts.leaks.length === 0) {
    place.replaceChildren(element('p', {}, 'Every block was freed.'));
    return;
  }
  const bytes = facts.leaks.reduce((sum, row) => sum + row.bytes, 0);
  const blocks = facts.leaks.reduce((sum, row) => sum + row.blocks, 0);
  place.replaceChildren(makeTable(`${plural(blocks, 'block')}, ${formatBytes(bytes)}`, [
    siteColumn('Allocated at'), tagColumn(),
    {label: 'Device', value: (row) => deviceName(row.device)},
    bytesColumn('Size', (row) => row.bytes), blocksColumn,
  ], facts.leaks, {sort: 3}));
}

function showTransfers() {
  const place = byId('transfers');
  if (facts.transfers.length === 0) {
    place.replaceChildren(element('p', {}, 'Nothing was copied.'));
    return;
  }
  const busy = facts.transfers.reduce((sum, row) => sum + row.busy, 0);
  const calls = facts.transfers.reduce((sum, row) => sum + row.calls, 0);
  const unknown = (value, show) => value > 0 ? show(value) : 'unknown';
  place.replaceChildren(makeTable(`${calls === 1 ? '1 copy' : `${formatCount(calls)} copies`}`, [
    {label: 'Direction', value: (row) => directionName(row.direction)},
    numberColumn('Copies', (row) => row.calls, formatCount),
    bytesColumn('Size', (row) => row.bytes),
    numberColumn('Busy', (row) => row.busy, (value) => unknown(value, formatTime)),
    shareColumn('Share of the busy time', (row) => row.busy, busy),
    numberColumn('Share of the trace', (row) => row.busy / spanNs(),
                 (value) => unknown(value, formatShare)),
    {label: 'Average rate', isNumber: true, value: (row) => row.busy > 0 ? row.bytes / row.busy : 0,
     show: (row) => unknown(row.busy, () => formatRate(row.bytes, row.busy))},
  ], facts.transfers));
}

/** The largest blocks in view: the way to a block for those who do not use a pointer. */
function showLargestBlocks() {
  const {blocks} = model;
  const best = [];
  for (const i of visibleBlocks()) {
    if (best.length === 10 && blocks.bytes[i] <= blocks.bytes[best[9]]) continue;
    let at = best.length;
    while (at > 0 && blocks.bytes[best[at - 1]] < blocks.bytes[i]) --at;
    best.splice(at, 0, i);
    if (best.length > 10) best.pop();
  }
  if (best.length === 0) {
    byId('largest').replaceChildren(
        element('p', {class: 'help'}, 'No block is live in this view.'));
    return;
  }
  const rows = best.map((block) => ({block, tag: blocks.tag[block], site: blocks.site[block]}));
  byId('largest').replaceChildren(makeTable('Largest blocks in view', [
    {label: 'Size', isNumber: true, value: (row) => blocks.bytes[row.block],
     show: (row) => element('button', {type: 'button', title: 'Show this block in the map',
         onclick: () => selectBlock(row.block)}, formatBytes(blocks.bytes[row.block]))},
    tagColumn(), siteColumn('Allocated at'),
    {label: 'Freed at', value: (row) => blockFacts(row.block).freeSite ?? 'not freed'},
    {label: 'Stream', value: (row) => streamName(blocks.stream[row.block])},
    numberColumn('Begin', (row) => blocks.begin[row.block], (value) => formatTime(value, 6)),
    numberColumn('Life', (row) => blocks.end[row.block] - blocks.begin[row.block],
                 (value) => value === Infinity ? 'to the end' : formatTime(value)),
  ], rows, {sort: 0, rowAttributes: (row) => ({'data-block': row.block,
      ...(row.block === selectedBlock ? {class: 'selected'} : {})})}));
}
