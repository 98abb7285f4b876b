'use strict';
// The smoothest path in JavaScript, for the page that is one file: the same ids as `knear path`.
//
//   const graph = new PathGraph(ids, distances, rows, k, 'l2');
//   graph.path(17, 4711)   // {path, largest_step, sum_of_steps, steps, connected}
//
// The rules are those of docs/graphs.md: the least largest step; of these paths the least sum; of
// these the smaller id where they part first, seen from the beginning.

// A binary heap of (key, row), the least key first. Keys are numbers or BigInts.
class Heap {
  constructor() { this.keys = []; this.rows = []; }
  get size() { return this.rows.length; }
  push(key, row) {
    const { keys, rows } = this;
    let at = rows.length;
    keys.push(key); rows.push(row);
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (keys[above] <= key) break;
      keys[at] = keys[above]; rows[at] = rows[above];
      at = above;
    }
    keys[at] = key; rows[at] = row;
  }
  // The row of the least key, which is in `lastKey` then.
  pop() {
    const { keys, rows } = this;
    const first = rows[0], key = keys.pop(), row = rows.pop();
    this.lastKey = rows.length ? keys[0] : key;
    let at = 0;
    while (2 * at + 1 < rows.length) {
      let below = 2 * at + 1;
      if (below + 1 < rows.length && keys[below + 1] < keys[below]) ++below;
      if (keys[below] >= key) break;
      keys[at] = keys[below]; rows[at] = rows[below];
      at = below;
    }
    if (rows.length) { keys[at] = key; rows[at] = row; }
    return first;
  }
}

// In how many units a length of 1 is counted: a power of two, by which the largest length has at
// least 2^39 and less than 2^40.
function unitsOfOne(largest) {
  let exponent = Math.floor(Math.log2(largest));
  while (2 ** exponent > largest) --exponent;
  while (2 ** (exponent + 1) <= largest) ++exponent;
  return 2 ** (39 - exponent);
}

class PathGraph {
  // ids [rows x k] (-1: none) and distances [rows x k] of a k-NN graph. Edges lead both ways; where
  // both rows have one, it has the nearer of its distances.
  constructor(ids, distances, rows, k, metric) {
    this.rows = rows;
    this.larger = metric === 'ip';  // is nearer
    this.edges = Array.from({ length: rows }, () => new Map());
    const add = (a, b, distance) => {
      const known = this.edges[a].get(b);
      const nearer = known === undefined || (this.larger ? distance > known : distance < known);
      if (nearer) this.edges[a].set(b, distance);
    };
    for (let row = 0; row < rows; ++row) {
      for (let place = row * k; place < (row + 1) * k; ++place) {
        const other = ids[place];
        if (other < 0 || other === row) continue;
        add(row, other, distances[place]);
        add(other, row, distances[place]);
      }
    }
  }

  length(distance) { return this.larger ? -distance : distance; }

  // The largest step of the smoothest path as a length; undefined where there is no path. Dijkstra,
  // where a way is as long as its largest step.
  largestLength(from, to) {
    const best = new Float64Array(this.rows).fill(Infinity);
    const heap = new Heap();
    best[from] = -Infinity;
    heap.push(-Infinity, from);
    while (heap.size) {
      const row = heap.pop(), soFar = heap.lastKey;
      if (row === to) return soFar;
      if (soFar > best[row]) continue;
      for (const [other, distance] of this.edges[row]) {
        const largest = Math.max(soFar, this.length(distance));
        if (largest >= best[other]) continue;
        best[other] = largest;
        heap.push(largest, other);
      }
    }
    return undefined;
  }

  path(from, to) {
    if (from === to)
      return { path: [from], largest_step: 0, sum_of_steps: 0, steps: [], connected: true };
    const largest = this.largestLength(from, to);
    if (largest === undefined)
      return { path: [], largest_step: null, sum_of_steps: null, steps: [], connected: false };
    // Whole numbers in doubles are exact up to 2^53: some 8,000 of the largest steps. What is
    // longer is done again with integers of any length.
    let path = this.shortest(from, to, largest, Number);
    if (path === undefined) path = this.shortest(from, to, largest, BigInt);
    const steps = [];
    let sum = 0;
    for (let i = 1; i < path.length; ++i) {
      steps.push(this.edges[path[i - 1]].get(path[i]));
      sum += steps[i - 1];
    }
    return {
      path, steps, connected: true, sum_of_steps: sum,
      largest_step: this.larger ? -largest : largest,
    };
  }

  // Among steps no longer than the largest the shortest path; whole: Number or BigInt. Undefined
  // where its length is beyond what a Number holds exactly. Dijkstra from the end, so that the
  // beginning knows which ways are shortest.
  shortest(from, to, largest, whole) {
    const summed = !this.larger && largest > 0;
    const units = summed ? unitsOfOne(largest) : 1;
    const weight = (distance) => whole(summed ? Math.max(1, Math.round(distance * units)) : 1);
    const left = new Array(this.rows);
    const settled = new Uint8Array(this.rows);
    const heap = new Heap();
    left[to] = whole(0);
    heap.push(left[to], to);
    while (heap.size) {
      const row = heap.pop();
      if (settled[row]) continue;
      settled[row] = 1;
      if (row === from) break;
      for (const [other, distance] of this.edges[row]) {
        if (settled[other] || this.length(distance) > largest) continue;
        const sum = left[row] + weight(distance);
        if (left[other] !== undefined && sum >= left[other]) continue;
        left[other] = sum;
        heap.push(sum, other);
      }
    }
    if (whole === Number && left[from] > Number.MAX_SAFE_INTEGER) return undefined;
    const path = [from];
    for (let row = from; row !== to;) {
      let next = -1;
      for (const [other, distance] of this.edges[row]) {
        if (!settled[other] || this.length(distance) > largest) continue;
        if (left[other] + weight(distance) === left[row] && (next < 0 || other < next)) next = other;
      }
      path.push(next);
      row = next;
    }
    return path;
  }
}

