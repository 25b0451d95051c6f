// The columns of the page: decoding them, and searching and sorting decoded ones. README.md
// specifies the format.

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const codes = new Uint8Array(128);
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
  for (let i = 0; i < 64; ++i) codes[alphabet.charCodeAt(i)] = i;
  const source = text.trim();
  const padding = source.endsWith('==') ? 2 : source.endsWith('=') ? 1 : 0;
  const bytes = new Uint8Array(source.length / 4 * 3 - padding);
  // A write past the end, which the padding causes, has no effect on a typed array.
  for (let from = 0, to = 0; from < source.length; from += 4) {
    const word = codes[source.charCodeAt(from)] << 18 | codes[source.charCodeAt(from + 1)] << 12 |
                 codes[source.charCodeAt(from + 2)] << 6 | codes[source.charCodeAt(from + 3)];
    bytes[to++] = word >> 16;
    bytes[to++] = word >> 8;
    bytes[to++] = word;
  }
  return bytes;
}

function decodeVarints(bytes, from, out) {
  for (let i = 0; i < out.length; ++i) {
    let byte = bytes[from++];
    let value = byte & 127;
    // Multiplication instead of shifts, because values may need 53 bits.
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[from++];
      value += (byte & 127) * scale;
    }
    out[i] = value;
  }
  return from;
}

function columnReader(facts, bytes) {
  return (name, Kind = Uint32Array) => {
    const place = facts.columns[name];
    if (!place) return new Kind(0);
    const values = new Kind(place.count);
    const end = place.offset + place.bytes;
    if (end > bytes.length || decodeVarints(bytes, place.offset, values) !== end) {
      throw new Error(`The column '${name}' of the report is damaged.`);
    }
    return values;
  };
}

function addUp(values) {
  for (let i = 1; i < values.length; ++i) values[i] += values[i - 1];
  return values;
}

function addUpZigzag(values) {
  let sum = 0;
  for (let i = 0; i < values.length; ++i) {
    const value = values[i];
    sum += value & 1 ? -(value + 1) / 2 : value / 2;
    values[i] = sum;
  }
  return values;
}

/** Returns the first index in [first, sorted.length) whose value is at least `value`. */
function lowerBound(sorted, value, first = 0) {
  let last = sorted.length;
  while (first < last) {
    const middle = (first + last) >>> 1;
    if (sorted[middle] < value) first = middle + 1;
    else last = middle;
  }
  return first;
}

/** Returns the first index whose value is above `value`. */
function upperBound(sorted, value) {
  let first = 0;
  let last = sorted.length;
  while (first < last) {
    const middle = (first + last) >>> 1;
    if (sorted[middle] <= value) first = middle + 1;
    else last = middle;
  }
  return first;
}

/** Returns the indices that sort `keys`, which are integers from 0 to 2^53. Radix sort: a sort
    with a comparison function would take most of the loading time. */
function sortedOrder(keys) {
  const count = keys.length;
  let order = new Uint32Array(count);
  let next = new Uint32Array(count);
  let largest = 0;
  for (let i = 0; i < count; ++i) {
    order[i] = i;
    if (keys[i] > largest) largest = keys[i];
  }
  const digits = new Uint16Array(count);
  for (let scale = 1; scale <= largest; scale *= 65536) {
    const starts = new Uint32Array(65537);
    for (let i = 0; i < count; ++i) {
      digits[i] = scale < 4294967296 ? (keys[i] >>> 0) / scale : keys[i] / scale;
      ++starts[digits[i] + 1];
    }
    addUp(starts);
    for (let i = 0; i < count; ++i) next[starts[digits[order[i]]]++] = order[i];
    [order, next] = [next, order];
  }
  return order;
}
