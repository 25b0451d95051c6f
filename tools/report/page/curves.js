// Curves: live and held bytes over time.

/** Live bytes of a device (-1: all) after each event, and the highest event of each run. */
function makeTotals(device) {
  const {events: {block}, blocks} = model;
  const total = new Float64Array(block.length);
  const highest = new Uint32Array(Math.ceil(block.length / CHUNK));
  let live = 0;
  for (let i = 0; i < block.length; ++i) {
    const id = block[i] < 0 ? ~block[i] : block[i];
    if (device < 0 || blocks.device[id] === device) {
      live += block[i] < 0 ? -blocks.bytes[id] : blocks.bytes[id];
    }
    total[i] = live;
    const run = Math.floor(i / CHUNK);
    if (i % CHUNK === 0 || live > total[highest[run]]) highest[run] = i;
  }
  return {total, highest};
}

function highestEvent({total, highest}, first, last) {
  let best = first;
  for (let i = first; i < last;) {
    const isWholeRun = i % CHUNK === 0 && i + CHUNK <= last;
    const candidate = isWholeRun ? highest[i / CHUNK] : i;
    if (total[candidate] > total[best]) best = candidate;
    i += isWholeRun ? CHUNK : 1;
  }
  return best;
}

function groupsOf(mode) {
  const {blocks} = model;
  if (mode === 'tag') return {keys: blocks.tag, names: facts.tags};
  const [keys, entries] = mode === 'stream' ? [blocks.stream, facts.streams]
                                            : [blocks.device, facts.devices];
  return {keys, names: entries.map((entry) => entry.name)};
}

/** Assigns layers to the groups (tags, streams or devices) with the highest peaks of their own.
    Steady groups come first, because the stack is easier to read if its lowest layers are flat. The
    order does not depend on the selected device, so that a tag keeps its color. */
function rankGroups(mode) {
  const {events: {time, block}, blocks} = model;
  const {keys, names} = groupsOf(mode);
  const layerOf = new Uint8Array(names.length);
  if (mode === 'state') return {keys, layerOf, names: ['live']};
  const live = new Float64Array(names.length);
  const peak = new Float64Array(names.length);
  const area = new Float64Array(names.length);  // bytes times nanoseconds until the end
  for (let i = 0; i < block.length; ++i) {
    const id = block[i] < 0 ? ~block[i] : block[i];
    const group = keys[id];
    const change = block[i] < 0 ? -blocks.bytes[id] : blocks.bytes[id];
    live[group] += change;
    area[group] += change * (spanNs() - time[i]);
    if (live[group] > peak[group]) peak[group] = live[group];
  }
  const used = [...peak.keys()].filter((group) => peak[group] > 0)
      .sort((a, b) => peak[b] - peak[a]);
  const steadiness = (group) => area[group] / peak[group];
  const colored = used.slice(0, COLORS).sort((a, b) => steadiness(b) - steadiness(a));
  const shared = used.length - colored.length;
  layerOf.fill(COLORS);
  colored.forEach((group, layer) => { layerOf[group] = layer; });
  const shownNames = colored.map((group) => names[group]);
  return {keys, layerOf, names: shared > 0 ? [...shownNames, `other (${shared})`] : shownNames};
}

/** Whether the highlighted line has a layer of its own, below the others. */
const splitsLine = () => shown.line !== null && shown.mode !== 'state';

/** The state of every layer after each CHUNK events of a device. */
function makeCheckpoints(ranking, device) {
  const {events: {block}, blocks} = model;
  const first = splitsLine() ? 1 : 0;
  const names = first ? [lineName(shown.line), ...ranking.names] : ranking.names;
  const layers = Math.max(1, names.length);
  const layerOfBlock = new Uint8Array(blocks.count);
  for (let i = 0; i < blocks.count; ++i) {
    const isShown = device < 0 || blocks.device[i] === device;
    const layer = first && isPicked(i) ? 0 : first + ranking.layerOf[ranking.keys[i]];
    layerOfBlock[i] = isShown ? layer : layers;
  }
  // One place more than there are layers collects the blocks of other devices.
  const values = new Float64Array(layers + 1);
  const checkpoints = new Float64Array((Math.floor(block.length / CHUNK) + 1) * layers);
  for (let i = 0; i < block.length; ++i) {
    if (i % CHUNK === 0) checkpoints.set(values.subarray(0, layers), i / CHUNK * layers);
    const id = block[i] < 0 ? ~block[i] : block[i];
    values[layerOfBlock[id]] += block[i] < 0 ? -blocks.bytes[id] : blocks.bytes[id];
  }
  if (block.length % CHUNK === 0) {
    checkpoints.set(values.subarray(0, layers), block.length / CHUNK * layers);
  }
  return {layers, layerOfBlock, checkpoints, names};
}

/** Writes the bytes of every layer after event `index` (-1: before the first) to `values`. */
function readLayers(curve, index, values) {
  const {events: {block}, blocks: {bytes}} = model;
  const run = Math.floor((index + 1) / CHUNK);
  for (let l = 0; l < curve.layers; ++l) values[l] = curve.checkpoints[run * curve.layers + l];
  values[curve.layers] = 0;
  for (let i = run * CHUNK; i <= index; ++i) {
    const id = block[i] < 0 ? ~block[i] : block[i];
    values[curve.layerOfBlock[id]] += block[i] < 0 ? -bytes[id] : bytes[id];
  }
}

function makeHeld(device) {
  const {holds} = model;
  const latest = new Float64Array(facts.resources.length);
  const time = [];
  const total = [];
  let held = 0;
  for (let i = 0; i < holds.time.length; ++i) {
    const resource = holds.resource[i];
    if (device >= 0 && facts.resources[resource].device !== device) continue;
    held += holds.bytes[i] - latest[resource];
    latest[resource] = holds.bytes[i];
    time.push(holds.time[i]);
    total.push(held);
  }
  return {time: Float64Array.from(time), total: Float64Array.from(total)};
}

function makePending(device) {
  const {pending} = model;
  const latest = new Float64Array(facts.devices.length);
  const time = [];
  const total = [];
  let sum = 0;
  for (let i = 0; i < pending.time.length; ++i) {
    if (device >= 0 && pending.device[i] !== device) continue;
    sum += pending.bytes[i] - latest[pending.device[i]];
    latest[pending.device[i]] = pending.bytes[i];
    time.push(pending.time[i]);
    total.push(sum);
  }
  return {time: Float64Array.from(time), total: Float64Array.from(total)};
}

/** Keeps what `make` returns, for each trace and each key. */
function memoized(make) {
  const knownOf = new WeakMap();
  return (...key) => {
    if (!knownOf.has(model)) knownOf.set(model, new Map());
    const known = knownOf.get(model);
    const name = key.join(' ');
    if (!known.has(name)) known.set(name, make(...key));
    return known.get(name);
  };
}

const totalsOf = memoized(makeTotals);
const heldOf = memoized(makeHeld);
const pendingOf = memoized(makePending);
const rankingOf = memoized(rankGroups);
const curveOfLine = memoized((mode, device) => makeCheckpoints(rankingOf(mode), device));
const curveOf = (mode, device) => splitsLine()
    ? curveOfLine(mode, device, shown.line.tag, shown.line.site) : curveOfLine(mode, device);

function liveAt(timeNs, device = -1) {
  const index = upperBound(model.events.time, timeNs) - 1;
  return index < 0 ? 0 : totalsOf(device).total[index];
}

function levelAt({time, total}, timeNs) {
  const index = upperBound(time, timeNs) - 1;
  return index < 0 ? 0 : total[index];
}

/** Returns the first time at which the most was held, or that of the peak if it is not known. */
function mostHeldTime(device) {
  const {time, total} = heldOf(device);
  const most = total.reduce((a, b) => Math.max(a, b), 0);
  return time[total.indexOf(most)] ?? peakOf(device)?.time ?? 0;
}

const heldAt = (timeNs, device) => levelAt(heldOf(device), timeNs);

/** What is pending when this event happens, as far as the held memory has room for it. */
function pendingAt(index, held, device) {
  if (index < 0) return 0;
  const live = totalsOf(device).total[index];
  return Math.max(0, Math.min(levelAt(pendingOf(device), model.events.time[index]), held - live));
}

/** The highest moment of each pixel column: an event index (-1: before all), and held bytes. */
function sampleColumns(device, begin, end, width) {
  const {time} = model.events;
  const totals = totalsOf(device);
  const held = heldOf(device);
  const step = (end - begin) / width;
  const columns = {index: new Int32Array(width), held: new Float64Array(width), step};
  let next = lowerBound(time, begin);
  let hold = lowerBound(held.time, begin);
  for (let x = 0; x < width; ++x) {
    // The last column ends at the end of the view, which belongs to the view.
    const limit = x + 1 < width ? begin + (x + 1) * step : end + 0.5;
    const last = lowerBound(time, limit, next);
    let best = next - 1;
    if (last > next) {
      const candidate = highestEvent(totals, next, last);
      if (best < 0 || totals.total[candidate] >= totals.total[best]) best = candidate;
    }
    columns.index[x] = best;
    next = last;
    let most = hold > 0 ? held.total[hold - 1] : 0;
    for (; hold < held.time.length && held.time[hold] < limit; ++hold) {
      most = Math.max(most, held.total[hold]);
    }
    columns.held[x] = most;
  }
  return columns;
}

function peakOf(device) {
  const known = facts.peaks.find((peak) => peak.device === device);
  if (known) return {time: known.time, live: known.live};
  const {time} = model.events;
  if (time.length === 0) return null;
  const totals = totalsOf(device);
  const index = highestEvent(totals, 0, time.length);
  return totals.total[index] > 0 ? {time: time[index], live: totals.total[index]} : null;
}
