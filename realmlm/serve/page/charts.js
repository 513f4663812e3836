"use strict";
// Curves over steps, for the page and for what `realmlm report` writes. Texts go in as text nodes only.

const CURVES = {
  loss: "loss", log_p: "log p(y|x)", utility: "retrieval utility, nats", null_share: "share of the null document", top_share: "share of the best passage",
  held: "hidden words among what was retrieved", pointed: "probability of pointing at them",
  "recall@1": "recall@1", "recall@5": "recall@5", right: "masked word right", index_age: "age of the index, steps", "queries/s": "examples per second",
};
const COLOURS = 6; // --c0 … of style.css; a seventh run begins again, its line broken

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const lineClass = (place) => `line c${place % COLOURS}${place < COLOURS ? "" : " again"}`;

// runs: [{ name, place, curves: { loss: [[step, value], …], … } }]. The place chooses the colour, a value of null breaks the line;
// where many rows became one point it is [step, mean, lowest, highest].
function figures(runs) {
  const lines = (key) => runs.map(({ name, place, curves }) => ({ name, place, points: curves[key] ?? [] })).filter(({ points }) => points.some(([, y]) => y !== null));
  return Object.entries(CURVES).map(([key, title]) => [title, lines(key)]).filter(([, found]) => found.length).map(([title, found]) => figure(title, found));
}

function figure(title, lines) {
  const W = 300, H = 165, left = 40, right = 14, top = 12, bottom = 20;
  const points = lines.flatMap((line) => line.points).filter(([, y]) => y !== null);
  const x = scale(points.map(([step]) => step), left, W - right, 5, false), y = scale(points.flatMap(([, ...values]) => values), H - bottom, top, 4, true);
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", class: "curve" });
  svg.setAttribute("aria-label", `${title}: ${lines.map(({ name, points }) => `${name} ${short(points.at(-1)[1])}`).join("; ")}`);
  for (const value of y.ticks) {
    svg.append(drawn("path", { class: "grid", d: `M${left} ${y.at(value)}H${W - right}` }), drawn("text", { x: left - 5, y: +y.at(value) + 3.3, "text-anchor": "end" }, short(value, 5)));
  }
  for (const step of x.ticks) {
    svg.append(drawn("path", { class: "axis", d: `M${x.at(step)} ${H - bottom}v3` }), drawn("text", { x: x.at(step), y: H - 5, "text-anchor": "middle" }, short(step, 5)));
  }
  svg.append(drawn("text", { x: left - 10, y: H - 5, "text-anchor": "end" }, "step"), drawn("path", { class: "axis", d: `M${left} ${top}V${H - bottom}H${W - right}` }));
  for (const { place, points } of lines) svg.append(drawn("path", { class: `band c${place % COLOURS}`, d: range(points, x.at, y.at) }));
  for (const { place, points } of lines) svg.append(drawn("path", { class: lineClass(place), d: path(points, x.at, y.at) }));
  const legend = element("ul", { class: "legend" });
  const values = lines.map(({ name, place }) => {
    const value = element("span", { class: "number" });
    legend.append(element("li", {}, drawn("svg", { viewBox: "0 0 18 8", class: "sample", "aria-hidden": "true" }, drawn("path", { class: lineClass(place), d: "M1 4H17" })), `${name} `, value));
    return value;
  });
  const say = (chosen) => chosen.forEach(([, value], place) => (values[place].textContent = short(value)));
  const last = lines.map((line) => line.points.at(-1));
  say(last);
  pointAt(svg, lines, { x, y, top, low: H - bottom, W, right }, (chosen) => say(chosen ?? last));
  return element("figure", {}, element("figcaption", {}, title), svg, legend);
}

// What lies under the pointer: each line's nearest point is marked and told.
function pointAt(svg, lines, { x, y, top, low, W, right }, tell) {
  const mark = drawn("g", { class: "mark" });
  svg.append(mark);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), step = x.back(((event.clientX - box.left) * W) / box.width);
    const nearest = (points) => points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
    const chosen = lines.map((line) => nearest(line.points)), here = x.at(nearest(chosen)[0]);
    const dots = chosen.map(([at, value], n) => [at, value, lines[n].place]).filter(([, value]) => value !== null);
    const end = here > (W - right) * 0.7;
    mark.replaceChildren(
      drawn("path", { class: "guide", d: `M${here} ${top}V${low}` }),
      drawn("text", { x: +here + (end ? -3 : 3), y: top - 3, "text-anchor": end ? "end" : "start" }, `step ${nearest(chosen)[0].toLocaleString("en")}`),
      ...dots.map(([at, value, place]) => drawn("circle", { class: `dot c${place % COLOURS}`, cx: x.at(at), cy: y.at(value), r: 2.6 })),
    );
    tell(chosen);
  });
  svg.addEventListener("pointerleave", () => {
    mark.replaceChildren();
    tell(null);
  });
}

// Where values lie between two places of the drawing, and round numbers among them to write beside the axis.
function scale(values, from, to, count, round) {
  let low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
  if (low > 0 && low <= 0.7 * high) low = 0;
  else if (low === high) [low, high] = low > 0 ? [0, low] : [low, low + 1];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  if (round) [low, high] = [Math.floor(low / step + 1e-6) * step, Math.ceil(high / step - 1e-6) * step];
  const first = Math.ceil(low / step - 1e-6), last = Math.floor(high / step + 1e-6);
  return {
    ticks: Array.from({ length: last - first + 1 }, (_, n) => (first + n) * step),
    at: (value) => (from + ((to - from) * (value - low)) / (high - low)).toFixed(1),
    back: (place) => low + ((place - from) / (to - from)) * (high - low),
  };
}

function unbroken(points) {
  const stretches = [[]];
  for (const point of points) point[1] === null ? stretches.push([]) : stretches.at(-1).push(point);
  return stretches.filter((stretch) => stretch.length);
}

function path(points, x, y) {
  const line = (stretch) => `M${stretch.map(([step, value]) => `${x(step)},${y(value)}`).join("L")}${stretch.length > 1 ? "" : "h0"}`;
  return unbroken(points).map(line).join("");
}

function range(points, x, y) {
  const around = (stretch) => [...stretch.map(([step, , , high]) => [step, high]), ...stretch.map(([step, , low]) => [step, low]).reverse()];
  return unbroken(points).filter(([point]) => point.length > 2).map((stretch) => `${path(around(stretch), x, y)}Z`).join("");
}

function short(value, precision = 3) {
  if (value === null) return "–";
  const size = Math.abs(value), digits = (n) => (size >= 1e3 && size < 1e4 ? Math.round(n) : Number(n.toPrecision(precision)));
  const [divisor, unit] = size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  const shown = size && size < 1e-4 ? Number(value.toPrecision(2)).toExponential() : `${digits(value / divisor)}${unit}`;
  return shown.replaceAll("-", "−");
}
