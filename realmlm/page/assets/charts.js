"use strict";
// Curves over steps, for the page and for what `realmlm report` writes. Texts go in as text nodes only.

const CURVES = {
  loss: "loss",
  log_p: "log p(y|x)",
  utility: "retrieval utility, nats",
  null_share: "share of the null document",
  top_share: "share of the best passage",
  held: "hidden words among what was retrieved",
  pointed: "probability of pointing at them",
  "recall@1": "recall@1",
  "recall@5": "recall@5",
  right: "masked word right",
  index_age: "age of the index, steps",
  stood_still: "training stood still for the index, seconds",
  "queries/s": "examples per second",
};
const COLOURS = 6; // --c0 … of style.css; a seventh run begins again, its line broken

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key === "style") made.style.cssText = value; // the attribute is not allowed by the page's policy
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

// runs: [{ name, place, curves: { loss: [[step, value], …], … } }]. The place chooses the colour, a value of
// null breaks the line; where many rows became one point it is [step, mean, lowest, highest].
function figures(runs) {
  const lines = (key) =>
    runs
      .map(({ name, place, curves }) => ({ name, place, points: curves[key] ?? [] }))
      .filter(({ points }) => points.some(([, y]) => y !== null));
  return Object.entries(CURVES)
    .map(([key, title]) => [title, lines(key)])
    .filter(([, found]) => found.length)
    .map(([title, found]) => figure(title, found));
}

function figure(title, lines) {
  const [W, H] = [300, 165];
  const [left, right, top, low] = [40, W - 14, 12, H - 20]; // the edges of what the axes enclose
  const points = lines.flatMap((line) => line.points).filter(([, y]) => y !== null);
  const x = scale(points.map(([step]) => step), left, right, 5, false);
  const y = scale(points.flatMap(([, ...values]) => values), low, top, 4, true);
  const last = lines.map((line) => line.points.at(-1));
  const told = lines.map(({ name }, number) => `${name} ${short(last[number][1])}`).join("; ");
  const label = `${title}: ${told}`;
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", class: "curve", "aria-label": label });
  const stroke = (kind, d) => svg.append(drawn("path", { class: kind, d }));
  const write = (x, y, anchor, text) => svg.append(drawn("text", { x, y, "text-anchor": anchor }, text));
  for (const value of y.ticks) {
    stroke("grid", `M${left} ${y.at(value)}H${right}`);
    write(left - 5, +y.at(value) + 3.3, "end", short(value, 5));
  }
  for (const step of x.ticks) {
    stroke("axis", `M${x.at(step)} ${low}v3`);
    write(x.at(step), H - 5, "middle", short(step, 5));
  }
  write(left - 10, H - 5, "end", "step");
  stroke("axis", `M${left} ${top}V${low}H${right}`);
  for (const { place, points } of lines) stroke(`band c${place % COLOURS}`, range(points, x.at, y.at));
  for (const { place, points } of lines) stroke(lineClass(place), path(points, x.at, y.at));
  const legend = element("ul", { class: "legend" });
  const values = lines.map(({ name, place }) => {
    const value = element("span", { class: "number" });
    const sample = drawn("svg", { viewBox: "0 0 18 8", class: "sample", "aria-hidden": "true" });
    sample.append(drawn("path", { class: lineClass(place), d: "M1 4H17" }));
    legend.append(element("li", {}, sample, `${name} `, value));
    return value;
  });
  const say = (chosen) => chosen.forEach(([, value], place) => (values[place].textContent = short(value)));
  say(last);
  pointAt(svg, lines, { x, y, top, low, W, right }, (chosen) => say(chosen ?? last));
  return element("figure", {}, element("figcaption", {}, title), svg, legend);
}

// What lies under the pointer: each line's nearest point is marked and told.
function pointAt(svg, lines, { x, y, top, low, W, right }, tell) {
  const mark = drawn("g", { class: "mark" });
  svg.append(mark);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const step = x.back(((event.clientX - box.left) * W) / box.width);
    const away = ([at]) => Math.abs(at - step);
    const nearest = (points) => points.reduce((best, point) => (away(point) < away(best) ? point : best));
    const chosen = lines.map((line) => nearest(line.points));
    const [shown] = nearest(chosen);
    const here = x.at(shown);
    const [beside, anchor] = here > right * 0.7 ? [-3, "end"] : [3, "start"];
    const said = `step ${shown.toLocaleString("en")}`;
    mark.replaceChildren(
      drawn("path", { class: "guide", d: `M${here} ${top}V${low}` }),
      drawn("text", { x: +here + beside, y: top - 3, "text-anchor": anchor }, said),
    );
    chosen.forEach(([at, value], number) => {
      if (value === null) return;
      const colour = `dot c${lines[number].place % COLOURS}`;
      mark.append(drawn("circle", { class: colour, cx: x.at(at), cy: y.at(value), r: 2.6 }));
    });
    tell(chosen);
  });
  svg.addEventListener("pointerleave", () => {
    mark.replaceChildren();
    tell(null);
  });
}

// Where values lie between two places of the drawing, and round numbers among them to write beside the axis.
function scale(values, from, to, count, round) {
  let low = values.reduce((a, b) => Math.min(a, b));
  let high = values.reduce((a, b) => Math.max(a, b));
  if (low > 0 && low <= 0.7 * high) low = 0;
  else if (low === high) [low, high] = low > 0 ? [0, low] : [low, low + 1];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  if (round) [low, high] = [Math.floor(low / step + 1e-6) * step, Math.ceil(high / step - 1e-6) * step];
  const first = Math.ceil(low / step - 1e-6);
  const last = Math.floor(high / step + 1e-6);
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
  const corners = (stretch) => stretch.map(([step, value]) => `${x(step)},${y(value)}`).join("L");
  const line = (stretch) => `M${corners(stretch)}${stretch.length > 1 ? "" : "h0"}`; // h0: one point is a dot
  return unbroken(points).map(line).join("");
}

function range(points, x, y) {
  const upper = (stretch) => stretch.map(([step, , , high]) => [step, high]);
  const lower = (stretch) => stretch.map(([step, , low]) => [step, low]);
  const around = (stretch) => [...upper(stretch), ...lower(stretch).reverse()];
  const stretches = unbroken(points).filter(([point]) => point.length > 2);
  return stretches.map((stretch) => `${path(around(stretch), x, y)}Z`).join("");
}

function short(value, precision = 3) {
  if (value === null) return "–";
  const size = Math.abs(value);
  const [divisor, unit] = size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  const scaled = value / divisor;
  let shown = `${Number(scaled.toPrecision(precision))}${unit}`;
  if (size && size < 1e-4) shown = Number(value.toPrecision(2)).toExponential();
  else if (size >= 1e3 && size < 1e4) shown = `${Math.round(value)}`;
  return shown.replaceAll("-", "−");
}
