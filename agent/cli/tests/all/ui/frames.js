// Moves and zooms the map for some seconds, as a user with keys and a wheel. Then `window.frames` has the times between
// frames and the long tasks of the page, in milliseconds, the longest first.
const kind = arguments[0];
const FRAMES = 300;
const canvas = document.querySelector("canvas");
const [frames, tasks] = [[], []];
const observer = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((entry) => Math.round(entry.duration))));
observer.observe({ type: "longtask" });
const key = (name) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const wheel = (deltaY) => canvas.dispatchEvent(new WheelEvent("wheel", { deltaY, clientX: 500, clientY: 400, bubbles: true, cancelable: true }));
const point = (i) => canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: 200 + i * 2, clientY: 300 + i, bubbles: true }));
// Each second has a rest, after which the map is painted anew.
const moves = {
  still: () => {},
  zoom: (i) => i % 60 < 30 && wheel(i % 120 < 60 ? -60 : 60),
  move: (i) => i % 60 < 30 && key(i % 120 < 60 ? "ArrowLeft" : "ArrowRight"),
  "whole map": (i) => i % 60 === 0 && key(i % 120 < 60 ? "+" : "0"),
  pointer: (i) => point(i),
};
const descending = (times) => times.sort((a, b) => b - a).map(Math.round);
let [count, last] = [0, performance.now()];
const step = (now) => {
  frames.push(now - last);
  last = now;
  moves[kind](count);
  count += 1;
  if (count < FRAMES) {
    requestAnimationFrame(step);
    return;
  }
  setTimeout(() => {
    observer.disconnect();
    const sorted = descending(frames);
    window.frames = { median: sorted[FRAMES / 2], worst: sorted.slice(0, 5), tasks: descending(tasks).slice(0, 5) };
  }, 300);
};
window.frames = null;
requestAnimationFrame(step);
