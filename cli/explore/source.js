'use strict';
// Where the page has its answers from: the server, or the file itself. Both answer the same
// questions with the same objects.
//
//   const source = makeSource();
//   await source.path(17, 4711)

// Asks `knear explore --port`.
class ServedSource {
  async ask(address, options) {
    const answer = await fetch(address, options);
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.error);
    return said;
  }
  async binary(address, Kind) {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error((await answer.json()).error);
    return new Kind(await answer.arrayBuffer());
  }
  info() { return this.ask('api/info'); }
  progress() { return this.ask('api/progress'); }
  places() { return this.binary('api/places', Float32Array); }
  classes() { return this.binary('api/classes', Uint16Array); }
  item(id) { return this.ask(`api/item/${id}`); }
  path(from, to) { return this.ask(`api/path?from=${from}&to=${to}`); }
  gap(from, to) { return this.ask(`api/gap?from=${from}&to=${to}`); }
  find(text) { return this.ask(`api/find?text=${encodeURIComponent(text)}`); }
  search(vector, k) {
    return this.ask('api/search', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ vector: Array.from(vector), k }),
    });
  }
  // An element that shows the picture of an item.
  picture(id) {
    const image = new Image();
    image.decoding = 'async';
    image.src = `api/picture/${id}`;
    return image;
  }
}

// Letters of ASCII alone, as the server has it.
const lower = (text) => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());

// Answers from the arrays that `knear explore --html` has put into the page.
class EmbeddedSource {
  constructor() {
    const text = (name) => document.getElementById(`data-${name}`)?.textContent;
    const array = (name, Kind) => {
      const packed = atob(text(name));
      const bytes = new Uint8Array(packed.length);
      for (let i = 0; i < packed.length; ++i) bytes[i] = packed.charCodeAt(i);
      return new Kind(bytes.buffer);
    };
    const json = (name) => (text(name) === undefined ? null : JSON.parse(text(name)));
    this.known = json('info');
    this.ids = array('ids', Int32Array);
    this.distances = array('distances', Float32Array);
    this.allPlaces = array('places', Float32Array);
    this.components = array('components', Int32Array);
    this.allClasses = array('classes', Uint16Array);
    const kinds = { Uint8Array, Int8Array, Float32Array, Float64Array };
    this.vectors = array('vectors', kinds[this.known.array]);
    this.labels = json('labels');
    this.pictures = json('pictures');
    this.files = json('files');
    this.gaps = json('gaps');
    this.inDegrees = new Int32Array(this.known.rows);
    for (const id of this.ids) if (id >= 0) ++this.inDegrees[id];
  }
  label(id) {
    if (this.labels) return this.labels[id];
    return this.allClasses.length ? this.known.classes[this.allClasses[id]] : '';
  }
  check(name, id) {
    if (!Number.isInteger(id) || id < 0 || id >= this.known.rows)
      throw new Error(`${name} is row ${id}, but the base has ${this.known.rows} rows`);
  }
  vector(id) { return this.vectors.subarray(id * this.known.dim, (id + 1) * this.known.dim); }
  async info() { return { ...this.known, layout: { version: 1, progress: 1 } }; }
  async progress() { return { version: 1, progress: 1 }; }
  async places() { return this.allPlaces; }
  async classes() { return this.allClasses; }
  async item(id) {
    this.check('item', id);
    const neighbors = [];
    for (let place = id * this.known.k; place < (id + 1) * this.known.k; ++place) {
      const other = this.ids[place];
      if (other >= 0)
        neighbors.push({ id: other, distance: this.distances[place], label: this.label(other) });
    }
    return {
      id, label: this.label(id), component: this.components[id], in_degree: this.inDegrees[id],
      neighbors, file: this.files?.[id], numbers: this.vector(id).subarray(0, 4096),
    };
  }
  async path(from, to) {
    this.check('from', from);
    this.check('to', to);
    this.graph ??= new PathGraph(
      this.ids, this.distances, this.known.rows, this.known.k, this.known.metric);
    const start = performance.now();
    const found = this.graph.path(from, to);
    return {
      from, to, ...found, labels: found.path.map((id) => this.label(id)), gap_seconds: 0,
      seconds: (performance.now() - start) / 1000,
    };
  }
  // As Explorer::gap(): the way through the tree of components, looked for from its end.
  async gap(from, to) {
    this.check('from', from);
    this.check('to', to);
    if (!this.gaps)
      throw new Error('this file does not have the gaps, which took too long: knear path names them');
    const part = (id) => this.components[id];
    const leadsOn = new Map();
    const open = [part(to)];
    while (open.length) {
      const now = open.shift();
      for (const [a, b, distance] of this.gaps) {
        for (const [near, far] of [[a, b], [b, a]]) {
          if (part(near) !== now || part(far) === part(to) || leadsOn.has(part(far))) continue;
          const labels = [this.label(far), this.label(near)];
          leadsOn.set(part(far), { from: far, to: near, distance, labels });
          open.push(part(far));
        }
      }
    }
    const gaps = [];
    for (let now = part(from); now !== part(to); now = part(gaps[gaps.length - 1].to))
      gaps.push(leadsOn.get(now));
    return { from, to, gaps };
  }
  async find(text) {
    const wanted = lower(text);
    const found = [];
    for (let id = 0; id < this.known.rows && this.known.labelled && found.length <= 50; ++id) {
      const label = this.label(id);
      if (lower(label).includes(wanted)) found.push({ id, label });
    }
    return { found: found.slice(0, 50), more: found.length > 50 };
  }
  // Every row is measured, in float64; ties go to the smaller id.
  async search(vector, k) {
    const { rows, dim, metric } = this.known;
    const start = performance.now();
    let own = 0;
    for (const x of vector) own += x * x;
    const distances = new Float64Array(rows);
    for (let id = 0, at = 0; id < rows; ++id) {
      let sum = 0, square = 0;
      for (let i = 0; i < dim; ++i, ++at) {
        const x = this.vectors[at], y = vector[i];
        if (metric === 'l2') sum += (x - y) * (x - y);
        else sum += x * y;
        square += x * x;
      }
      if (metric === 'cosine') sum = own && square ? 1 - sum / Math.sqrt(own * square) : 1;
      distances[id] = sum;
    }
    const sign = metric === 'ip' ? -1 : 1;
    const order = Array.from(distances.keys());
    order.sort((a, b) => sign * (distances[a] - distances[b]) || a - b);
    const neighbors = order.slice(0, k)
      .map((id) => ({ id, distance: distances[id], label: this.label(id) }));
    return { neighbors, seconds: (performance.now() - start) / 1000 };
  }
  picture(id) {
    if (this.pictures) {
      const image = new Image();
      image.src = this.pictures[id];
      return image;
    }
    return greyPicture(this.vector(id), this.known.width, this.known.height);
  }
}

// A canvas of greys from 0 to 255.
function greyPicture(values, width, height) {
  const canvas = document.createElement('canvas');
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d');
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; ++i) {
    image.data.fill(values[i], 4 * i, 4 * i + 3);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function makeSource() {
  return document.getElementById('data-info') ? new EmbeddedSource() : new ServedSource();
}
