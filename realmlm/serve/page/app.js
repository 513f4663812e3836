"use strict";
// With charts.js, nothing loaded from elsewhere. Texts go in as text nodes only.

const $ = (selector, within = document) => within.querySelector(selector);

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
    $("#knowledge").classList.toggle("editable", health.editable);
    $("#why").hidden = health.editable;
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

const percent = (share) => (share >= 0.9995 ? "100%" : `${(100 * share).toFixed(share < 0.1 || share >= 0.99 ? 1 : 0)}%`);

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
  $(".file", card).textContent = alone ? "" : evidence.file;
  if (!alone) marked($(".text", card), evidence.passage, evidence.start, evidence.end);
  const share = probability > 0 ? (evidence.retrieval_probability * evidence.reading_probability) / probability : 0;
  bars($(".bars", card), [
    ["chosen", evidence.retrieval_probability, "--prior", "p(z|x): how much this passage weighs"],
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
    for (const other of result.others.filter(({ probability }) => probability >= 0.0005)) list.append(element("li", {}, `${other.words} ${percent(other.probability)}`));
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
      element("button", { class: "change", onclick: edit }, "Edit"),
      element("button", { class: "change", onclick: remove }, "Remove"),
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

let watching = false;
let listed = []; // runs; the place chooses the colour
const chosen = new Map(); // run -> rows

async function showRuns() {
  try {
    const runs = await call("/runs");
    if (!runs.length || runs.join("\n") !== listed.join("\n")) listRuns(runs);
    refreshRuns();
  } catch (error) {
    if (!$("#curves figure")) $("#curves").replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
  }
}

function listRuns(runs) {
  for (const run of chosen.keys()) if (!runs.includes(run)) chosen.delete(run); // gone, or named more fully beside another of its name
  if (!listed.length && runs.length <= COLOURS) for (const run of runs) chosen.set(run, []); // a few are shown at once
  const labels = runs.map((run, place) => {
    const check = element("input", { type: "checkbox", id: `run-${run}` });
    check.checked = chosen.has(run);
    check.addEventListener("change", () => {
      if (check.checked) chosen.set(run, []);
      else chosen.delete(run);
      refreshRuns();
    });
    return element("label", { for: `run-${run}` }, check, element("span", { class: "swatch", style: `background:var(--c${place % COLOURS})` }), run);
  });
  const none = element("p", { class: "note" }, "Start the service with --runs FOLDER to watch training here.");
  $("#runs").replaceChildren(element("legend", {}, "Runs"), ...(runs.length ? labels : [none]));
  listed = runs;
}

async function refreshRuns() {
  for (const run of chosen.keys()) chosen.set(run, await call(`/runs/${encodeURIComponent(run)}`).catch(() => chosen.get(run)));
  const runs = [...chosen].map(([run, rows]) => ({ name: run, place: listed.indexOf(run), curves: curvesOf(rows) }));
  $("#curves").replaceChildren(...figures(runs));
}

function curvesOf(rows) {
  const points = (key) => rows.filter((row) => typeof row[key] === "number").map((row) => [row.step, row[key]]);
  return Object.fromEntries(Object.keys(CURVES).map((key) => [key, points(key)]));
}

setInterval(() => watching && showRuns(), 3000);

// --- beginning --------------------------------------------------------------------------------------------------------------------------

showHealth();
show(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);
