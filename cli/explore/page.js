'use strict';
// The page itself: what stands where, what happens on clicks, keys and drops.

const byId = (id) => document.getElementById(id);

// element('b', {className: 'x'}, 'text', otherElement)
function element(name, properties, ...content) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...content);
  return made;
}

const grouped = (number) => number.toLocaleString('en');

// A distance in at most six digits. Searches by l2 give squares, and so does the page.
function shownDistance(distance) {
  if (distance === null || distance === undefined) return '';
  if (Number.isInteger(distance) && Math.abs(distance) < 1e9) return grouped(distance);
  return String(Number(distance.toPrecision(5)));
}

// The same in four digits, for narrow places: 1.413M.
function briefDistance(distance) {
  return Math.abs(distance) < 1e4
    ? shownDistance(Number(distance.toPrecision(4)))
    : distance.toLocaleString('en', { notation: 'compact', maximumSignificantDigits: 4 });
}

class Page {
  constructor(source) {
    this.source = source;
    this.item = -1;
    this.path = null;
    this.asked = 0;  // counts requests: an answer that comes after a later one is dropped
  }

  async start() {
    this.info = await this.source.info();
    this.describe();
    this.map = new ItemMap(byId('dots'), {
      onChoose: (id) => this.attempt(() => this.choose(id)),
      onHover: (id, x, y) => this.hover(id, x, y),
    });
    this.listen();
    const wanted = new URLSearchParams(location.hash.slice(1));
    const number = (name, usual) => {
      const row = Number(wanted.get(name) ?? NaN);
      return Number.isInteger(row) && row >= 0 && row < this.info.rows ? row : usual;
    };
    const from = number('from', this.info.from), to = number('to', this.info.to);
    await Promise.all([
      this.loadMap(),
      this.walk(from, to),
      this.choose(number('item', from)),
    ]);
    this.showHubs();
    this.showParts();
    document.documentElement.dataset.ready = 'yes';  // for tests
    this.followMap();
  }

  // What went wrong stands at the top, in one line.
  complain(error) {
    const place = byId('problem');
    place.textContent = error ? error.message : '';
    place.hidden = !error;
  }
  async attempt(work) {
    try {
      this.complain(null);
      await work();
    } catch (error) {
      this.complain(error);
    }
  }

  describe() {
    const { info } = this;
    document.title = `${info.name} - knear explore`;
    byId('name').textContent = info.name;
    const kinds = {
      pixels: `pictures of ${info.width} × ${info.height}`, images: 'pictures', texts: 'texts',
      vectors: 'vectors',
    };
    const recall = info.recall_argument === 'exact'
      ? 'exact' : `recall ${Number(info.promised_recall.toPrecision(3))}`;
    byId('facts').textContent =
      `${grouped(info.rows)} ${kinds[info.kind]}, ${info.dim} columns of ${info.type}; ` +
      `${info.k} nearest of each by ${info.metric}, ${recall}`;
    const drawable = info.width > 0;
    byId('drop-help').textContent = drawable
      ? `A picture is scaled to ${info.width} × ${info.height} greys; numbers must be ${info.dim}.`
      : `${info.dim} numbers as JSON, as text or as a .npy file.`;
    byId('invert-label').hidden = !drawable;
    byId('file').accept = drawable ? 'image/*,.json,.txt,.csv,.npy' : '.json,.txt,.csv,.npy';
    byId('query').placeholder = info.labelled ? 'row number or label' : 'row number';
    const squared = info.metric === 'l2' ? 'Distances are squared.' : '';
    byId('foot').textContent = `knear ${info.version}. ${squared} Answers come from this ${
      this.source instanceof ServedSource ? 'machine' : 'file'} alone.`;
  }

  // --- Items ---

  caption(id, label) { return label ? label : `row ${id}`; }

  // An element that shows an item: its picture, its text or its numbers as a curve.
  shown(id, label, numbers) {
    const { kind } = this.info;
    const box = element('span', { className: `shown ${kind}` });
    if (kind === 'pixels' || kind === 'images') {
      const picture = this.source.picture(id);
      if (picture instanceof Image) picture.alt = '';
      box.append(picture);
    } else if (kind === 'texts' || (label && !numbers)) {
      box.append(element('span', { className: 'text' }, label));
    } else if (numbers) {
      box.append(curve(numbers));
    } else {
      const place = element('span', { className: 'text' }, `#${id}`);
      box.append(place);
      // The numbers come with the item.
      this.source.item(id).then((item) => place.replaceWith(curve(item.numbers)), () => {});
    }
    return box;
  }

  // A button for an item, in a list.
  tile(id, label, below, { onClick, other } = {}) {
    const button = element('button', { type: 'button', className: other ? 'tile other' : 'tile' },
      this.shown(id, label),
      element('b', {}, this.caption(id, label)),
      element('i', {}, below));
    button.dataset.id = id;
    button.title = `row ${id}${label ? `: ${label}` : ''}`;
    button.setAttribute('aria-label', `row ${id}${label ? `, ${label}` : ''}, ${below}`);
    button.addEventListener('click', onClick ?? (() => this.attempt(() => this.choose(id))));
    return button;
  }

  fill(list, tiles) {
    byId(list).replaceChildren(...tiles.map((tile) => element('li', {}, tile)));
    this.markCurrent();
  }

  // Every tile of the item that is chosen says so.
  markCurrent() {
    for (const tile of document.querySelectorAll('.tile'))
      tile.setAttribute('aria-current', String(Number(tile.dataset.id) === this.item));
  }

  async choose(id) {
    const turn = ++this.asked;
    const item = await this.source.item(id);
    if (turn !== this.asked) return;
    this.item = id;
    byId('item-title').textContent = `Item ${grouped(id)}`;
    const facts = element('dl');
    const fact = (name, value) => facts.append(element('dt', {}, name), element('dd', {}, value));
    if (item.label) fact('label', item.label);
    if (item.file) fact('file', item.file);
    fact('row', grouped(id));
    fact('neighbour of', `${grouped(item.in_degree)} items`);
    if (this.info.statistics.components > 1) fact('component', String(item.component));
    byId('card').replaceChildren(this.shown(id, item.label, item.numbers), facts);
    this.fill('near', item.neighbors.map((near) => this.tile(near.id, near.label,
      shownDistance(near.distance), { other: item.label && near.label !== item.label &&
                                             this.info.classes.length > 0 })));
    this.map.setMarks({ item: id });
    this.remember();
  }

  // --- The path ---

  async walk(from, to) {
    byId('from').value = from;
    byId('to').value = to;
    const path = await this.source.path(from, to);
    this.path = path;
    const said = byId('path-said');
    const strong = (text) => element('b', {}, text);
    if (!path.connected) {
      said.replaceChildren('No path: the rows ', strong(grouped(from)), ' and ', strong(grouped(to)),
        ' lie in different components of the graph. ');
      byId('film').replaceChildren();
      this.map.setMarks({ path: [] });
      this.remember();
      // Show immediately what needs no request.
      if (path.gap_seconds < 1) return this.showGap(path);
      const button = element('button', { type: 'button', id: 'show-gap' }, 'Find the gap');
      button.addEventListener('click', () => this.attempt(() => this.showGap(path)));
      said.append(button, ` It may take ${Math.ceil(path.gap_seconds)} seconds.`);
      return;
    }
    const count = path.path.length - 1;
    said.replaceChildren(strong(String(count)), count === 1 ? ' step' : ' steps', ', the largest ',
      strong(shownDistance(path.largest_step)), ', in all ',
      strong(shownDistance(path.sum_of_steps)), '.');
    const film = [];
    path.path.forEach((id, i) => {
      const line = element('li');
      if (i > 0) {
        const largest = path.steps[i - 1] === path.largest_step;
        line.append(element('span', {
          className: largest ? 'step largest' : 'step', title: shownDistance(path.steps[i - 1]),
        }, briefDistance(path.steps[i - 1]), largest ? ' largest' : ''));
      }
      line.append(this.tile(id, path.labels[i], `row ${id}`));
      film.push(line);
    });
    byId('film').replaceChildren(...film);
    byId('film').scrollLeft = 0;
    this.map.setMarks({ path: path.path });
    this.markCurrent();
    this.remember();
  }

  // What would have to be bridged between the two ends of a path that is not there.
  async showGap(path) {
    const said = byId('path-said');
    while (said.childNodes.length > 5) said.lastChild.remove();
    said.append('Looking for the gap.');
    let gaps, problem;
    try {
      ({ gaps } = await this.source.gap(path.from, path.to));
    } catch (error) {
      problem = error.message;
    }
    if (this.path !== path) return;
    said.lastChild.remove();
    if (problem) return void said.append(`What is missing is not known: ${problem}.`);
    const isWider = (a, b) =>
      this.info.metric === 'ip' ? a.distance < b.distance : a.distance > b.distance;
    const widest = gaps.reduce((most, gap) => (isWider(gap, most) ? gap : most));
    said.append(gaps.length === 1 ? 'The gap to bridge is '
      : `The smoothest way would bridge ${gaps.length} gaps, the widest of `,
    element('b', {}, shownDistance(widest.distance)),
    `, between the rows ${grouped(widest.from)} and ${grouped(widest.to)}.`);
    const film = [];
    for (const gap of gaps) {
      const ends = [[gap.from, gap.labels[0]], [gap.to, gap.labels[1]]];
      const tiles = ends.map(([id, label]) => this.tile(id, label, `row ${id}`));
      const step = element('span', {
        className: gap === widest ? 'step largest' : 'step', title: shownDistance(gap.distance),
      }, briefDistance(gap.distance), ' gap');
      film.push(element('li', {}, tiles[0]), element('li', {}, step, tiles[1]));
    }
    byId('film').replaceChildren(...film);
    this.markCurrent();
  }

  // The address holds what is shown, so that it can be kept and passed on.
  remember() {
    const wanted = new URLSearchParams({
      from: byId('from').value, to: byId('to').value, item: this.item });
    history.replaceState(null, '', `#${wanted}`);
  }

  readEnds() {
    return ['from', 'to'].map((name) => {
      const text = byId(name).value.trim();
      if (!/^[0-9]+$/.test(text)) throw new Error(`'${name}' needs a row number, but has '${text}'`);
      if (Number(text) >= this.info.rows)
        throw new Error(`'${name}' is row ${text}, but the base has ${this.info.rows} rows`);
      return Number(text);
    });
  }

  // --- The map ---

  async loadMap() {
    const [places, classes] = await Promise.all([this.source.places(), this.source.classes()]);
    this.map.setPlaces(places);
    this.map.setClasses(classes);
    this.showProgress(this.info.layout);
    const entries = this.info.classes.map((name, number) => {
      const dot = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
      dot.setAttribute('viewBox', '0 0 10 10');
      const circle = document.createElementNS('http://www.w3.org/2000/svg', 'circle');
      for (const [key, value] of [['cx', 5], ['cy', 5], ['r', 5], ['fill', classColour(number)]])
        circle.setAttribute(key, value);
      dot.append(circle);
      const button = element('button', { type: 'button' }, dot, name);
      button.setAttribute('aria-pressed', 'false');
      button.addEventListener('click', () => {
        const only = this.map.only === number ? -1 : number;
        this.map.setOnly(only);
        [...byId('legend').querySelectorAll('button')].forEach((each, i) =>
          each.setAttribute('aria-pressed', String(i === only)));
      });
      return element('li', {}, button);
    });
    byId('legend').replaceChildren(...entries);
  }
  showProgress({ version, progress }) {
    this.mapVersion = version;
    byId('layout').hidden = progress >= 1;
    byId('layout').value = progress;
    byId('map-said').textContent = progress >= 1
      ? 'Neighbours in the graph lie near each other; directions and distances mean nothing else.'
      : `Two principal components so far; the map is being drawn: ${Math.round(100 * progress)} %.`;
  }
  // The map comes in steps while the server makes it.
  async followMap() {
    let now = this.info.layout;
    while (now.progress < 1) {
      await new Promise((resolve) => setTimeout(resolve, 400));
      try {
        now = await this.source.progress();
        if (now.version !== this.mapVersion) this.map.setPlaces(await this.source.places());
        this.showProgress(now);
      } catch (error) {
        this.complain(new Error(`the server has ended: ${error.message}`));
        return;
      }
    }
  }
  hover(id, x, y) {
    const box = byId('hover');
    box.hidden = id < 0;
    if (id < 0) return;
    if (this.hovered !== id || !box.firstChild) {
      this.hovered = id;
      const number = this.map.classes ? this.map.classes[id] : -1;
      const label = number >= 0 ? this.info.classes[number] : '';
      box.replaceChildren(this.shown(id, label), element('b', {}, label || `row ${id}`),
        element('i', {}, `row ${id}`));
      if (!label && this.info.labelled)
        this.source.item(id).then((item) => {
          if (this.hovered !== id) return;
          box.firstChild.replaceWith(this.shown(id, item.label));
          box.children[1].textContent = item.label;
        }, () => {});
    }
    const right = x > this.map.width - 120, low = y > this.map.height - 160;
    box.style.left = `${right ? x - 106 : x + 14}px`;
    box.style.top = `${low ? y - box.offsetHeight - 10 : y + 14}px`;
  }

  // --- Hubs, components, finding ---

  showHubs() {
    const hubs = this.info.statistics.hubs;
    this.fill('hubs', hubs.map((hub) => this.tile(hub.id, '', `of ${grouped(hub.in_degree)}`)));
    this.labelLater('hubs');
  }
  showParts() {
    const { statistics, largest_components: parts, rows } = this.info;
    byId('parts-said').textContent = statistics.components === 1
      ? 'All items are connected: a path leads from each to every other.'
      : `${grouped(statistics.components)} parts that no path connects; the largest has ${
        grouped(statistics.largest_component)} of ${grouped(rows)} items.` +
        (parts.length < statistics.components ? ` The largest ${parts.length}:` : '');
    this.fill('parts', statistics.components === 1 ? [] : parts.map((part) => this.tile(part.first, '',
      `${grouped(part.rows)} ${part.rows === 1 ? 'item' : 'items'}`)));
    this.labelLater('parts');
  }
  // Labels of tiles that came without.
  labelLater(list) {
    if (!this.info.labelled) return;
    for (const tile of byId(list).querySelectorAll('.tile')) {
      this.source.item(Number(tile.dataset.id)).then(({ id, label }) => {
        tile.querySelector('b').textContent = label;
        if (this.info.kind === 'texts') tile.firstChild.replaceWith(this.shown(id, label));
      }, () => {});
    }
  }

  async find(text) {
    const wanted = text.trim();
    const results = byId('results');
    results.hidden = !wanted;
    if (!wanted) return;
    const tiles = [];
    if (/^[0-9]+$/.test(wanted)) {
      if (Number(wanted) >= this.info.rows)
        throw new Error(`there is no row ${wanted}: the base has ${this.info.rows} rows`);
      await this.choose(Number(wanted));
    }
    const { found, more } = await this.source.find(wanted);
    tiles.push(...found.map(({ id, label }) => this.tile(id, label, `row ${id}`)));
    byId('results-title').textContent = found.length
      ? `${more ? 'The first ' : ''}${found.length} with '${wanted}' in the label`
      : `No label has '${wanted}'`;
    results.hidden = /^[0-9]+$/.test(wanted) && !found.length;
    this.fill('found', tiles);
    if (!results.hidden) results.scrollIntoView({ block: 'nearest' });
  }

  // --- Searching by a picture or numbers ---

  say(text, wrong = false) {
    byId('search-said').textContent = text;
    byId('search-said').classList.toggle('wrong', wrong);
  }
  async searchBy(read) {
    this.say('searching');
    try {
      const vector = await read();
      if (vector.length !== this.info.dim)
        throw new Error(`${vector.length} numbers, but the base has ${this.info.dim} columns`);
      for (const x of vector)
        if (!Number.isFinite(x)) throw new Error('every number must be finite');
      byId('asked').replaceChildren(this.info.width > 0
        ? element('span', { className: 'shown pixels' },
          greyPicture(vector, this.info.width, this.info.height))
        : element('span', { className: 'shown' }, curve(vector)));
      const { neighbors, seconds } = await this.source.search(vector, 12);
      this.fill('answers', neighbors.map((near) =>
        this.tile(near.id, near.label, shownDistance(near.distance))));
      this.say(`${neighbors.length} nearest of all, in ${(seconds * 1000).toPrecision(3)} ms`);
    } catch (error) {
      byId('asked').replaceChildren();
      byId('answers').replaceChildren();
      this.say(error.message, true);
    }
  }
  async readFile(file) {
    if (file.size > 64 * 2 ** 20) throw new Error(`${file.name} is larger than 64 MiB`);
    if (/\.npy$/i.test(file.name)) return numbersOfNpy(await file.arrayBuffer());
    if (file.type.startsWith('image/')) {
      if (!(this.info.width > 0))
        throw new Error('the base is not of grey pixels (--shape says so): drop numbers instead');
      return pixelsOf(file, this.info.width, this.info.height, byId('invert').checked);
    }
    return numbersOfText(await file.text());
  }
  searchFile(file) {
    this.lastFile = file;
    return this.searchBy(() => this.readFile(file));
  }

  // --- Keys, clicks, drops ---

  listen() {
    const act = (id, work) => byId(id).addEventListener('click', () => this.attempt(work));
    byId('ends').addEventListener('submit', (event) => {
      event.preventDefault();
      this.attempt(() => this.walk(...this.readEnds()));
    });
    act('swap', () => { const [from, to] = this.readEnds(); return this.walk(to, from); });
    act('walk-from', () => this.walk(this.item, this.readEnds()[1]));
    act('walk-to', () => this.walk(this.readEnds()[0], this.item));
    act('zoom-in', () => this.map.zoom(1.5));
    act('zoom-out', () => this.map.zoom(1 / 1.5));
    act('zoom-all', () => this.map.showAll());
    byId('find').addEventListener('submit', (event) => {
      event.preventDefault();
      this.attempt(() => this.find(byId('query').value));
    });
    act('search', () => this.searchBy(async () => numbersOfText(byId('pasted').value)));
    byId('file').addEventListener('change', (event) => {
      if (event.target.files.length) this.searchFile(event.target.files[0]);
      event.target.value = '';
    });
    byId('invert').addEventListener('change', () => {
      if (this.lastFile) this.searchFile(this.lastFile);
    });
    document.addEventListener('dragover', (event) => {
      event.preventDefault();
      byId('zone').classList.add('over');
    });
    document.addEventListener('dragleave', () => byId('zone').classList.remove('over'));
    document.addEventListener('drop', (event) => {
      event.preventDefault();
      byId('zone').classList.remove('over');
      if (event.dataTransfer.files.length) this.searchFile(event.dataTransfer.files[0]);
    });
    document.addEventListener('paste', (event) => {
      if (event.clipboardData?.files.length) this.searchFile(event.clipboardData.files[0]);
    });
    document.addEventListener('keydown', (event) => this.key(event));
  }
  key(event) {
    const typing = /^(INPUT|TEXTAREA)$/.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey || typing) return;
    if (event.key === '/') {
      event.preventDefault();
      byId('query').focus();
      byId('query').select();
    }
    this.keyInList(event);
  }
  // Arrow keys walk along the path, and among any other tiles; walking on the path chooses the item.
  keyInList(event) {
    const tile = event.target.closest?.('.tile');
    if (!tile) return;
    const list = tile.closest('ol');
    const tiles = [...list.querySelectorAll('.tile')];
    const at = tiles.indexOf(tile);
    const next = {
      ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0,
      End: tiles.length - 1,
    }[event.key];
    if (next === undefined || next < 0 || next >= tiles.length) return;
    event.preventDefault();
    tiles[next].focus();
    tiles[next].scrollIntoView({ block: 'nearest', inline: 'nearest' });
    if (list.id === 'film') this.attempt(() => this.choose(Number(tiles[next].dataset.id)));
  }
}

// Numbers as a curve, from their least to their largest, with a line at zero.
function curve(numbers) {
  const make = (name, properties) => {
    const made = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(properties)) made.setAttribute(key, value);
    return made;
  };
  const svg = make('svg', { viewBox: '0 0 100 100', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  let least = 0, largest = 0;
  for (const x of numbers) { least = Math.min(least, x); largest = Math.max(largest, x); }
  const height = (x) => 92 - (84 * (x - least)) / (largest - least || 1);
  svg.append(make('line', { x1: 0, x2: 100, y1: height(0), y2: height(0) }));
  let line = '';
  numbers.forEach((x, i) => {
    const across = numbers.length > 1 ? 4 + (92 * i) / (numbers.length - 1) : 50;
    line += `${i ? 'L' : 'M'}${across.toFixed(2)} ${height(x).toFixed(2)}`;
  });
  svg.append(make('path', { d: line }));
  return svg;
}

// JSON, or numbers with blanks, commas or semicolons between them.
function numbersOfText(text) {
  const trimmed = text.trim();
  if (!trimmed) throw new Error('there are no numbers');
  if (trimmed.startsWith('[') || trimmed.startsWith('{')) {
    let value;
    try {
      value = JSON.parse(trimmed);
    } catch {
      throw new Error('this is no JSON');
    }
    if (!Array.isArray(value)) value = value.vector;
    if (Array.isArray(value) && value.length === 1 && Array.isArray(value[0])) [value] = value;
    if (!Array.isArray(value) || !value.every((x) => typeof x === 'number'))
      throw new Error('the JSON is no list of numbers');
    return value;
  }
  return trimmed.split(/[\s,;]+/).filter((word) => word).map((word) => {
    const value = Number(word);
    if (Number.isNaN(value)) throw new Error(`'${word.slice(0, 20)}' is no number`);
    return value;
  });
}

// The one vector of a .npy file, of floats of 32 or 64 bits or whole numbers of 8, 32 or 64.
function numbersOfNpy(buffer) {
  const bytes = new Uint8Array(buffer);
  const view = new DataView(buffer);
  if (bytes.length < 12 || String.fromCharCode(...bytes.subarray(1, 6)) !== 'NUMPY')
    throw new Error('this is no .npy file');
  const first = bytes[6] === 1 ? 10 : 12;
  const length = bytes[6] === 1 ? view.getUint16(8, true) : view.getUint32(8, true);
  const header = new TextDecoder('latin1').decode(bytes.subarray(first, first + length));
  const kind = /'descr':\s*'([^']+)'/.exec(header)?.[1];
  const readers = {
    '<f4': ['getFloat32', 4], '<f8': ['getFloat64', 8], '|u1': ['getUint8', 1],
    '|i1': ['getInt8', 1], '<i4': ['getInt32', 4], '<i8': ['getBigInt64', 8],
  };
  if (!Object.hasOwn(readers, kind ?? '')) throw new Error(`.npy of ${kind} is not read here`);
  const [reader, size] = readers[kind];
  const numbers = [];
  for (let at = first + length; at + size <= bytes.length; at += size)
    numbers.push(Number(view[reader](at, true)));
  return numbers;
}

// A picture as greys [width * height], fitted into the middle, as the base has them.
async function pixelsOf(file, width, height, inverted) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} does not decode as a picture`);
  }
  const canvas = document.createElement('canvas');
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.fillStyle = inverted ? '#fff' : '#000';  // the margin ends up black
  context.fillRect(0, 0, width, height);
  const scale = Math.min(width / bitmap.width, height / bitmap.height);
  const wide = bitmap.width * scale, high = bitmap.height * scale;
  context.imageSmoothingEnabled = scale !== 1;
  context.imageSmoothingQuality = 'high';
  context.drawImage(bitmap, (width - wide) / 2, (height - high) / 2, wide, high);
  const { data } = context.getImageData(0, 0, width, height);
  const greys = [];
  for (let i = 0; i < data.length; i += 4) {
    const grey = Math.round(0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2]);
    greys.push(inverted ? 255 - grey : grey);
  }
  return greys;
}

{
  let page;
  Promise.resolve()
    .then(() => { page = new Page(makeSource()); return page.start(); })
    .catch((error) => (page ?? Page.prototype).complain(error));
}
