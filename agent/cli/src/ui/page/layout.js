// Places of the map, from its nodes alone: namespaces in rows, workloads in a grid inside. Equal input, equal places.

export const CELL = { width: 148, height: 32, gap: 10 };
const PAD = 14;
const HEAD = 26;
const BETWEEN = 56;
const FOLDED = { width: 188, height: 76 };
// Width of a usual stage by its height.
const SCREEN = 1.6;
// Groups of parties that are no workloads come last.
const LAST = ["nodes", "outside", "names"];

/** Returns boxes of groups and cells of nodes. `folded` holds the groups drawn as one cell; other parties than workloads have
 * a cell only if `used` holds them. */
export function place(nodes, folded, used) {
  const groups = new Map();
  nodes.forEach((node, index) => {
    if (node.kind !== "workload" && !used.has(index)) return;
    const key = `${node.kind === "workload" ? "" : "\u0000"}${node.group}`;
    if (!groups.has(key)) groups.set(key, { key, name: node.group, kind: node.kind, members: [] });
    groups.get(key).members.push(index);
  });
  const rank = (group) => (group.kind === "workload" ? -1 : LAST.indexOf(group.name));
  const sorted = [...groups.values()].sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
  for (const group of sorted) measure(group, folded.has(group.key));
  const size = fillRows(sorted);
  const cells = new Array(nodes.length);
  for (const group of sorted) {
    group.members.forEach((index, number) => {
      cells[index] = group.folded
        ? { x: group.x, y: group.y, width: group.width, height: group.height, group }
        : {
          x: group.x + PAD + (number % group.columns) * (CELL.width + CELL.gap),
          y: group.y + HEAD + PAD + Math.floor(number / group.columns) * (CELL.height + CELL.gap),
          width: CELL.width, height: CELL.height, group,
        };
    });
  }
  return { groups: sorted, cells, ...size };
}

/** Puts groups into rows, of the width with the largest picture on a usual screen. */
function fillRows(groups) {
  const area = groups.reduce((sum, it) => sum + (it.width + BETWEEN) * (it.height + BETWEEN), 0);
  const widest = groups.reduce((most, it) => Math.max(most, it.width), 1);
  let best = null;
  for (let factor = 0.8; factor < 3; factor += 0.1) {
    const size = rows(groups, Math.max(widest, Math.sqrt(area) * factor));
    const scale = Math.min(SCREEN / size.width, 1 / size.height);
    if (!best || scale > best.scale) best = { scale, limit: size.limit };
  }
  return rows(groups, best.limit);
}

function rows(groups, limit) {
  let [x, y, row, width] = [0, 0, 0, 1];
  for (const group of groups) {
    if (x > 0 && x + group.width > limit) [x, y, row] = [0, y + row + BETWEEN, 0];
    [group.x, group.y] = [x, y];
    x += group.width + BETWEEN;
    row = Math.max(row, group.height);
    width = Math.max(width, group.x + group.width);
  }
  return { width, height: Math.max(y + row, 1), limit };
}

function measure(group, folded) {
  group.folded = folded;
  if (folded) {
    [group.width, group.height, group.columns] = [FOLDED.width, FOLDED.height, 1];
    return;
  }
  const members = group.members.length;
  group.columns = Math.min(members, Math.ceil(Math.sqrt(members * 0.55)));
  const rows = Math.ceil(members / group.columns);
  group.width = 2 * PAD + group.columns * (CELL.width + CELL.gap) - CELL.gap;
  group.height = HEAD + 2 * PAD + rows * (CELL.height + CELL.gap) - CELL.gap;
}

/** Returns the curve between two cells: ends at their borders and a control point beside the straight line. */
export function curve(from, to) {
  const a = [from.x + from.width / 2, from.y + from.height / 2];
  const b = [to.x + to.width / 2, to.y + to.height / 2];
  const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
  const middle = [(a[0] + b[0]) / 2 - dy * 0.12, (a[1] + b[1]) / 2 + dx * 0.12];
  return { start: border(from, a, middle), middle, end: border(to, b, middle) };
}

/** Returns the point at the border of a cell on the way from its centre to another point. */
function border(cell, [x, y], [tx, ty]) {
  const [dx, dy] = [tx - x, ty - y];
  if (dx === 0 && dy === 0) return [x, y];
  const scale = Math.min(cell.width / 2 / Math.abs(dx || 1e-9), cell.height / 2 / Math.abs(dy || 1e-9), 1);
  return [x + dx * scale, y + dy * scale];
}

/** Returns a point of a curve, at 0 (start) to 1 (end). */
export function at({ start, middle, end }, t) {
  const part = (i) => (1 - t) * (1 - t) * start[i] + 2 * t * (1 - t) * middle[i] + t * t * end[i];
  return [part(0), part(1)];
}
