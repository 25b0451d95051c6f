// Tables that their column headers sort, and the columns that several tables have.

const FIRST_ROWS = 12;       // rows of a table before "Show all"

/** Builds a table that its column headers sort. A column is {label, value, show, isNumber}: `value`
    is what sorts, `show` returns what the cell contains. `sort` names the column by which the rows
    are sorted, and `direction` says how. */
function makeTable(caption, columns, rows,
                   {rowAttributes = () => ({}), sort = '', direction = 'descending',
                    limit = FIRST_ROWS} = {}) {
  const body = element('tbody');
  let order = [...rows];
  const more = element('button', {type: 'button', class: 'more',
                                  onclick: () => { limit = Infinity; fill(); }});
  const fill = () => {
    body.replaceChildren(...order.slice(0, limit).map((row) =>
        element('tr', rowAttributes(row), ...columns.map((column) =>
            element('td', {class: column.isNumber ? 'number' : column.kind ?? 'words'},
                    (column.show || column.value)(row))))));
    more.hidden = order.length <= limit;
    more.textContent = `Show all ${formatCount(order.length)} rows`;
  };
  const headers = columns.map((column, at) => element('th',
      {scope: 'col', ...(column.isNumber ? {class: 'number'} : {}),
       ...(column.label === sort ? {'aria-sort': direction} : {})},
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
/** Shows `zero` instead of 0 bytes. */
const bytesColumn = (label, value, zero = '0 B') => ({
  label, value, isNumber: true,
  show: (row) => value(row) === 0 ? zero
      : element('span', {title: `${formatCount(value(row))} bytes`}, formatBytes(value(row))),
});
const tagColor = (tag) => theme.layers[rankingOf('tag').layerOf[tag] ?? COLORS];
const tagColumn = (label = 'Tag') => ({
  label, value: (row) => tagName(row.tag),
  show: (row) => element('span', {}, swatch(tagColor(row.tag)), tagName(row.tag)),
});
/** A line may wrap after each part of its path. */
const lineNode = (line) => element('span', {}, ...line.split('/').flatMap((part, at) =>
    at === 0 ? [part] : ['/', element('wbr'), part]));
const siteColumn = (label, site = (row) => row.site) => ({
  label, kind: 'words site', value: (row) => siteName(site(row)),
  show: (row) => lineNode(siteName(site(row))),
});
/** Highlights the blocks of a line, or stops that. */
const lineButton = (line, ...text) => element('button', {type: 'button', class: 'line',
    title: 'Highlight these blocks and list them',
    onclick: () => setLine(shown.line && lineName(shown.line) === lineName(line) ? null : line)},
    ...text);
/** The line that allocated blocks. */
const lineColumn = (label = 'Allocated at', line = (row) => ({tag: row.tag, site: row.site})) => ({
  label, kind: 'words site', value: (row) => siteName(line(row).site),
  show: (row) => lineButton(line(row), lineNode(siteName(line(row).site))),
});
/** The device of a row, unless the trace has one only. */
const deviceColumns = () => facts.devices.length < 2 ? []
    : [{label: 'Device', value: (row) => deviceName(row.device)}];
const timeColumn = (label = 'Time') => ({
  label, isNumber: true, value: (row) => row.time,
  show: (row) => element('button', {type: 'button', title: 'Show this moment in the charts',
      onclick: () => showMoment(row.time)}, formatTime(row.time, 6)),
});
const blocksColumn = numberColumn('Blocks', (row) => row.blocks, formatCount);

function shareColumn(label, value, total) {
  return {label, value, isNumber: true, show: (row) => {
    const share = total > 0 ? value(row) / total : 0;
    const bar = element('span', {class: 'share', 'aria-hidden': 'true'});
    bar.style.width = `${Math.round(60 * share)}px`;
    return element('span', {}, bar, formatShare(share));
  }};
}
