// The tables of the facts: live at the peak, refusals, leaks, copies, blocks in view.

const MAX_LISTED = 200;      // blocks of a highlighted line

function showPeakTables() {
  const peaks = facts.peaks.filter((peak) => isShown(peak.device));
  const nodes = peaks.flatMap((peak) => {
    const share = shareColumn('Share', (row) => row.bytes, peak.live);
    const bytes = bytesColumn('Live', (row) => row.bytes);
    return [
      element('h3', {}, `${deviceName(peak.device)}: ${formatBytes(peak.live)} live of ` +
                        `${formatBytes(peak.held)} held at ${formatTime(peak.time, 6)}`),
      element('div', {class: 'columns-two'},
              makeTable('By tag', [tagColumn(), bytes, share, blocksColumn], peak.tags,
                        {sort: 'Live'}),
              makeTable('By line', [lineColumn(), tagColumn(), bytes, share,
                                    blocksColumn], peak.sites, {sort: 'Live'})),
    ];
  });
  byId('at-peak').replaceChildren(...(nodes.length ? nodes
      : [element('p', {}, 'No memory was allocated.')]));
}

/** Refusals of one request are one row: the same line, tag and error. */
function groupRefusals() {
  const groups = new Map();
  for (const refusal of facts.refusals) {
    const {device, site, tag, error, is_served_later} = refusal;
    const key = JSON.stringify([device, site, tag, error, is_served_later]);
    const known = groups.get(key);
    if (known) {
      ++known.times;
      known.least = Math.min(known.least, refusal.bytes);
      known.bytes = Math.max(known.bytes, refusal.bytes);
    } else {
      groups.set(key, {...refusal, times: 1, least: refusal.bytes});
    }
  }
  return [...groups.values()];
}

function showRefusals() {
  const place = byId('refusals');
  const rows = groupRefusals();
  if (rows.length === 0) {
    place.replaceChildren(element('p', {}, 'No request was refused.'));
    return;
  }
  const limitOf = ({limit, backing}) => limit === 0 ? 'unknown'
      : element('span', {}, limit === null ? 'none' : formatBytes(limit), element('br'),
                `in ${backing}`);
  const liveThen = (row) => row.tags.slice(0, 4).map((entry) =>
      `${tagName(entry.tag)} ${formatBytes(entry.bytes)}`).join(', ') +
      (row.tags.length > 4 ? `, and ${plural(row.tags.length - 4, 'more tag')}` : '');
  const ifAny = (column) => rows.some((row) => column.value(row) > 0) ? [column] : [];
  const known = facts.refusals.length;
  const caption = plural(facts.refused, 'refused request') +
      (facts.refused > known ? `, of which the first ${formatCount(known)} are shown` : '');
  place.replaceChildren(makeTable(caption, [
    timeColumn('First at'),
    ...(rows.some((row) => row.times > 1)
        ? [numberColumn('Times', (row) => row.times, formatCount)] : []),
    {...bytesColumn('Asked for', (row) => row.bytes), show: (row) => row.least === row.bytes
        ? formatBytes(row.bytes) : `${formatBytes(row.least)} to ${formatBytes(row.bytes)}`},
    tagColumn(), siteColumn('At'), ...deviceColumns(),
    // The error code, and the path of a budget.
    {label: 'Error', value: (row) => row.error.replace(/^[a-z_]+/, (code) =>
        code.replaceAll('_', ' '))},
    ...(rows.some((row) => row.is_served_later)
        ? [{label: 'Served later', value: (row) => row.is_served_later ? 'yes' : 'no'}] : []),
    ...ifAny({label: 'Limit of the pool', isNumber: true, value: (row) => row.limit ?? Infinity,
              show: limitOf}),
    bytesColumn('Live', (row) => row.live), ...ifAny(bytesColumn('Held', (row) => row.held)),
    ...ifAny(bytesColumn('Largest free range', (row) => row.largest_free, 'unknown')),
    ...ifAny(bytesColumn('Pending', (row) => row.pending)),
    {label: 'Live by tag', value: liveThen},
  ], rows));
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
    lineColumn(), tagColumn(),
    ...deviceColumns(),
    bytesColumn('Size', (row) => row.bytes), blocksColumn,
  ], facts.leaks, {sort: 'Size'}));
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
  const times = [
    numberColumn('Busy', (row) => row.busy, (value) => unknown(value, formatTime)),
    shareColumn('Share of the busy time', (row) => row.busy, busy),
    numberColumn('Share of the trace', (row) => row.busy / spanNs(),
                 (value) => unknown(value, formatShare)),
    {label: 'Average rate', isNumber: true, value: (row) => row.busy > 0 ? row.timed_bytes / row.busy : 0,
     show: (row) => unknown(row.busy, () => formatRate(row.timed_bytes, row.busy))},
  ];
  place.replaceChildren(makeTable(`${calls === 1 ? '1 copy' : `${formatCount(calls)} copies`}`, [
    {label: 'Direction', value: (row) => directionName(row.direction)},
    numberColumn('Copies', (row) => row.calls, formatCount),
    bytesColumn('Size', (row) => row.bytes), ...(busy > 0 ? times : []),
  ], facts.transfers));
}

function largestBlocks(visible) {
  const {bytes} = model.blocks;
  const best = [];
  for (const i of visible) {
    if (best.length === 10 && bytes[i] <= bytes[best[9]]) continue;
    let at = best.length;
    while (at > 0 && bytes[best[at - 1]] < bytes[i]) --at;
    best.splice(at, 0, i);
    if (best.length > 10) best.pop();
  }
  return best;
}

/** The largest blocks in view, or the oldest ones of the highlighted line: the way to a block for
    those who do not use a pointer. */
function showBlockList() {
  const {blocks} = model;
  const visible = visibleBlocks();
  const picked = shown.line ? visible.filter(isPicked) : [];
  const listed = shown.line ? [...picked.subarray(0, MAX_LISTED)] : largestBlocks(visible);
  if (listed.length === 0) {
    byId('block-list').replaceChildren(
        element('p', {class: 'help'}, 'No block is live in this view.'));
    return;
  }
  const caption = !shown.line ? 'Largest blocks in view'
      : `${lineName(shown.line)}: ${plural(picked.length, 'block')} in view, the oldest first` +
        (picked.length > MAX_LISTED ? `, of which ${MAX_LISTED} are listed` : '');
  const freedAt = (row) => blockFacts(row.block).freeSite ?? 'not freed';
  const rows = listed.map((block) => ({block, tag: blocks.tag[block], site: blocks.site[block]}));
  byId('block-list').replaceChildren(makeTable(caption, [
    {label: 'Size', isNumber: true, value: (row) => blocks.bytes[row.block],
     show: (row) => element('button', {type: 'button', title: 'Show this block in the map',
         onclick: () => selectBlock(row.block)}, formatBytes(blocks.bytes[row.block]))},
    tagColumn(), lineColumn(),
    ...(rows.some((row) => freedAt(row) !== 'unknown')
        ? [{label: 'Freed at', kind: 'words site', value: freedAt,
            show: (row) => lineNode(freedAt(row))}] : []),
    {label: 'Stream', value: (row) => streamName(blocks.stream[row.block])},
    numberColumn('Begin', (row) => blocks.begin[row.block], (value) => formatTime(value, 6)),
    numberColumn('Life', (row) => blocks.end[row.block] - blocks.begin[row.block],
                 (value) => value === Infinity ? 'to the end' : formatTime(value)),
  ], rows, {...(shown.line ? {sort: 'Begin', direction: 'ascending'} : {sort: 'Size'}),
            rowAttributes: (row) => ({'data-block': row.block,
      ...(row.block === selectedBlock ? {class: 'selected'} : {})})}));
}
