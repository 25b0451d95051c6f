// The model: all events of a trace in typed arrays.
//
// A redraw reads the arrays for each pixel column: a binary search finds the events of the column,
// and checkpoints every CHUNK events bound the work for one column.

const CHUNK = 256;           // events between two checkpoints, blocks in a skippable run
const ADDRESS_UNIT = 256;    // bytes

function readBlocks(facts, column) {
  const begin = addUp(column('block_begin', Float64Array));
  const end = column('block_life', Float64Array);
  for (let i = 0; i < end.length; ++i) end[i] = end[i] === 0 ? Infinity : begin[i] + end[i] - 1;
  const kind = column('block_kind');
  /** Most blocks are like many others, so a block names a row of a table. */
  const ofKind = (name, Kind = Uint32Array) => {
    const row = column(name, Kind);
    const values = new Kind(kind.length);
    for (let i = 0; i < values.length; ++i) values[i] = row[kind[i]];
    return values;
  };
  const resource = ofKind('kind_resource');
  const deviceOf = facts.resources.map((entry) => entry.device);
  const device = new Uint16Array(begin.length);
  for (let i = 0; i < device.length; ++i) device[i] = deviceOf[resource[i]];
  const latestEnd = new Float64Array(Math.ceil(begin.length / CHUNK));
  for (let i = 0; i < end.length; ++i) {
    const run = Math.floor(i / CHUNK);
    if (end[i] > latestEnd[run]) latestEnd[run] = end[i];
  }
  return {
    count: begin.length, begin, end, latestEnd, resource, device,
    bytes: ofKind('kind_bytes', Float64Array),
    address: addUpZigzag(column('block_address', Float64Array)),
    tag: ofKind('kind_tag'),
    stream: ofKind('kind_stream'),
    freeStream: ofKind('kind_free_stream'),
    site: ofKind('kind_site'),
    freeSite: ofKind('kind_free_site'),
  };
}

/** Allocations (block index) and frees (inverted block index) by time. Frees come first at equal
    times, so that a block which replaces another adds no peak. */
function orderEvents(blocks) {
  const freed = new Uint32Array(blocks.count);
  let frees = 0;
  for (let i = 0; i < blocks.count; ++i) if (blocks.end[i] !== Infinity) freed[frees++] = i;
  const ends = new Float64Array(frees);
  for (let i = 0; i < frees; ++i) ends[i] = blocks.end[freed[i]];
  const order = sortedOrder(ends);
  const time = new Float64Array(blocks.count + frees);
  const block = new Int32Array(blocks.count + frees);
  for (let at = 0, a = 0, f = 0; at < time.length; ++at) {
    const isFree = f < frees && (a === blocks.count || ends[order[f]] <= blocks.begin[a]);
    time[at] = isFree ? ends[order[f]] : blocks.begin[a];
    block[at] = isFree ? ~freed[order[f++]] : a++;
  }
  return {time, block};
}

/** Address ranges in use, by device. Unused addresses are left out where they would take more than
    a fiftieth of the used ones. */
function findRegions(blocks, devices) {
  const order = sortedOrder(blocks.address);
  const spans = devices.map(() => []);
  for (let n = 0; n < order.length; ++n) {
    const i = order[n];
    const begin = blocks.address[i];
    const end = begin + Math.max(1, blocks.bytes[i] / ADDRESS_UNIT);
    const known = spans[blocks.device[i]];
    const last = known[known.length - 1];
    if (last && begin <= last.end) last.end = Math.max(last.end, end);
    else known.push({begin, end});
  }
  const regions = [];
  spans.forEach((known, device) => {
    const used = known.reduce((sum, span) => sum + span.end - span.begin, 0);
    known.forEach((span, i) => {
      const last = regions[regions.length - 1];
      if (i > 0 && span.begin - last.end <= used / 50) last.end = span.end;
      else regions.push({device, begin: span.begin, end: span.end});
    });
  });
  return {regions, regionOf: assignRegions(blocks, order, regions, devices.length)};
}

function assignRegions(blocks, order, regions, deviceCount) {
  const regionOf = new Uint32Array(blocks.count);
  const current = [];
  for (let device = 0; device < deviceCount; ++device) {
    current.push(regions.findIndex((region) => region.device === device));
  }
  for (let n = 0; n < order.length; ++n) {
    const i = order[n];
    const device = blocks.device[i];
    while (blocks.address[i] >= regions[current[device]].end) ++current[device];
    regionOf[i] = current[device];
  }
  return regionOf;
}

function readMarks(column, name, endOf) {
  const time = addUp(column(`${name}_time`, Float64Array));
  const took = column(`${name}_took`, Float64Array);
  const end = new Float64Array(time.length);
  let longest = 0;
  for (let i = 0; i < time.length; ++i) {
    end[i] = time[i] + endOf(took[i]);
    longest = Math.max(longest, end[i] - time[i]);
  }
  return {time, took, end, longest, stream: column(`${name}_stream`), site: column(`${name}_site`)};
}

function loadModel(facts, column) {
  const blocks = readBlocks(facts, column);
  const copies = readMarks(column, 'copy', (took) => Math.max(0, took - 1));
  Object.assign(copies, {bytes: column('copy_bytes', Float64Array),
                         kind: column('copy_direction'), tag: column('copy_tag')});
  const launches = readMarks(column, 'launch', () => 0);
  launches.kernel = column('launch_kernel');
  const waits = readMarks(column, 'wait', (took) => took);
  waits.source = column('wait_for');
  const calls = readMarks(column, 'call', (took) => took === 0 ? Infinity : took - 1);
  const ranges = {
    time: addUp(column('range_begin', Float64Array)), end: column('range_took', Float64Array),
    depth: column('range_depth'), thread: column('range_thread'), name: column('range_name'),
  };
  for (let i = 0; i < ranges.end.length; ++i) ranges.end[i] += ranges.time[i];
  return {
    blocks, copies, launches, waits, calls, ranges,
    events: orderEvents(blocks),
    ...findRegions(blocks, facts.devices),
    pending: {
      time: addUp(column('pending_time', Float64Array)), device: column('pending_device'),
      bytes: column('pending_bytes', Float64Array),
    },
    holds: {
      time: addUp(column('hold_time', Float64Array)), resource: column('hold_resource'),
      bytes: column('hold_bytes', Float64Array),
    },
  };
}
