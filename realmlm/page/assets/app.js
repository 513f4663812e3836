"use strict";
// With charts.js, nothing loaded from elsewhere. Texts go in as text nodes only.

const $ = (selector, within = document) => within.querySelector(selector);

// --- talking to the service --------------------------------------------------------------------------------

async function call(route, options = {}) {
  const headers = { ...options.headers };
  const token = $("#token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(route, { ...options, headers });
  } catch {
    throw new Error("The service is not answering. Is it still running?");
  }
  if (response.status === 204) return null;
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const message = body?.error?.message ?? `The service answered with status ${response.status}.`;
  throw Object.assign(new Error(message), { status: response.status, progress: body?.error?.progress });
}

function send(route, method, body) {
  const headers = { "Content-Type": "application/json" };
  return call(route, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
}

let isReady = false;
let setReady;
const ready = new Promise((resolve) => { // until then questions wait: it is starting, or wants its token
  setReady = () => {
    isReady = true;
    resolve();
  };
});

async function showHealth() {
  try {
    const health = await call("/health");
    const passages = `${health.passages.toLocaleString()} passage${health.passages === 1 ? "" : "s"}`;
    $("#health").textContent = `${passages}${health.up_to_date ? "" : ", not up to date"}`;
    $("#loaded").textContent = `Answers come from ${passages} of ${health.sources.join(", ")}.`;
    $("#knowledge").classList.toggle("editable", health.editable);
    $("#why").hidden = health.editable;
    $("#door").hidden = $("#starting").hidden = true;
    setReady();
  } catch (error) {
    const starting = error.status === 503;
    $("#health").textContent = starting ? "" : error.message;
    if (error.status === 401) askForToken();
    else if (!starting) setReady(); // a question will say what is wrong
    if (starting) showProgress(error);
  }
}

function showProgress({ message, progress }) {
  $("#starting").hidden = false;
  $("#starting p").textContent = message;
  const bar = $("#starting progress");
  if (progress === undefined) bar.removeAttribute("value"); // how far it is, is not known
  else bar.value = progress;
  setTimeout(showHealth, 1000);
}

function askForToken() {
  if (!$("#door").hidden) return;
  $("#door").hidden = false;
  $("#door-token").focus();
}

$("#door").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("#token").value = $("#door-token").value;
  event.target.reset();
  await showHealth();
  if ($("#door").hidden) restore();
});

// --- views and the address ---------------------------------------------------------------------------------

// ?q=QUESTION is what was asked, ?passage=ID the passage shown where it stands, #VIEW the view.
const tabs = [...document.querySelectorAll("[role=tab]")];
const inAddress = (name) => new URLSearchParams(location.search).get(name);

// The address with some of it changed; null takes a parameter out.
function address(changes, view = location.hash.slice(1)) {
  const parameters = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes))
    if (value === null) parameters.delete(name);
    else parameters.set(name, value);
  const query = `${parameters}` ? `?${parameters}` : location.pathname;
  return view ? `${query}#${view}` : query;
}

// A link that changes the address and what is shown, not the page; with a key held down, or another button,
// the browser does with it what it does.
function link(to, ...words) {
  const follow = (event) => {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    history.pushState(null, "", to);
    restore();
    $("main > section:not([hidden]) .result")?.focus({ preventScroll: true }); // the link may be gone
  };
  return element("a", { href: to, onclick: follow }, ...words);
}

function show(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  const view = tab.getAttribute("aria-controls");
  if (location.hash !== `#${view}`) history.replaceState(null, "", `#${view}`);
  if (view === "knowledge") showKnowledge();
  watching = view === "training";
  if (watching) showRuns();
}

// Show what the address names: at the beginning, and when it changes.
function restore() {
  show(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);
  const question = inAddress("q") ?? "";
  if (question === answered) return;
  $("#question").value = question;
  if (question.trim()) request($("#ask form"));
  else showStart();
}

addEventListener("popstate", restore);

for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault(); // Home and End would scroll
    const next = tabs.at(to % tabs.length);
    next.focus();
    show(next);
  });
}

// --- answers -----------------------------------------------------------------------------------------------

const LITTLE = 0.01; // what is shown folded, or not at all

function percent(share) {
  if (share >= 0.9995) return "100%";
  return `${(100 * share).toFixed(share < 0.1 || share >= 0.99 ? 1 : 0)}%`;
}

// rows: [words, formula, value, colour]
function bars(list, rows) {
  for (const [name, formula, value, colour] of rows) {
    const filled = element("span", { style: `width:${100 * Math.min(1, value)}%;background:var(${colour})` });
    const track = element("span", { class: "track", style: "display:block" }, filled);
    const number = element("dd", { class: "number" }, percent(value));
    const words = element("span", { title: formula }, name);
    list.append(element("dt", {}, words), element("dd", {}, track), number);
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

function origin({ id, file }) {
  const place = file === "service" ? "written here" : file || "where it stands";
  return link(address({ passage: id }, "knowledge"), place);
}

function shareOf(evidence, probability) {
  return probability > 0 ? (evidence.retrieval_probability * evidence.reading_probability) / probability : 0;
}

function evidenceCard(evidence, probability) {
  const card = $("#card").content.cloneNode(true).firstElementChild;
  const alone = evidence.passage_id === null;
  card.classList.toggle("null", alone);
  const title = evidence.title || `Passage ${evidence.passage_id}`;
  $("h3", card).textContent = alone ? "Without reading anything" : title;
  if (!alone) $(".file", card).append(origin({ id: evidence.passage_id, file: evidence.file }));
  if (!alone) marked($(".text", card), evidence.passage, evidence.start, evidence.end);
  bars($(".bars", card), [
    ["fits the question", "p(z|x)", evidence.retrieval_probability, "--prior"],
    ["says this answer", "p(y|z,x)", evidence.reading_probability, "--reading"],
    ["part in the answer", "p(z|x) · p(y|z,x) / p(y|x)", shareOf(evidence, probability), "--share"],
  ]);
  return card;
}

function answerHead(result) {
  const how = element("p", { class: "note" });
  if (result.sure) {
    const often = `Of answers like this, ${percent(result.confidence)} were right when the model was calibrated`;
    how.append(element("span", { class: "sure", title: often }, result.sure));
  }
  const formula = "p(y|x) = Σ p(z|x) · p(y|z,x), over the passages z that were read";
  const words = `probability ${percent(result.probability)}`;
  how.append(element("span", { class: result.sure ? "p numeric" : "p", title: formula }, words));
  if (result.caution) how.append(element("span", { class: "caution" }, result.caution));
  return [element("p", { class: "answer" }, result.answer || "(no answer)"), how];
}

// The cards; passages that hardly count are folded into one line, a null document that hardly counts is left
// out.
function evidenceCards({ evidence, probability }) {
  const counts = (one) => one.retrieval_probability >= LITTLE || shareOf(one, probability) >= LITTLE;
  const cards = (some) => some.map((one) => evidenceCard(one, probability));
  const rest = evidence.filter((one) => !counts(one) && one.passage_id !== null);
  const line = rest.length === 1 ? "1 more passage was read" : `${rest.length} more passages were read`;
  const folded = rest.length ? [element("details", {}, element("summary", {}, line), ...cards(rest))] : [];
  return [...cards(evidence.filter(counts)), ...folded];
}

function wordTable(masks) {
  const line = (kind, cells) => element("tr", {}, ...cells.map((cell) => element(kind, {}, cell)));
  const cells = ({ words, probability }) => [words, percent(probability)];
  return masks.map((mask, number) => {
    const name = masks.length > 1 ? `[MASK] ${number + 1}` : "[MASK]";
    return element(
      "table",
      { class: "masks" },
      element("caption", { class: "note" }, name),
      line("th", ["with retrieval", "", "without", ""]),
      ...mask.read.map((word, row) => line("td", [...cells(word), ...cells(mask.unread[row])])),
    );
  });
}

// The passage with the answer marked in it, the answer and how sure it is, then what else was read.
function showAnswer(place, result) {
  const cards = evidenceCards(result);
  const first = result.masks || !cards.length ? [] : [cards.shift()];
  place.replaceChildren(...first, ...answerHead(result));
  const others = (result.others ?? []).filter(({ probability }) => probability >= 0.0005);
  if (others.length) {
    const list = element("ul", { class: "others", "aria-label": "Other answers" });
    for (const { words, probability } of others) {
      const share = element("span", { class: "numeric" }, ` ${percent(probability)}`);
      list.append(element("li", {}, words, share));
    }
    place.append(list);
  }
  if (result.masks) place.append(...wordTable(result.masks));
  place.append(...cards);
  if (result.without_reading?.probability >= LITTLE) {
    const card = element("article", { class: "card null numeric" });
    card.append(element("h3", {}, "Without reading anything"));
    const { words, probability } = result.without_reading;
    card.append(element("p", { class: "text" }, `${words} (${percent(probability)})`));
    place.append(card);
  }
  if (result.evidence.length) place.append($("#words").content.cloneNode(true));
}

let answered = null; // the question that is shown, or being answered
const turns = new Map(); // form -> its requests so far: what comes when something else was asked is not shown

function nextTurn(form) {
  turns.set(form, (turns.get(form) ?? 0) + 1);
  return turns.get(form);
}

async function request(form) {
  const turn = nextTurn(form);
  const place = $(".result", form.parentElement);
  const button = $("button", form);
  const asked = Object.fromEntries(new FormData(form));
  asked.read = Number(asked.read);
  if (asked.question) {
    answered = asked.question;
    asked.without_reading = true;
    document.title = `${asked.question} · realmlm`;
    $("#start").hidden = true;
  }
  button.disabled = true;
  const doing = isReady ? "Reading …" : "This will be answered as soon as the service is ready.";
  const reading = element("p", { class: "note" }, doing);
  const waiting = setTimeout(() => place.replaceChildren(reading), 150);
  let shown;
  try {
    await ready;
    const result = await send(form.dataset.route, "POST", asked);
    shown = () => {
      showAnswer(place, result);
      if (asked.question) remember(asked.question);
      showHealth();
    };
  } catch (error) {
    shown = () => place.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
  }
  clearTimeout(waiting);
  if (turn !== turns.get(form)) return;
  shown();
  button.disabled = false;
}

for (const form of document.querySelectorAll("form[data-route]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { question } = Object.fromEntries(new FormData(form));
    if (question && question !== inAddress("q")) history.pushState(null, "", address({ q: question }));
    request(form);
  });
}

// --- the start: what is loaded, what can be asked, what was asked ------------------------------------------

function showStart() {
  nextTurn($("#ask form"));
  answered = "";
  document.title = "realmlm";
  $("#ask form button").disabled = false;
  $("#ask .result").replaceChildren();
  $("#start").hidden = false;
  offerQuestions();
}

const questionLink = (question) =>
  element("li", {}, link(address({ q: question, passage: null }, "ask"), question));

async function offerQuestions() {
  await ready;
  if ($("#start").hidden) return;
  const { made, questions } = await call("/suggestions").catch(() => ({ made: true, questions: [] }));
  $("#offered").hidden = !questions.length;
  $("#offered ul").replaceChildren(...questions.map(questionLink));
  if (!made) setTimeout(offerQuestions, 1000);
}

const MOST_ASKED = 8; // questions that are remembered, in this browser alone

function askedBefore() {
  try {
    const kept = JSON.parse(localStorage.getItem("asked"));
    return Array.isArray(kept) ? kept.filter((one) => typeof one === "string") : [];
  } catch {
    return []; // the browser keeps nothing, or something else
  }
}

function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // a browser that keeps nothing
  }
}

function remember(question) {
  keep("asked", [question, ...askedBefore().filter((one) => one !== question)].slice(0, MOST_ASKED));
  showAsked();
}

function showAsked() {
  const questions = askedBefore();
  $("#asked").hidden = !questions.length;
  $("#asked ul").replaceChildren(...questions.map(questionLink));
}

$("#asked button").addEventListener("click", () => {
  keep("asked", null);
  showAsked();
  $("#question").focus();
});

function showNumbers(on) {
  document.body.classList.toggle("numbers", on);
  for (const box of document.querySelectorAll(".switch")) box.checked = on;
}

for (const box of document.querySelectorAll(".switch"))
  box.addEventListener("change", () => {
    showNumbers(box.checked);
    keep("numbers", box.checked || null);
  });

// --- knowledge ---------------------------------------------------------------------------------------------

const SECONDS_TO_THINK = 6; // before a button that asks "Really?" asks no more

async function showKnowledge() {
  const passage = inAddress("passage");
  $("#place").hidden = passage === null;
  await (passage === null ? findPassages() : showPlace(passage));
}

// A passage between those before and after it in its file.
async function showPlace(number) {
  try {
    const passages = await call(`/passages/${encodeURIComponent(number)}/around`);
    const cards = passages.map(passageCard);
    const here = passages.findIndex((passage) => String(passage.id) === number);
    const file = passages[here].file;
    const name = file === "service" ? "what was written here" : file || "this corpus";
    const all = link(address({ passage: null }), "All passages");
    $("#place").replaceChildren(`Passage ${number} where it stands in ${name}. `, all);
    cards[here].classList.add("here");
    cards[here].tabIndex = -1;
    $("#found").replaceChildren(...cards);
    cards[here].scrollIntoView({ block: "center" });
    cards[here].focus({ preventScroll: true });
  } catch (error) {
    $("#place").hidden = true;
    $("#found").replaceChildren();
    complain(error);
  }
}

async function findPassages() {
  try {
    const found = await call(`/passages?${new URLSearchParams({ text: $("#find-text").value, limit: 30 })}`);
    const none = element("p", { class: "note" }, "No passage contains that.");
    $("#found").replaceChildren(...(found.passages.length ? found.passages.map(passageCard) : [none]));
    showHealth();
  } catch (error) {
    complain(error);
  }
}

function complain(error) {
  const needed = error.status === 401;
  say(needed ? "Enter the service's token below" : error.message, true);
  if (!needed) return;
  $("#secret").open = true;
  $("#token").focus();
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
      element("p", { class: "file note" }, origin(passage)),
      element("p", { class: "text" }, passage.text),
      element("button", { class: "change", onclick: edit }, "Edit"),
      removeButton(),
    );
  };
  const back = () => {
    read();
    $("button", card).focus();
  };
  const edit = () => {
    const title = element("input", { "aria-label": "Title", maxlength: 500 });
    const text = element("textarea", { "aria-label": "Text", rows: 5, maxlength: 20000 });
    title.value = passage.title;
    text.value = passage.text;
    const save = async () => {
      try {
        passage = await send(`/passages/${passage.id}`, "PUT", { title: title.value, text: text.value });
        say(`Passage ${passage.id} was changed; ask again for a new answer.`);
        back();
      } catch (error) {
        complain(error);
      }
    };
    const cancel = element("button", { onclick: back }, "Cancel");
    card.replaceChildren(title, text, element("button", { onclick: save }, "Save"), cancel);
    text.focus();
  };
  const removeButton = () => {
    let sure; // while it asks
    const calm = () => {
      clearTimeout(sure);
      sure = undefined;
      button.textContent = "Remove";
      button.classList.remove("sure");
    };
    const press = (event) => {
      if (event.detail > 1) return; // a double click is no second thought
      if (sure) {
        calm();
        remove();
        return;
      }
      sure = setTimeout(calm, SECONDS_TO_THINK * 1000);
      button.textContent = "Really remove?";
      button.classList.add("sure");
      button.focus(); // some browsers focus no button that is clicked
    };
    const button = element("button", { class: "change", onclick: press, onblur: calm }, "Remove");
    return button;
  };
  const remove = async () => {
    try {
      await send(`/passages/${passage.id}`, "DELETE");
      say(`Passage ${passage.id} was removed.`);
      const next = card.nextElementSibling ?? $("#find");
      card.remove();
      $("button", next).focus();
      showHealth();
    } catch (error) {
      complain(error);
    }
  };
  read();
  return card;
}

$("#find").addEventListener("submit", (event) => {
  event.preventDefault();
  if (inAddress("passage") !== null) history.pushState(null, "", address({ passage: null }));
  showKnowledge();
});
$("#add").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const written = { title: $("#add-title").value, text: $("#add-text").value };
    const added = await send("/passages", "POST", written);
    say(`Added as ${added.map((passage) => passage.id).join(", ")}; ask again for a new answer.`);
    event.target.reset();
    $("#found").prepend(...added.map(passageCard));
    showHealth();
  } catch (error) {
    complain(error);
  }
});

// --- training ----------------------------------------------------------------------------------------------

let watching = false;
let listed = []; // runs; the place chooses the colour
const chosen = new Map(); // run -> rows

async function showRuns() {
  try {
    const runs = await call("/runs");
    if (!runs.length || runs.join("\n") !== listed.join("\n")) listRuns(runs);
    refreshRuns();
  } catch (error) {
    const wrong = element("p", { class: "wrong", role: "alert" }, error.message);
    if (!$("#curves figure")) $("#curves").replaceChildren(wrong);
  }
}

function listRuns(runs) {
  for (const run of chosen.keys())
    if (!runs.includes(run)) chosen.delete(run); // gone, or named more fully beside another of its name
  if (!listed.length && runs.length <= COLOURS)
    for (const run of runs) chosen.set(run, []); // a few are shown at once
  const labels = runs.map((run, place) => {
    const check = element("input", { type: "checkbox", id: `run-${run}` });
    check.checked = chosen.has(run);
    check.addEventListener("change", () => {
      if (check.checked) chosen.set(run, []);
      else chosen.delete(run);
      refreshRuns();
    });
    const colour = `background:var(--c${place % COLOURS})`;
    const swatch = element("span", { class: "swatch", style: colour });
    return element("label", { for: `run-${run}` }, check, swatch, run);
  });
  const how = "Start the service with --runs FOLDER to watch training here.";
  const none = element("p", { class: "note" }, how);
  $("#runs").replaceChildren(element("legend", {}, "Runs"), ...(runs.length ? labels : [none]));
  listed = runs;
}

async function refreshRuns() {
  for (const run of chosen.keys()) {
    const rows = await call(`/runs/${encodeURIComponent(run)}`).catch(() => chosen.get(run));
    chosen.set(run, rows);
  }
  const place = (run) => listed.indexOf(run);
  const runs = [...chosen].map(([run, rows]) => ({ name: run, place: place(run), curves: curvesOf(rows) }));
  $("#curves").replaceChildren(...figures(runs));
}

function curvesOf(rows) {
  const points = (key) =>
    rows.filter((row) => typeof row[key] === "number").map((row) => [row.step, row[key]]);
  return Object.fromEntries(Object.keys(CURVES).map((key) => [key, points(key)]));
}

setInterval(() => watching && showRuns(), 3000);

// --- beginning ---------------------------------------------------------------------------------------------

try {
  showNumbers(localStorage.getItem("numbers") === "true");
} catch {
  // a browser that keeps nothing
}
showAsked();
showHealth();
restore();
// When all is loaded: until then browsers take the focus to what the address's fragment names, and pass over
// `autofocus`.
addEventListener("load", () => setTimeout(() => $("main > section:not([hidden]) form input")?.focus()));
