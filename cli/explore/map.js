'use strict';
// The map: all items as dots on a canvas, moved and zoomed by mouse, touch and keys.
//
//   const map = new ItemMap(canvas, {onChoose: (id) => ..., onHover: (id, x, y) => ...});
//   map.setPlaces(places);        // [2 * items]
//   map.setMarks({item: 17, path: [3, 5, 8]});

// Colours of classes, told apart in light and dark, also by most who see fewer colours.
const classColours = [
  '#3b7dd8', '#e07b39', '#2f9e6e', '#b35bd1', '#c9a227', '#d1495b', '#3aa6b9', '#8a6f4d',
  '#7a8b2f', '#9a7fd6', '#d977a8', '#5d7a8c', '#b8860b', '#4f9d3a', '#c05a2b', '#6a6ad0',
];
const classColour = (number) => classColours[number % classColours.length];

class ItemMap {
  constructor(canvas, { onChoose, onHover }) {
    Object.assign(this, { canvas, onChoose, onHover });
    this.places = new Float32Array(0);
    this.classes = null;
    this.only = -1;  // the class that is shown alone, -1: all
    this.marks = { item: -1, path: [] };
    this.pointers = new Map();
    this.moved = 0;
    this.untouched = true;  // the view follows the places until the user moves it
    this.view = { x: 0, y: 0, scale: 1 };
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
    canvas.addEventListener('pointerdown', (event) => this.down(event));
    canvas.addEventListener('pointermove', (event) => this.move(event));
    for (const name of ['pointerup', 'pointercancel'])
      canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener('pointerleave', () => this.onHover(-1));
    canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.0015), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener('keydown', (event) => this.key(event));
    this.resize();
  }

  get count() { return this.places.length / 2; }

  setPlaces(places) {
    this.places = places;
    if (this.untouched) this.showAll();
    else this.draw();
  }
  setClasses(classes) { this.classes = classes.length ? classes : null; this.draw(); }
  setOnly(number) { this.only = number; this.draw(); }
  setMarks(marks) { Object.assign(this.marks, marks); this.draw(); }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    if (this.untouched) this.showAll();
    else this.draw();
  }

  showAll() {
    let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < this.places.length; i += 2) {
      left = Math.min(left, this.places[i]); right = Math.max(right, this.places[i]);
      top = Math.min(top, this.places[i + 1]); bottom = Math.max(bottom, this.places[i + 1]);
    }
    this.untouched = true;
    if (this.count && this.width) {
      const wide = Math.max(right - left, 1e-3), high = Math.max(bottom - top, 1e-3);
      this.view = {
        x: (left + right) / 2, y: (top + bottom) / 2,
        scale: 0.94 * Math.min(this.width / wide, this.height / high),
      };
    }
    this.draw();
  }

  // Zooms about a point of the canvas.
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    this.untouched = false;
    const next = Math.min(1e6, Math.max(1e-3, this.view.scale * factor));
    const by = 1 / this.view.scale - 1 / next;
    this.view.x += (x - this.width / 2) * by;
    this.view.y += (y - this.height / 2) * by;
    this.view.scale = next;
    this.draw();
  }
  pan(x, y) {
    this.untouched = false;
    this.view.x -= x / this.view.scale;
    this.view.y -= y / this.view.scale;
    this.draw();
  }
  screen(id) {
    return [
      (this.places[2 * id] - this.view.x) * this.view.scale + this.width / 2,
      (this.places[2 * id + 1] - this.view.y) * this.view.scale + this.height / 2,
    ];
  }
  // The item nearest to a point of the canvas, -1 if none is within `reach` pixels.
  nearest(x, y, reach = 14) {
    const wantedX = (x - this.width / 2) / this.view.scale + this.view.x;
    const wantedY = (y - this.height / 2) / this.view.scale + this.view.y;
    let best = -1, least = (reach / this.view.scale) ** 2;
    for (let id = 0; id < this.count; ++id) {
      if (this.only >= 0 && this.classes[id] !== this.only) continue;
      const dx = this.places[2 * id] - wantedX, dy = this.places[2 * id + 1] - wantedY;
      const square = dx * dx + dy * dy;
      if (square < least) { least = square; best = id; }
    }
    return best;
  }

  down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    if (!this.pointers.size) this.moved = 0;
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
  }
  move(event) {
    const before = this.pointers.get(event.pointerId);
    const now = [event.offsetX, event.offsetY];
    if (!before) {
      const id = this.nearest(...now);
      this.onHover(id, ...now);
      return;
    }
    this.onHover(-1);
    const others = [...this.pointers].filter(([pointer]) => pointer !== event.pointerId);
    this.moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (others.length === 1) {  // two fingers
      const [, fixed] = others[0];
      const spread = (point) => Math.hypot(point[0] - fixed[0], point[1] - fixed[1]);
      this.zoom(spread(now) / Math.max(1, spread(before)), ...fixed);
    } else if (this.moved > 4) {
      this.pan(now[0] - before[0], now[1] - before[1]);
    }
    this.pointers.set(event.pointerId, now);
  }
  up(event) {
    const alone = this.pointers.size === 1;
    this.pointers.delete(event.pointerId);
    if (!alone || this.moved > 4 || event.type === 'pointercancel') return;
    const id = this.nearest(event.offsetX, event.offsetY, event.pointerType === 'touch' ? 24 : 14);
    if (id >= 0) this.onChoose(id);
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const far = 40;
    const actions = {
      ArrowLeft: () => this.pan(far, 0), ArrowRight: () => this.pan(-far, 0),
      ArrowUp: () => this.pan(0, far), ArrowDown: () => this.pan(0, -far),
      '+': () => this.zoom(1.4), '=': () => this.zoom(1.4), '-': () => this.zoom(1 / 1.4),
      0: () => this.showAll(), Home: () => this.showAll(),
      Enter: () => {
        const id = this.nearest(this.width / 2, this.height / 2, Infinity);
        if (id >= 0) this.onChoose(id);
      },
    };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }

  // At most once for each picture that the screen shows.
  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      if (this.width) this.paint();
    });
  }
  paint() {
    const context = this.canvas.getContext('2d');
    const { width, height } = this.canvas;
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const rgb = (hex, alpha) => {
      const value = parseInt(hex.slice(1), 16);
      return ((alpha << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
    };
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const plain = rgb(dark ? '#7eabff' : '#2056b4', 255);
    const faint = rgb(dark ? '#3a404b' : '#d3d1ca', 255);
    const colours = classColours.map((hex) => rgb(hex, 255));
    // A dot has as many pixels as there is room for.
    const room = Math.sqrt((width * height) / Math.max(1, this.count));
    const zoomed = this.untouched ? 1 : 1.5;
    const size = Math.max(1, Math.min(Math.round(4 * this.ratio), Math.round(room * 0.45 * zoomed)));
    const scale = this.view.scale * this.ratio;
    const passes = this.only >= 0 ? [false, true] : [true];
    for (const chosen of passes) {
      for (let id = 0; id < this.count; ++id) {
        const number = this.classes ? this.classes[id] : -1;
        if (this.only >= 0 && (number === this.only) !== chosen) continue;
        const x = Math.round((this.places[2 * id] - this.view.x) * scale + width / 2 - size / 2);
        const y = Math.round((this.places[2 * id + 1] - this.view.y) * scale + height / 2 - size / 2);
        if (x < 0 || y < 0 || x + size > width || y + size > height) continue;
        const colour = !chosen ? faint : number < 0 ? plain : colours[number % colours.length];
        for (let line = y; line < y + size; ++line)
          pixels.fill(colour, line * width + x, line * width + x + size);
      }
    }
    context.putImageData(image, 0, 0);
    context.save();
    context.scale(this.ratio, this.ratio);
    this.paintMarks(context, dark ? '#e7e9ec' : '#1c2128', dark ? '#13161b' : '#ffffff');
    context.restore();
  }
  paintMarks(context, ink, paper) {
    const { path, item } = this.marks;
    const points = path.filter((id) => id < this.count).map((id) => this.screen(id));
    context.lineJoin = 'round';
    for (const [colour, wide] of [[paper, 4.5], [ink, 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.beginPath();
      points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.stroke();
    }
    const dot = (x, y, radius) => {
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fillStyle = ink;
      context.fill();
      context.lineWidth = 1.5;
      context.strokeStyle = paper;
      context.stroke();
    };
    points.forEach(([x, y], i) => dot(x, y, i === 0 || i === points.length - 1 ? 5.5 : 3.5));
    if (item < 0 || item >= this.count) return;
    const [x, y] = this.screen(item);
    for (const [colour, wide] of [[paper, 5], ['#d1495b', 2.5]]) {
      context.beginPath();
      context.arc(x, y, 9, 0, 2 * Math.PI);
      context.lineWidth = wide;
      context.strokeStyle = colour;
      context.stroke();
    }
  }
}
