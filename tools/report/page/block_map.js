// The map of blocks: addresses over time. It is drawn as block indices first and as colors second,
// so that the block under the pointer is a lookup.

const EDGE = 0x40000000;     // marks a pixel at the edge of a block in the map

/** Assigns every region a part of the axis: a minimum, so that no region disappears, and the rest
    in proportion to its size. Positions go from 0 (lowest address) to 1. */
function layoutRegions(height) {
  const visible = model.regions.filter((region) => isShown(region.device));
  const gap = Math.min(8, height / (4 * visible.length)) / height;
  const room = 1 - gap * (visible.length - 1);
  const least = Math.min(14 / height, room / (2 * visible.length));
  const rest = room - least * visible.length;
  const total = visible.reduce((sum, region) => sum + region.end - region.begin, 0);
  let at = 0;
  for (const region of visible) {
    region.low = at;
    region.high = at + least + rest * (region.end - region.begin) / total;
    at = region.high + gap;
  }
  return visible;
}

/** Returns the distance of a position from the top of the plot as a share of the plot. */
const positionToY = (position) =>
    (addresses.high - position) / (addresses.high - addresses.low);

function addressToPosition(region, address) {
  const share = (address - region.begin) / (region.end - region.begin);
  return region.low + share * (region.high - region.low);
}

/** Returns the indices of the blocks in view, in order of their begin. */
function visibleBlocks() {
  const {begin, end, device, latestEnd} = model.blocks;
  const viewBegin = view.begin;
  const only = shown.device;
  const last = lowerBound(begin, view.end);
  const found = new Uint32Array(last);
  let count = 0;
  for (let i = 0; i < last; ++i) {
    if (i % CHUNK === 0 && latestEnd[i / CHUNK] <= viewBegin) i += CHUNK - 1;
    else if (end[i] > viewBegin && (only < 0 || device[i] === only)) found[count++] = i;
  }
  return found.subarray(0, count);
}

/** Returns the pixel rows of every block, from `top` to before `bottom`; both are 0 for a block
    outside of the shown addresses. Only a change of the address axis computes them again. */
function rowsOfBlocks(chart) {
  const {height} = chart.image;
  const key = [shown.device, addresses.low, addresses.high, height].join(' ');
  if (chart.rows?.key === key) return chart.rows;
  const {blocks: {count, bytes, address, device}, regions, regionOf} = model;
  const rows = {key, top: new Int32Array(count), bottom: new Int32Array(count)};
  const yScale = height / (addresses.high - addresses.low);
  const scales = Float64Array.from(regions, (r) => yScale * (r.high - r.low) / (r.end - r.begin));
  const bases = Float64Array.from(regions, (r) => yScale * (addresses.high - r.low));
  for (let i = 0; i < count; ++i) {
    if (!isShown(device[i])) continue;
    const region = regionOf[i];
    const low = bases[region] - (address[i] - regions[region].begin) * scales[region];
    const high = low - bytes[i] / ADDRESS_UNIT * scales[region];
    if (high >= height || low <= 0) continue;
    rows.bottom[i] = Math.min(height, Math.ceil(low));
    rows.top[i] = Math.max(0, Math.min(rows.bottom[i] - 1, Math.floor(high)));
  }
  chart.rows = rows;
  return rows;
}

/** Writes the index of a block plus one to every pixel that the block touches. */
function paintBlockIds(chart) {
  const {begin, end} = model.blocks;
  const {ids, image: {width}} = chart;
  const {top, bottom} = rowsOfBlocks(chart);
  const viewBegin = view.begin;
  const xScale = width / (view.end - viewBegin);
  const visible = visibleBlocks();
  ids.fill(0);
  for (let n = 0; n < visible.length; ++n) {
    // "| 0" instead of Math.floor keeps integers as integers: this loop runs for every block.
    const i = visible[n];
    const first = (begin[i] - viewBegin) * xScale;
    const last = (end[i] - viewBegin) * xScale;
    const left = first <= 0 ? 0 : first | 0;
    if (last <= left + 1) {
      const stop = bottom[i] * width;
      for (let at = top[i] * width + left; at < stop; at += width) ids[at] = i + 1;
    } else {
      const right = last >= width ? width : Math.ceil(last) | 0;
      fillBlock(ids, width, left, right, top[i], bottom[i], i + 1);
    }
  }
}

function fillBlock(ids, width, left, right, top, bottom, id) {
  const hasEdges = right - left >= 5 && bottom - top >= 5;
  for (let y = top; y < bottom; ++y) {
    const row = y * width;
    const value = hasEdges && y === top ? id | EDGE : id;
    if (right - left > 24) ids.fill(value, row + left, row + right);
    else for (let x = left; x < right; ++x) ids[row + x] = value;
    if (hasEdges) ids[row + left] = id | EDGE;
  }
}

function paintBlockColors(chart) {
  const {ids, pixels} = chart;
  const {layerOf} = rankingOf('tag');
  const {tag} = model.blocks;
  // Neighbors with the same tag differ a little in shade, so that their border can be seen.
  const shadesOf = (colors) => colors.flatMap((color) =>
      [1, 0.93, 0.86, EDGE_SHADE].map((factor) => pixelOf(color, factor)));
  const shades = shadesOf(theme.layers);
  const fadedShades = shadesOf(theme.layers.map(faded));
  const empty = pixelOf(theme.empty);
  const hasLine = shown.line !== null;
  for (let at = 0; at < ids.length; ++at) {
    const id = ids[at];
    if (id === 0) {
      pixels[at] = empty;
    } else {
      const block = (id & ~EDGE) - 1;
      const isFaded = hasLine && !isPicked(block);
      pixels[at] = (isFaded ? fadedShades : shades)[
          layerOf[tag[block]] * 4 + (id & EDGE ? 3 : block % 3)];
    }
  }
}

function drawMap() {
  const chart = charts.map;
  prepare(chart);
  pixelsOf(chart);
  chart.regions = layoutRegions(chart.plot.height);
  paintBlockIds(chart);
  paintBlockColors(chart);
  copyPixels(chart);
  drawTimeAxis(chart);
  drawAddressAxis(chart);
  drawSelectedBlock(chart);
  if (model.blocks.count === 0) drawSentence(chart, 'The trace has no allocations.');
}

function drawAddressAxis(chart) {
  const {context, plot} = chart;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  let free = Infinity;
  chart.regions.forEach((region, i) => {
    const yOf = (position) => plot.y + plot.height * positionToY(position);
    const bottom = Math.min(yOf(region.low), plot.y + plot.height);
    const top = Math.max(yOf(region.high), plot.y);
    if (bottom < plot.y || top > plot.y + plot.height) return;
    if (i > 0 && region.low > addresses.low) drawGap(chart, yOf(region.low), yOf);
    const write = (text, y, font) => {
      if (y > free - 14 || y < plot.y + 5) return;
      free = y;
      context.font = font;
      context.fillStyle = theme.quiet;
      context.fillText(text, plot.x - 8, y);
    };
    const start = yToAddress(region, bottom, plot);
    write(formatAddress(start), bottom - 6, MONO);
    drawOffsets(region, start, bottom, top, (text, y) => write(text, y, FONT));
    if (shown.device < 0) {
      write(clipText(context, deviceName(region.device), LEFT - 12), top + 7, FONT);
    }
  });
  context.font = FONT;
}

function yToAddress(region, y, plot) {
  const position = addresses.high - (y - plot.y) / plot.height * (addresses.high - addresses.low);
  const share = (position - region.low) / (region.high - region.low);
  return region.begin + Math.min(1, Math.max(0, share)) * (region.end - region.begin);
}

/** Labels in one region: distance from the lowest address shown, about every 50 pixels. */
function drawOffsets(region, start, bottom, top, write) {
  const {plot} = charts.map;
  const bytes = (yToAddress(region, top, plot) - start) * ADDRESS_UNIT;
  const step = 2 ** Math.ceil(Math.log2(bytes * 50 / Math.max(1, bottom - top)));
  if (!(step >= ADDRESS_UNIT)) return;
  for (let offset = step; offset <= bytes; offset += step) {
    write(`+${formatRound(offset)}`, bottom - (bottom - top) * offset / bytes);
  }
}

function drawGap({context, plot}, y) {
  context.strokeStyle = theme.quiet;
  context.setLineDash([2, 4]);
  context.beginPath();
  context.moveTo(plot.x - 6, Math.round(y + 4) + 0.5);
  context.lineTo(plot.x + plot.width, Math.round(y + 4) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

function drawSelectedBlock(chart) {
  if (selectedBlock < 0 || !isShown(model.blocks.device[selectedBlock])) return;
  const {context, plot} = chart;
  const {blocks} = model;
  const region = model.regions[model.regionOf[selectedBlock]];
  const size = blocks.bytes[selectedBlock] / ADDRESS_UNIT;
  const yOf = (address) => plot.y + plot.height * positionToY(addressToPosition(region, address));
  const left = timeToX(chart, blocks.begin[selectedBlock]);
  const right = timeToX(chart, Math.min(blocks.end[selectedBlock], spanNs()));
  const top = yOf(blocks.address[selectedBlock] + size);
  const bottom = yOf(blocks.address[selectedBlock]);
  context.save();
  context.beginPath();
  context.rect(plot.x, plot.y, plot.width, plot.height);
  context.clip();
  for (const [color, width] of [[theme.card, 4], [theme.text, 2]]) {
    context.strokeStyle = color;
    context.lineWidth = width;
    context.strokeRect(left - 1, top - 1, Math.max(2, right - left) + 2, bottom - top + 2);
  }
  context.restore();
}

/** Returns the index of the block at a point of the map in CSS pixels, or -1. */
function blockIndexAt(x, y) {
  const {plot, ratio, ids, image} = charts.map;
  const column = Math.floor((x - plot.x) * ratio);
  const row = Math.floor((y - plot.y) * ratio);
  if (column < 0 || row < 0 || column >= image.width || row >= image.height) return -1;
  return (ids[row * image.width + column] & ~EDGE) - 1;
}

function blockFacts(index) {
  if (index < 0) return null;
  const {blocks} = model;
  const isFreed = blocks.end[index] !== Infinity;
  return {
    index, bytes: blocks.bytes[index], address: blocks.address[index] * ADDRESS_UNIT,
    tag: tagName(blocks.tag[index]), stream: streamName(blocks.stream[index]),
    site: siteName(blocks.site[index]),
    freeStream: isFreed ? streamName(blocks.freeStream[index]) : null,
    freeSite: isFreed ? siteName(blocks.freeSite[index]) : null,
    resource: facts.resources[blocks.resource[index]].name,
    device: deviceName(blocks.device[index]),
    begin: blocks.begin[index], life: isFreed ? blocks.end[index] - blocks.begin[index] : null,
  };
}

function blockRows(index) {
  const block = blockFacts(index);
  return [
    ['Tag', block.tag],
    ['Size', `${formatBytes(block.bytes)} (${formatCount(block.bytes)} bytes)`],
    ['Allocated at', block.site],
    ['Freed at', block.freeSite ?? 'not freed'],
    ['Stream', block.freeSite === null || block.freeStream === block.stream
        ? block.stream : `${block.stream}, freed on ${block.freeStream}`],
    ['Begin', formatTime(block.begin, 6)],
    ['Life', block.life === null ? 'until the end of the trace' : formatTime(block.life)],
    ['Memory', `${block.resource} on ${block.device}`],
    ['Address', formatAddress(model.blocks.address[index])],
  ];
}

function selectBlock(index) {
  selectedBlock = index;
  const list = byId('block');
  list.hidden = index < 0;
  if (index >= 0) {
    const zoomButton = element('button', {type: 'button', onclick: () => zoomToBlock(index)},
                               'Zoom to this block');
    list.replaceChildren(...blockRows(index).map(([name, value]) =>
        element('div', {}, element('dt', {}, name), element('dd', {}, value))), zoomButton);
  }
  for (const row of document.querySelectorAll('#block-list tr[data-block]')) {
    row.classList.toggle('selected', Number(row.dataset.block) === index);
  }
  scheduleDraw();
}

/** Fills the middle third of the map with the block, in both directions. */
function zoomToBlock(index) {
  const {begin, end, address, bytes, device} = model.blocks;
  if (!isShown(device[index])) setDevice(device[index]);
  layoutRegions(charts.map.plot.height);
  const region = model.regions[model.regionOf[index]];
  const low = addressToPosition(region, address[index]);
  const high = addressToPosition(region, address[index] + bytes[index] / ADDRESS_UNIT);
  const life = Math.min(end[index], spanNs()) - begin[index];
  setAddresses(2 * low - high, 2 * high - low);
  setView(begin[index] - life, begin[index] + 2 * life);
}
