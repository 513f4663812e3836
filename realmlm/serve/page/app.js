"use strict";
// One file, nothing loaded from elsewhere. Texts go in as text nodes only.

const $ = (selector, within = document) => within.querySelector(selector);
const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];

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

// --- talking to the service -----------------------------------------------------------------------------------------------------------

async function call(route, options = {}) {
  let response;
  try {
    response = await fetch(route, options);
  } catch {
    throw new Error("The service does not answer. Is it still running?");
  }
  if (response.status === 204) return null;
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Error(body?.error?.message ?? `The service says ${response.status}.`);
  return body;
}

function send(route, method, body) {
  const headers = { "Content-Type": "application/json" };
  const token = $("#token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  return call(route, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
}

async function showHealth() {
  try {
    const health = await call("/health");
    $("#health").textContent = `${health.passages.toLocaleString()} passages`;
  } catch (error) {
    $("#health").textContent = error.message;
  }
}

// --- views ------------------------------------------------------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  const view = tab.getAttribute("aria-controls");
  if (location.hash !== `#${view}`) history.replaceState(null, "", `#${view}`);
  if (view === "knowledge") findPassages();
  watching = view === "training";
  if (watching) showRuns();
}

for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(place + step + tabs.length) % tabs.length];
    next.focus();
    show(next);
  });
}

// --- answers ----------------------------------------------------------------------------------------------------------------------------

const percent = (share) => (share >= 0.9995 ? "100%" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`);

function bars(list, rows) {
  for (const [name, value, colour, title] of rows) {
    const track = element("span", { class: "track", style: "display:block" }, element("span", { style: `width:${100 * Math.min(1, value)}%;background:var(${colour})` }));
    list.append(element("dt", { title }, name), element("dd", {}, track), element("dd", { class: "number" }, percent(value)));
  }
}

function marked(target, text, start, end) {
  if (start === null) target.append(text);
  else {
    const letters = [...text]; // offsets count characters, not the halves JavaScript counts
    const part = (from, to) => letters.slice(from, to).join("");
    target.append(part(0, start), element("mark", {}, part(start, end)), part(end, letters.length));
  }
}

function evidenceCard(evidence, probability) {
  const card = $("#card").content.cloneNode(true).firstElementChild;
  const alone = evidence.passage_id === null;
  card.classList.toggle("null", alone);
  $("h3", card).textContent = alone ? "Without reading anything" : evidence.title || `Passage ${evidence.passage_id}`;
  if (!alone) marked($(".text", card), evidence.passage, evidence.start, evidence.end);
  const share = probability > 0 ? (evidence.retrieval_probability * evidence.reading_probability) / probability : 0;
  bars($(".bars", card), [
    ["chosen", evidence.retrieval_probability, "--prior", "p(z|x): how likely this passage was chosen"],
    ["says so", evidence.reading_probability, "--reading", "p(y|z,x): how likely it gives this answer"],
    ["share", share, "--share", "how much of the answer's probability comes from here"],
  ]);
  return card;
}

function answerHead(result) {
  return [
    element("p", { class: "answer" }, result.answer || "(no answer)"),
    element("p", { class: "note", title: "p(y|x)" }, `${percent(result.probability)} sure`),
  ];
}

function wordTable(masks) {
  return masks.map((mask, number) => {
    const table = element("table", {}, element("caption", { class: "note" }, masks.length > 1 ? `[MASK] ${number + 1}` : "[MASK]"));
    table.append(element("tr", {}, element("th", {}, "with retrieval"), element("th", {}), element("th", {}, "without"), element("th", {})));
    mask.read.forEach((word, row) => {
      const other = mask.unread[row];
      table.append(element("tr", {}, ...[word.words, percent(word.probability), other.words, percent(other.probability)].map((cell) => element("td", {}, cell))));
    });
    return table;
  });
}

function showAnswer(place, result) {
  place.replaceChildren(...answerHead(result));
  if (result.others?.length) {
    const list = element("ul", { class: "others", "aria-label": "Other answers" });
    for (const other of result.others) list.append(element("li", {}, `${other.words} ${percent(other.probability)}`));
    place.append(list);
  }
  if (result.masks) place.append(...wordTable(result.masks));
  place.append(...result.evidence.map((evidence) => evidenceCard(evidence, result.probability)));
  if (result.without_reading) {
    const card = element("article", { class: "card null" }, element("h3", {}, "Without reading anything"));
    card.append(element("p", { class: "text" }, `${result.without_reading.words} (${percent(result.without_reading.probability)})`));
    place.append(card);
  }
}

for (const form of document.querySelectorAll("form[data-route]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const place = $(".result", form.parentElement), button = $("button", form);
    const asked = Object.fromEntries(new FormData(form));
    asked.read = Number(asked.read);
    if (form.dataset.route === "/ask") asked.without_reading = true;
    button.disabled = true;
    const waiting = setTimeout(() => place.replaceChildren(element("p", { class: "note" }, "Reading …")), 150);
    try {
      const result = await send(form.dataset.route, "POST", asked);
      clearTimeout(waiting);
      showAnswer(place, result);
    } catch (error) {
      clearTimeout(waiting);
      place.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
    } finally {
      button.disabled = false;
    }
  });
}

// --- knowledge --------------------------------------------------------------------------------------------------------------------------

async function findPassages() {
  try {
    const found = await call(`/passages?${new URLSearchParams({ text: $("#find-text").value, limit: 30 })}`);
    const none = element("p", { class: "note" }, "No passage has that in it.");
    $("#found").replaceChildren(...(found.passages.length ? found.passages.map(passageCard) : [none]));
    showHealth();
  } catch (error) {
    say(error.message, true);
  }
}

function say(text, wrong = false) {
  $("#said").className = wrong ? "wrong" : "note";
  $("#said").textContent = text;
}

function passageCard(passage) {
  const card = element("article", { class: "card" });
  const read = () => {
    card.replaceChildren(
      element("h3", {}, `${passage.title || "Passage"} (${passage.id})`),
      element("p", { class: "text" }, passage.text),
      element("button", { onclick: edit }, "Edit"),
      element("button", { onclick: remove }, "Remove"),
    );
  };
  const edit = () => {
    const title = element("input", { "aria-label": "Title", maxlength: 500 }), text = element("textarea", { "aria-label": "Text", rows: 5, maxlength: 20000 });
    title.value = passage.title;
    text.value = passage.text;
    const keep = async () => {
      try {
        passage = await send(`/passages/${passage.id}`, "PUT", { title: title.value, text: text.value });
        say(`Passage ${passage.id} is changed; ask again and the answer follows.`);
        read();
      } catch (error) {
        say(error.message, true);
      }
    };
    card.replaceChildren(title, text, element("button", { onclick: keep }, "Keep"), element("button", { onclick: read }, "Leave as it was"));
    text.focus();
  };
  const remove = async () => {
    try {
      await send(`/passages/${passage.id}`, "DELETE");
      say(`Passage ${passage.id} is removed.`);
      card.remove();
      showHealth();
    } catch (error) {
      say(error.message, true);
    }
  };
  read();
  return card;
}

$("#find").addEventListener("submit", (event) => {
  event.preventDefault();
  findPassages();
});
$("#add").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const added = await send("/passages", "POST", { title: $("#add-title").value, text: $("#add-text").value });
    say(`Added as ${added.map((passage) => passage.id).join(", ")}; ask again and the answer follows.`);
    event.target.reset();
    $("#found").prepend(...added.map(passageCard));
    showHealth();
  } catch (error) {
    say(error.message, true);
  }
});

// --- training ---------------------------------------------------------------------------------------------------------------------------

const CURVES = {
  loss: "loss", log_p: "log p(y|x)", utility: "retrieval utility, nats", null_share: "share of the null document", top_share: "share of the best passage",
  "recall@1": "recall@1", right: "masked word right", index_age: "age of the index, steps", "queries/s": "examples a second",
};
let watching = false;
const chosen = new Map(); // run -> rows

async function showRuns() {
  try {
    const runs = await call("/runs");
    const box = $("#runs");
    if (!runs.length) box.replaceChildren(element("legend", {}, "Runs"), element("p", { class: "note" }, "Start the service with --runs FOLDER to watch training here."));
    for (const run of runs) {
      if (document.getElementById(`run-${run}`)) continue;
      const check = element("input", { type: "checkbox", id: `run-${run}` });
      check.addEventListener("change", () => {
        if (check.checked) chosen.set(run, []);
        else chosen.delete(run);
        refreshRuns();
      });
      box.append(element("label", { for: `run-${run}` }, check, element("span", { class: "swatch", style: `background:var(${colourOf(run, runs)})` }), run));
    }
    refreshRuns.all = runs;
    refreshRuns();
  } catch (error) {
    $("#curves").replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
  }
}

const colourOf = (run, runs) => COLOURS[runs.indexOf(run) % COLOURS.length];

async function refreshRuns() {
  for (const run of chosen.keys()) chosen.set(run, await call(`/runs/${encodeURIComponent(run)}`).catch(() => chosen.get(run)));
  const shown = Object.entries(CURVES).filter(([key]) => [...chosen.values()].some((rows) => rows.some((row) => typeof row[key] === "number")));
  $("#curves").replaceChildren(...shown.map(([key, title]) => curve(key, title)));
}

function curve(key, title) {
  const W = 300, H = 150, left = 38, bottom = 18, top = 8;
  const lines = [...chosen].map(([run, rows]) => [run, rows.filter((row) => typeof row[key] === "number").map((row) => [row.step, row[key]])]);
  const points = lines.flatMap(([, line]) => line);
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1), y0 = Math.min(...ys), y1 = Math.max(...ys) === y0 ? y0 + 1 : Math.max(...ys);
  const at = ([x, y]) => `${(left + ((W - left - 6) * (x - x0)) / (x1 - x0)).toFixed(1)},${(top + (H - top - bottom) * (1 - (y - y0) / (y1 - y0))).toFixed(1)}`;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const draw = (name, attributes, text = "") => {
    const made = document.createElementNS(svg.namespaceURI, name);
    for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v);
    made.textContent = text;
    svg.append(made);
  };
  svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}: ${lines.map(([run, line]) => `${run} ${line.length ? line.at(-1)[1] : "nothing yet"}`).join("; ")}`);
  draw("path", { class: "axis", fill: "none", d: `M${left} ${top}V${H - bottom}H${W - 6}` });
  const short = (n) => (Math.abs(n) >= 1000 ? n.toFixed(0) : n && Math.abs(n) < 0.01 ? n.toExponential(0) : Number(n.toPrecision(3)).toString());
  draw("text", { x: left - 4, y: top + 8, "text-anchor": "end" }, short(y1));
  draw("text", { x: left - 4, y: H - bottom, "text-anchor": "end" }, short(y0));
  draw("text", { x: left, y: H - 4 }, short(x0));
  draw("text", { x: W - 6, y: H - 4, "text-anchor": "end" }, `step ${short(x1)}`);
  for (const [run, line] of lines) {
    const d = line.map((point, n) => `${n ? "L" : "M"}${at(point)}`).join("");
    draw("path", { d, fill: "none", stroke: `var(${colourOf(run, refreshRuns.all)})`, "stroke-width": 1.6 });
  }
  const figure = element("figure", {}, element("figcaption", {}, title));
  figure.prepend(svg);
  return figure;
}

setInterval(() => watching && chosen.size && refreshRuns(), 3000);

// --- beginning --------------------------------------------------------------------------------------------------------------------------

showHealth();
show(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);
