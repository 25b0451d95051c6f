// What stands out, and the tables behind it: lines that keep growing, pools that grew while memory
// was pending, who waited for whom, what budgets held, and what unified buffers moved.

function showFindings() {
  const {findings} = facts;
  byId('findings').parentElement.classList.toggle('has-findings', findings.length > 0);
  byId('findings').replaceChildren(...(findings.length
      ? findings.map((finding) => element('li', {},
          element('b', {}, `${finding.kind[0].toUpperCase()}${finding.kind.slice(1)}. `),
          `${finding.text} `,
          element('button', {type: 'button', title: 'Show this in the charts',
              onclick: () => showInChart(finding, finding.mode, finding.line ?? null)}, 'Show'),
          element('p', {class: 'advice'}, `What to do: ${finding.advice}`)))
      : [element('li', {class: 'none'}, 'Nothing stands out: no leak, no refused request, no ' +
                 'fragmentation and no stream that blocks reuse.')]));
}

/** Shows the moment of a finding or of a peak, and highlights the line. What grows shows in the
    whole recording. */
function showInChart({device, time, is_whole: isWhole}, mode, line) {
  if (device >= 0) setDevice(device);
  setMode(mode);
  setLine(line);
  if (!isWhole) {
    showMoment(time);
  } else {
    resetView();
    byId('memory').scrollIntoView({block: 'center'});
  }
  byId('memory').focus({preventScroll: true});
}

/** Shows a section if it has rows. */
function showSection(id, rows, makeContents) {
  byId(id).parentElement.hidden = rows.length === 0;
  byId(id).replaceChildren(...(rows.length ? makeContents() : []));
}

/** A small chart: one bar for each eighth of the recording. */
function sparkline(values) {
  const most = Math.max(...values, 1);
  const label = values.map((value) => formatBytes(value)).join(', ');
  return element('span', {class: 'sparkline', role: 'img', title: label, 'aria-label': label},
      ...values.map((value) => {
        const bar = element('span');
        bar.style.height = `${Math.max(1, Math.round(18 * value / most))}px`;
        return bar;
      }));
}

function showGrowing() {
  showSection('growing', facts.growing, () => [makeTable('By line', [
    lineColumn(), tagColumn(), ...deviceColumns(),
    {label: 'Least live in each eighth', value: (row) => row.growth,
     show: (row) => sparkline(row.floors)},
    bytesColumn('At first', (row) => row.first), bytesColumn('At last', (row) => row.bytes),
    blocksColumn, numberColumn('Not freed', (row) => row.kept, formatCount),
  ], facts.growing)]);
}

function showBlocked() {
  showSection('blocked', facts.blocked, () => [makeTable('By stream and line', [
    {label: 'Stream with pending frees', value: (row) => streamName(row.stream)},
    lineColumn('Mostly allocated at', (row) => ({tag: row.freed_tag, site: row.freed_site})),
    ...(facts.blocked.some((row) => row.free_site !== 0)
        ? [siteColumn('Freed at', (row) => row.free_site)] : []),
    bytesColumn('Pending at most', (row) => row.pending), timeColumn('Most at'),
    bytesColumn('Pool grew by', (row) => row.grown),
    numberColumn('Times', (row) => row.times, formatCount),
    siteColumn('For requests at'), tagColumn('Tag of the requests'), ...deviceColumns(),
  ], facts.blocked)]);
}

/** A limit of null is none. */
function showBudgets() {
  const rows = facts.budgets;
  showSection('budgets', rows, () => [makeTable('By path', [
    {label: 'Budget', kind: 'words', value: (row) => row.path},
    bytesColumn('Highest use', (row) => row.highest),
    {label: 'Limit', isNumber: true, value: (row) => row.limit ?? Infinity,
     show: (row) => row.limit === null ? 'none' : formatBytes(row.limit)},
    {label: 'Share', isNumber: true, value: (row) => row.limit ? row.highest / row.limit : 0,
     show: (row) => row.limit ? `${Math.round(100 * row.highest / row.limit)} %` : ''},
    timeColumn('At'), numberColumn('Budgets', (row) => row.count, formatCount),
    numberColumn('Waits', (row) => row.waits, formatCount),
    numberColumn('Time waited', (row) => row.waited, formatTime),
    numberColumn('Refused', (row) => row.refused, formatCount),
  ], rows, {sort: 'Highest use'})]);
}

function showWaits() {
  const place = byId('waits');
  const nodes = [];
  if (facts.wait_sums.length > 0) {
    nodes.push(makeTable('Waits of the host and of streams', [
      {label: 'Who waited', value: (row) => streamName(row.stream)},
      {label: 'For', value: (row) => waitTarget(row.for)},
      numberColumn('Times', (row) => row.calls, formatCount),
      {label: 'Time of the host', isNumber: true, value: (row) => row.took,
       show: (row) => row.stream === 0 ? formatTime(row.took) : 'on the device'},
      siteColumn('Mostly at'),
    ], facts.wait_sums));
  }
  if (facts.budget_waits.length > 0) {
    nodes.push(makeTable('Requests that waited for their budget', [
      siteColumn('At'), tagColumn(), numberColumn('Times', (row) => row.calls, formatCount),
      numberColumn('Time', (row) => row.sum, formatTime),
    ], facts.budget_waits));
  }
  place.replaceChildren(...(nodes.length ? nodes : [element('p', {}, 'Nobody waited.')]));
}

function showMoves() {
  const {moves, evictions, kept_copies: kept} = facts;
  showSection('moves', [...moves, ...evictions, ...kept], () => [element('div', {class: 'columns-two'},
    makeTable('Bytes moved, by reason', [
      {label: 'Reason', value: (row) => row.reason.replaceAll('_', ' ')},
      numberColumn('Moves', (row) => row.calls, formatCount),
      bytesColumn('Size', (row) => row.bytes),
    ], moves, {sort: 'Size'}),
    makeTable('Copies evicted, by the line whose request needed memory', [
      siteColumn('At'), tagColumn('Tag of the evicted buffer'),
      numberColumn('Copies', (row) => row.calls, formatCount),
      bytesColumn('Size', (row) => row.sum),
    ], evictions, {sort: 'Size'})),
    ...(kept.length === 0 ? [] : [makeTable('Copies that leases kept from eviction', [
      siteColumn('Lease opened at'), tagColumn(),
      numberColumn('Times', (row) => row.times, formatCount),
      bytesColumn('Size of the copy', (row) => row.bytes),
    ], kept, {sort: 'Times'})])]);
}

function showCheckerFindings() {
  const rows = facts.checker_findings;
  showSection('checker-findings', rows, () => [makeTable('Reported while the program ran', [
    timeColumn('At'), siteColumn('Line'), {label: 'Finding', kind: 'words', value: (row) => row.text},
  ], rows)]);
}
