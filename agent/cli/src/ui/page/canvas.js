// The map on a canvas: pan, zoom, hover, selection. It draws a model and reports clicks; it knows no questions.

import { CELL, at, curve, place } from "./layout.js";

const VERDICTS = ["allow", "audit", "mixed", "deny"];
const WORDS = { allow: "allowed", audit: "on trial", mixed: "denied in part", deny: "denied" };
const DASHES = { allow: [], audit: [3, 4], mixed: [10, 3, 2, 3], deny: [8, 5] };
const COLOURS = { allow: "allow", audit: "audit", mixed: "deny", deny: "deny" };
// Above this number of curves, the map shows its last picture until a new one is complete.
const HEAVY = 200;
const REST = 90;
// Time for which the pointer rests before a map of many curves shows the curves under it, in milliseconds.
const HOVER = 50;
// Curves in one path: the time of a path grows faster than the number of its curves.
const BATCH = 16;
// Time for a part of a picture, in milliseconds: the rest of a frame, and if there is nothing to show yet.
const PART = 8;
const FIRST_PART = 40;
const NEAR = 6;
const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";

export class MapCanvas {
  /** `pick` is called with `{ node }`, `{ group }`, `{ edges }` or null; edges have the same ends. */
  constructor(canvas, tip, pick) {
    Object.assign(this, { canvas, tip, pick, scale: 1, x: 0, y: 0, selected: null, hover: null, frame: 0 });
    this.context = canvas.getContext("2d");
    // The last picture, and the next one while it is painted.
    this.back = document.createElement("canvas");
    this.next = document.createElement("canvas");
    this.probe = document.createElement("canvas").getContext("2d");
    this.picture = null;
    this.colors = {};
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.theme());
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointerleave", () => {
      this.where = null;
      this.point(null);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("dblclick", (event) => this.open(event));
    this.theme();
  }

  /** Shows nodes and edges: `{ from, to, verdict, weight, label }`. */
  show(nodes, edges, folded, { keep = false } = {}) {
    this.nodes = nodes;
    const former = this.layout;
    this.layout = place(nodes, folded, new Set(edges.flatMap((edge) => [edge.from, edge.to])));
    this.all = edges;
    this.edges = this.merge(edges);
    this.hover = null;
    // The last picture stays until the next one is complete, unless its boxes are elsewhere.
    const isSame = ["width", "height"].every((it) => former?.[it] === this.layout[it]) && former.groups.length === this.layout.groups.length;
    if (!keep || !isSame) this.picture = null;
    for (const picture of [this.picture, this.target]) if (picture) picture.isStale = true;
    if (keep) this.draw();
    else this.fit();
  }

  /** Joins the edges of folded groups; those inside one are counted by verdict. */
  merge(edges) {
    const { cells } = this.layout;
    for (const group of this.layout.groups) group.inside = {};
    const groups = new Map(this.layout.groups.map((group, index) => [group, index]));
    const end = (index) => (cells[index].group.folded ? -1 - groups.get(cells[index].group) : index);
    const merged = new Map();
    for (const edge of edges) {
      const [from, to] = [end(edge.from), end(edge.to)];
      if (from === to && from < 0) {
        const { inside } = cells[edge.from].group;
        inside[edge.verdict] = (inside[edge.verdict] ?? 0) + 1;
        continue;
      }
      const ends = `${from} ${to}`;
      const key = `${ends} ${edge.verdict}`;
      const known = merged.get(key);
      if (known) known.members.push(edge);
      else {
        const [a, b] = [cells[edge.from], cells[edge.to]];
        const line = edge.from === edge.to ? loop(a) : curve(a, b);
        merged.set(key, { ends, verdict: edge.verdict, members: [edge], a, b, line, box: around(line) });
      }
    }
    // By verdict, so that a batch has few colours and denied pairs are above allowed ones.
    return VERDICTS.flatMap((word) => [...merged.values()].filter((edge) => edge.verdict === word));
  }

  theme() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["surface", "raised", "ink", "quiet", "line", "accent", "allow", "deny", "audit", "group"]) {
      this.colors[name] = style.getPropertyValue(`--${name}`).trim();
    }
    this.picture = null;
    this.stop();
    this.draw();
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    if (!clientWidth || !clientHeight) return;
    const first = !this.width;
    [this.width, this.height, this.ratio] = [clientWidth, clientHeight, devicePixelRatio || 1];
    [this.canvas.width, this.canvas.height] = [this.width * this.ratio, this.height * this.ratio];
    this.picture = null;
    this.stop();
    if (first) this.fit();
    else this.draw();
  }

  /** Shows the whole map. */
  fit() {
    if (!this.layout || !this.width) return;
    const margin = 28;
    const { width, height } = this.layout;
    this.scale = Math.min((this.width - 2 * margin) / width, (this.height - 2 * margin) / height, 1.25);
    this.x = (this.width - width * this.scale) / 2;
    this.y = (this.height - height * this.scale) / 2;
    this.draw();
  }

  /** Moves a node into the middle. */
  reveal(index) {
    const cell = this.layout.cells[index];
    if (!cell || !this.width) return;
    const [left, top] = [cell.x * this.scale + this.x, cell.y * this.scale + this.y];
    const inside = left > 0 && top > 0 && left + cell.width * this.scale < this.width && top + cell.height * this.scale < this.height;
    if (inside && this.scale > 0.45) return;
    this.scale = Math.max(this.scale, 0.7);
    this.x = this.width / 2 - (cell.x + cell.width / 2) * this.scale;
    this.y = this.height / 2 - (cell.y + cell.height / 2) * this.scale;
    this.draw();
  }

  zoom(factor, [px, py] = [this.width / 2, this.height / 2]) {
    const scale = Math.min(Math.max(this.scale * factor, 0.02), 4);
    this.x = px - ((px - this.x) * scale) / this.scale;
    this.y = py - ((py - this.y) * scale) / this.scale;
    this.scale = scale;
    this.moving();
  }

  wheel(event) {
    event.preventDefault();
    this.zoom(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.05 : 0.0016)), [event.offsetX, event.offsetY]);
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, y: event.offsetY, moved: false };
  }

  move(event) {
    if (!this.drag) {
      this.where = [event.offsetX, event.offsetY];
      this.pointFrame ||= requestAnimationFrame(() => {
        this.pointFrame = 0;
        this.point(this.where);
      });
      return;
    }
    const [dx, dy] = [event.offsetX - this.drag.x, event.offsetY - this.drag.y];
    if (!this.drag.moved && Math.hypot(dx, dy) < 4) return;
    this.drag = { x: event.offsetX, y: event.offsetY, moved: true };
    this.x += dx;
    this.y += dy;
    this.moving();
  }

  release(event) {
    const drag = this.drag;
    this.drag = null;
    if (drag && !drag.moved) this.pick(this.find([event.offsetX, event.offsetY]));
  }

  open(event) {
    const found = this.find([event.offsetX, event.offsetY]);
    if (found?.group) this.pick({ ...found, open: true });
  }

  key(event) {
    const step = 60;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const move = moves[event.key];
    if (move) {
      this.x += move[0];
      this.y += move[1];
      this.moving();
    } else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.fit();
    else if (event.key === "Escape") this.pick(null);
    else return;
    event.preventDefault();
  }

  point(where) {
    const found = where && this.layout ? this.find(where) : null;
    const key = JSON.stringify(found && [found.node, found.group?.key, found.edges?.[0].ends]);
    if (key !== this.hoverKey) {
      this.hoverKey = key;
      this.hover = found;
      clearTimeout(this.lighting);
      if (this.isHeavy()) this.lighting = setTimeout(() => this.draw(), HOVER);
      else this.draw();
    }
    this.canvas.style.cursor = found ? "pointer" : "grab";
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.textContent = this.title(found);
    this.tip.style.left = `${Math.min(where[0] + 14, Math.max(this.width - 260, 0))}px`;
    this.tip.style.top = `${where[1] + 16}px`;
  }

  title({ node, group, edges }) {
    // A name of another direction of writing does not reorder the text around it.
    const apart = (text) => `\u2068${text}\u2069`;
    const end = (cell, index) => apart(cell.group.folded ? cell.group.name : this.nodes[index].title);
    if (node !== undefined) return this.nodes[node].title;
    if (group) {
      const inside = group.folded ? VERDICTS.filter((word) => group.inside[word]).map((word) => `${group.inside[word]} ${WORDS[word]}`) : [];
      return `${apart(group.name)}: ${group.members.length}${inside.length ? `; pairs inside: ${inside.join(", ")}` : ""}`;
    }
    const labels = edges.map(({ verdict, members }) => (members.length === 1
      ? `${WORDS[verdict]}, ${members[0].label}` : `${members.length} pairs ${WORDS[verdict]}`));
    const { a, b, members } = edges[0];
    return `${end(a, members[0].from)} → ${end(b, members[0].to)}: ${labels.join("; ")}`;
  }

  /** Returns what is at a point of the canvas: a node, a group, the edges of two ends or null. */
  find([px, py]) {
    if (!this.layout) return null;
    const [x, y] = [(px - this.x) / this.scale, (py - this.y) / this.scale];
    const inside = (box) => x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height;
    const group = this.layout.groups.find(inside);
    if (group?.folded) return { group };
    const node = group?.members.find((index) => inside(this.layout.cells[index]));
    if (node !== undefined) return { node };
    let [best, edge] = [NEAR / this.scale, null];
    for (const candidate of this.edges) {
      const { left, top, right, bottom } = candidate.box;
      if (x < left - best || x > right + best || y < top - best || y > bottom + best || !this.isVisible(candidate)) continue;
      for (let t = 0; t <= 1; t += 0.04) {
        const [ex, ey] = at(candidate.line, t);
        const distance = Math.hypot(ex - x, ey - y);
        if (distance < best) [best, edge] = [distance, candidate];
      }
    }
    if (edge) {
      // Edges of other verdicts have the same curve.
      const edges = this.edges.filter((it) => it.ends === edge.ends && this.isVisible(it));
      return { edges, pairs: this.pairs(edges.flatMap((it) => it.members)) };
    }
    return group ? { group } : null;
  }

  /** Whether an edge is of the selection, if there is one. */
  isVisible(edge) {
    return !this.selected || this.touches(edge, this.selected);
  }

  touches(edge, { node, group, pairs }) {
    if (pairs) return edge.members.some((it) => pairs.has(this.pair(it)));
    if (group) return edge.a.group === group || edge.b.group === group;
    return edge.members.some((it) => it.from === node || it.to === node);
  }

  /** Returns a number for a pair of nodes. */
  pair({ from, to }) {
    return from * this.nodes.length + to;
  }

  pairs(members) {
    return new Set(members.map((it) => this.pair(it)));
  }

  select(selected) {
    this.selected = selected;
    this.draw();
  }

  /** Selects pairs, each with `from` and `to`. */
  selectPairs(members) {
    const pairs = this.pairs(members);
    const isThere = this.edges.some((edge) => this.touches(edge, { pairs }));
    this.select(isThere ? { pairs } : null);
  }

  moving() {
    if (this.isHeavy() && this.picture) {
      this.stop();
      clearTimeout(this.rest);
      this.rest = setTimeout(() => this.draw(), REST);
      if (!this.frame) {
        this.frame = requestAnimationFrame(() => {
          this.frame = 0;
          this.compose();
        });
      }
      return;
    }
    this.draw();
  }

  isHeavy() {
    return this.edges?.length > HEAVY;
  }

  draw() {
    if (!this.layout || !this.width) return;
    if (this.drawFrame) return;
    this.drawFrame = requestAnimationFrame(() => {
      this.drawFrame = 0;
      this.paint();
    });
  }

  paint() {
    this.canvas.style.background = this.colors.surface;
    if (!this.isHeavy()) {
      this.stop();
      this.picture = null;
      this.paintAll(this.selected ?? this.hover);
      this.painted?.();
      return;
    }
    this.compose();
    if (this.isPlaced(this.picture)) {
      this.stop();
      this.painted?.();
    } else if (!this.isPlaced(this.target)) this.begin();
  }

  /** Whether a picture is of the present edges and place. */
  isPlaced(picture) {
    return picture && !picture.isStale && picture.scale === this.scale && picture.x === this.x && picture.y === this.y;
  }

  /** Ends the painting of the next picture. */
  stop() {
    cancelAnimationFrame(this.partFrame);
    [this.parts, this.target] = [null, null];
    delete this.canvas.dataset.painting;
  }

  /** Paints the next picture, a part in each frame. */
  begin() {
    this.stop();
    const { scale, x, y } = this;
    const target = { scale, x, y, isStale: false };
    this.target = target;
    const limit = this.picture ? PART : FIRST_PART;
    [this.next.width, this.next.height] = [this.canvas.width, this.canvas.height];
    this.parts = this.paintParts(this.next.getContext("2d"));
    this.canvas.dataset.painting = "true";
    let count = 16;
    const step = () => {
      const begun = performance.now();
      let done = false;
      for (let i = 0; i < count && !done; i += 1) done = this.parts.next().done;
      // Browsers paint a canvas when it is read; otherwise all parts would be painted at once.
      this.probe.drawImage(this.next, 0, 0, 1, 1, 0, 0, 1, 1);
      const time = performance.now() - begun;
      if (time > limit) count = Math.max(count >> 1, 1);
      else if (time < limit / 2) count *= 2;
      if (!done) {
        this.partFrame = requestAnimationFrame(step);
        return;
      }
      this.stop();
      [this.back, this.next] = [this.next, this.back];
      this.picture = target;
      this.compose();
      this.painted?.();
    };
    step();
  }

  /** Paints groups, edges and cells; returns after each batch of edges, and after the cells of each group. */
  * paintParts(target) {
    this.withContext(target, () => {
      this.clear();
      this.paintGroups();
    });
    const edges = this.inView(this.edges);
    // Where batches overlap, their colours add up.
    const alpha = Math.min(0.75, Math.max(0.03, 6 / Math.sqrt(this.edges.length + 1)));
    for (const part of batches(edges)) {
      this.withContext(target, () => this.paintEdges(part, alpha, edges.length < 2500));
      yield;
    }
    for (const group of this.layout.groups) {
      this.withContext(target, () => this.paintCellsOf(group, null));
      yield;
    }
  }

  withContext(target, paint) {
    const { context } = this;
    this.context = target;
    paint();
    this.context = context;
  }

  /** Shows the last picture at the present place; what is selected, or under the pointer, is above it. */
  compose() {
    const { context: c, ratio, picture } = this;
    const active = this.selected ?? this.hover;
    if (!picture) {
      this.clear();
      this.paintGroups();
      this.paintCells(null);
      return;
    }
    const factor = this.scale / picture.scale;
    this.clear();
    // Where a small picture has nothing.
    if (factor < 0.7) this.paintGroups();
    c.setTransform(factor, 0, 0, factor, (this.x - picture.x * factor) * ratio, (this.y - picture.y * factor) * ratio);
    c.globalAlpha = active ? 0.3 : 1;
    c.drawImage(this.back, 0, 0);
    c.globalAlpha = 1;
    if (!active) return;
    this.transform();
    const lit = this.litEdges(active);
    for (const part of batches(this.inView(lit))) this.paintEdges(part, 1, true, true);
    this.paintCells(this.near(lit, active), true);
  }

  /** Paints a map of few edges. */
  paintAll(active) {
    this.clear();
    this.paintGroups();
    const lit = active ? this.litEdges(active) : [];
    this.paintEdges(this.edges, lit.length ? 0.1 : Math.min(0.75, Math.max(0.16, 10 / Math.sqrt(this.edges.length + 1))), true);
    this.paintEdges(lit, 1, true, true);
    this.paintCells(lit.length ? this.near(lit, active) : null);
  }

  /** Sets the transformation of the map. */
  transform() {
    const { context: c, ratio, scale } = this;
    c.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * this.x, ratio * this.y);
  }

  clear() {
    const { context: c, ratio } = this;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.direction = "ltr";
    c.clearRect(0, 0, this.width, this.height);
    this.transform();
  }

  litEdges(active) {
    return this.edges.filter((edge) => this.touches(edge, active));
  }

  /** Returns the cells of lit edges, and the active one. */
  near(lit, active) {
    const near = new Set(lit.flatMap((edge) => [edge.a, edge.b]));
    if (active.node !== undefined && this.layout.cells[active.node]) near.add(this.layout.cells[active.node]);
    return near;
  }

  /** Returns the edges that may cross the visible part of the map. */
  inView(edges) {
    const [left, top] = [-this.x / this.scale, -this.y / this.scale];
    const [right, bottom] = [left + this.width / this.scale, top + this.height / this.scale];
    return edges.filter(({ box }) => box.right >= left && box.left <= right && box.bottom >= top && box.top <= bottom);
  }

  paintGroups() {
    for (const group of this.layout.groups) if (!group.folded) this.paintGroup(group);
  }

  /** Paints the cells; `near` are the lit ones, and `only` omits the others. */
  paintCells(near, only = false) {
    for (const group of this.layout.groups) this.paintCellsOf(group, near, only);
  }

  paintCellsOf(group, near, only = false) {
    if (group.folded) {
      if (!only || [...near].some((cell) => cell.group === group)) this.paintFolded(group, near);
    } else {
      const members = this.scale > 0.09 ? group.members : [];
      for (const index of members) if (!only || near.has(this.layout.cells[index])) this.paintCell(index, near);
      if (!only) this.paintName(group);
    }
    this.context.globalAlpha = 1;
  }

  box({ x, y, width, height }, radius) {
    const c = this.context;
    c.beginPath();
    c.roundRect(x, y, width, height, radius);
  }

  paintGroup(group) {
    const { context: c, colors } = this;
    this.box(group, 10);
    c.fillStyle = colors.group;
    c.fill();
  }

  paintName(group) {
    const { context: c, colors, scale } = this;
    const size = Math.min(Math.max(13, 11 / scale), 60);
    c.fillStyle = colors.quiet;
    c.font = `600 ${size}px ${FONT}`;
    c.textBaseline = "alphabetic";
    const above = size > 20;
    c.fillText(clip(c, group.name, group.width - 20), group.x + 14, above ? group.y - 6 : group.y + 22);
  }

  paintFolded(group, near) {
    const { context: c, colors } = this;
    this.box(group, 10);
    c.globalAlpha = 1;
    c.fillStyle = colors.raised;
    c.fill();
    c.globalAlpha = !near || [...near].some((cell) => cell.group === group) ? 1 : 0.4;
    c.lineWidth = 1.2;
    c.strokeStyle = this.selected?.group === group || this.hover?.group === group ? colors.accent : colors.line;
    c.stroke();
    c.fillStyle = colors.ink;
    c.font = `600 14px ${FONT}`;
    c.textBaseline = "alphabetic";
    c.fillText(clip(c, group.name, group.width - 28), group.x + 14, group.y + 26);
    c.fillStyle = colors.quiet;
    c.font = `12px ${FONT}`;
    c.fillText(`${group.members.length} ${group.kind === "workload" ? "workloads" : group.kind}`, group.x + 14, group.y + 45);
    this.paintInside(group);
  }

  /** Numbers of the pairs inside a folded group, by verdict. */
  paintInside(group) {
    const { context: c, colors } = this;
    let x = group.x + 14;
    for (const word of VERDICTS.filter((it) => group.inside[it])) {
      const text = `${group.inside[word]} ${WORDS[word]}`;
      const width = c.measureText(text).width;
      if (x + width > group.x + group.width - 8) break;
      c.fillStyle = colors[COLOURS[word]];
      c.fillText(text, x, group.y + 63);
      x += width + 9;
    }
  }

  paintCell(index, near) {
    const { context: c, colors, scale } = this;
    const [cell, node] = [this.layout.cells[index], this.nodes[index]];
    const left = cell.x * scale + this.x;
    const top = cell.y * scale + this.y;
    if (left > this.width || top > this.height || left + cell.width * scale < 0 || top + cell.height * scale < 0) return;
    this.box(cell, 6);
    c.globalAlpha = 1;
    c.fillStyle = !near || near.has(cell) ? colors.raised : colors.group;
    c.fill();
    c.globalAlpha = !near || near.has(cell) ? 1 : 0.45;
    const chosen = this.selected?.node === index || this.hover?.node === index;
    c.lineWidth = chosen ? 2 : 1;
    c.strokeStyle = chosen ? colors.accent : colors.line;
    c.stroke();
    if (scale < 0.3) return;
    if (node.kind === "workload") {
      this.paintState(cell.x + 9, cell.y + 8, node.states.ingress);
      this.paintState(cell.x + 9, cell.y + 18, node.states.egress);
    }
    c.fillStyle = colors.ink;
    c.font = `12.5px ${FONT}`;
    c.textBaseline = "middle";
    const indent = node.kind === "workload" ? 22 : 10;
    node.clipped ??= clip(c, node.name, CELL.width - indent - 8);
    c.fillText(node.clipped, cell.x + indent, cell.y + cell.height / 2 + 0.5);
  }

  /** Isolation: a full square is isolated, a frame open, half of it isolated in part, amber on trial, a dot inside if
   * ClusterNetworkPolicies decide. */
  paintState(x, y, state) {
    const { context: c, colors } = this;
    c.lineWidth = 1;
    c.strokeStyle = c.fillStyle = state === "trial" ? colors.audit : colors.quiet;
    c.strokeRect(x + 0.5, y + 0.5, 6, 6);
    if (state === "tiers") c.fillRect(x + 2, y + 2, 3, 3);
    if (state === "isolated") c.fillRect(x, y, 7, 7);
    if (state === "some" || state === "trial") c.fillRect(x, y + 3.5, 7, 3.5);
  }

  paintEdges(edges, alpha, arrows, lit = false) {
    const { context: c, colors, scale } = this;
    c.globalAlpha = alpha;
    for (const verdict of VERDICTS) {
      const [lines, heads] = [new Path2D(), new Path2D()];
      let any = false;
      for (const edge of edges) {
        if (edge.verdict !== verdict) continue;
        any = true;
        const { start, middle, end } = edge.line;
        lines.moveTo(start[0], start[1]);
        lines.quadraticCurveTo(middle[0], middle[1], end[0], end[1]);
        if (arrows) head(heads, middle, end, Math.min(7 / Math.min(scale, 1), 16));
      }
      if (!any) continue;
      c.strokeStyle = c.fillStyle = colors[COLOURS[verdict]];
      c.lineWidth = (lit ? 1.8 : 1.1) / Math.min(scale, 1);
      c.setLineDash(DASHES[verdict].map((length) => length / Math.min(scale, 1)));
      c.stroke(lines);
      c.setLineDash([]);
      if (arrows) c.fill(heads);
    }
    c.globalAlpha = 1;
  }
}

/** The box around a curve: the control point is inside, too. */
function around({ start, middle, end }) {
  const [xs, ys] = [0, 1].map((i) => [start[i], middle[i], end[i]]);
  return { left: Math.min(...xs), top: Math.min(...ys), right: Math.max(...xs), bottom: Math.max(...ys) };
}

function* batches(edges) {
  for (let i = 0; i < edges.length; i += BATCH) yield edges.slice(i, i + BATCH);
}

function head(path, from, [x, y], size) {
  const angle = Math.atan2(y - from[1], x - from[0]);
  path.moveTo(x, y);
  for (const turn of [0.42, -0.42]) path.lineTo(x - size * Math.cos(angle + turn), y - size * Math.sin(angle + turn));
  path.closePath();
}

/** The curve of a workload to itself, beside its cell. */
function loop(cell) {
  const x = cell.x + cell.width;
  return { start: [x, cell.y + 8], middle: [x + 26, cell.y + cell.height / 2], end: [x, cell.y + cell.height - 8] };
}

/** Shortens a text to a width. */
function clip(context, text, width) {
  let shownText = text.length > 80 ? text.slice(0, 80) : text;
  if (shownText === text && context.measureText(text).width <= width) return text;
  while (shownText.length > 1 && context.measureText(`${shownText}…`).width > width) shownText = shownText.slice(0, -1);
  return `${shownText}…`;
}
