// The page of hybridlab. The server decides what is valid, draws the charts and writes the numbers; here is only what
// needs a browser: the form, the address, and the stream of what is to be seen.
"use strict";

const $ = (id) => document.getElementById(id);
const fields = [...document.querySelectorAll("[data-field]")].filter((f) => f.querySelector("[data-kind]"));
const defaults = JSON.parse(document.body.dataset.default);
const letters = "AB";

// --- settings: two scenarios, of which the form shows one

const settings = [defaults, defaults];
let shown = 0;

function at(object, path) {
  return path.split(".").reduce((o, key) => (o === undefined || o === null ? undefined : o[key]), object);
}

function put(object, path, value) {
  const keys = path.split(".");
  const last = keys.pop();
  keys.reduce((o, key) => (o[key] ??= {}), object)[last] = value;
}

// valueOf reads an input. What is no number stays text, so that the server says what is wrong with it.
function valueOf(input) {
  const text = input.validity.badInput ? "?" : input.value.trim();
  if (input.dataset.kind === "number") {
    if (text === "" && input.dataset.optional !== undefined) return 0;
    return text === "" || isNaN(text) ? text : Number(text);
  }
  return input.dataset.kind === "duration" && text === "" && input.dataset.optional !== undefined ? "0s" : text;
}

function readForm() {
  const scenario = {};
  const leased = $("f-mode").value === "leased";
  for (const f of fields) {
    const input = f.querySelector("[data-kind]");
    if (leased || !f.closest("#leases")) put(scenario, f.dataset.field, valueOf(input));
  }
  scenario.faults = [...$("faults").children].map((row) => {
    const value = (key) => row.querySelector(`[data-key="${key}"]`).value.trim();
    const fault = { kind: value("kind"), at: value("at"), for: value("for") };
    if (fault.kind === "kill") fault.instance = Number(value("instance"));
    return fault;
  });
  return scenario;
}

function writeForm(scenario) {
  for (const f of fields) {
    const input = f.querySelector("[data-kind]");
    let value = at(scenario, f.dataset.field);
    if (input.tagName === "SELECT") value ??= input.options[0].value;
    const nothing = value === undefined || (input.dataset.optional !== undefined && (value === 0 || value === "0s"));
    input.value = nothing ? "" : value;
  }
  $("faults").replaceChildren();
  for (const fault of [scenario.faults ?? []].flat()) addFault(fault ?? {}); // whatever an address holds
  showLeases();
}

function addFault(fault) {
  const row = $("fault").content.cloneNode(true).firstElementChild;
  for (const input of row.querySelectorAll("[data-key]")) {
    const value = fault[input.dataset.key];
    if (input.dataset.key === "instance") input.value = value ?? 0;
    else if (value !== undefined) input.value = value;
  }
  const kind = row.querySelector("select");
  const which = row.querySelector(".which");
  const show = () => { which.hidden = kind.value !== "kill"; };
  kind.addEventListener("change", show);
  show();
  row.querySelector(".remove").addEventListener("click", () => {
    row.remove();
    $("add").focus();
    changed();
  });
  $("faults").append(row);
  return row;
}

function showLeases() {
  const leased = $("f-mode").value === "leased";
  $("leases").querySelector("fieldset").disabled = !leased;
  $("leases").querySelector(".off").hidden = leased;
}

function showWhich() {
  document.querySelector(`[name="which"][value="${shown}"]`).checked = true;
  $("run").textContent = `Run ${letters[shown]}`;
  $("code-of").textContent = letters[shown];
}

function edit(which) {
  shown = which;
  writeForm(settings[shown]);
  showWhich();
  check();
}

// --- the address holds both settings

function writeHash() {
  const to = new URLSearchParams();
  settings.forEach((s, i) => to.set(letters[i].toLowerCase(), JSON.stringify(s)));
  history.replaceState(null, "", "#" + to);
}

function readHash() {
  const from = new URLSearchParams(location.hash.slice(1));
  let found = false;
  settings.forEach((_, i) => {
    try {
      const s = JSON.parse(from.get(letters[i].toLowerCase()));
      if (s && typeof s === "object" && !Array.isArray(s)) {
        settings[i] = { ...defaults, ...s };
        found = true;
      }
    } catch {
      // An address that somebody has cut off: what can be read is taken.
    }
  });
  return found;
}

// --- what the server says about settings

let pending, asked = 0;

function changed() {
  settings[shown] = readForm();
  showLeases();
  writeHash();
  clearTimeout(pending);
  pending = setTimeout(check, 200);
}

async function check() {
  clearTimeout(pending);
  const turn = ++asked;
  const answer = await post("/api/check", settings[shown]);
  if (turn !== asked) return; // a later one is on its way
  complain(answer);
  if (answer.code !== undefined) $("code").textContent = answer.code;
}

// complain shows what is wrong next to its field, or above the buttons.
function complain(answer) {
  for (const f of document.querySelectorAll("[data-field]")) {
    f.querySelector(".wrong").textContent = "";
  }
  for (const input of document.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  $("wrong").textContent = "";
  if (!answer.error) return;
  const name = (answer.field ?? "").split("[")[0];
  const f = document.querySelector(`[data-field="${CSS.escape(name)}"]`);
  if (!f) {
    $("wrong").textContent = (answer.field ? answer.field + ": " : "") + answer.error;
    return;
  }
  f.closest("details").open = true;
  const [, row, key] = answer.field.match(/\[(\d+)\]\.(\w+)/) ?? [];
  const input = key ? $("faults").children[row]?.querySelector(`[data-key="${key}"]`) : f.querySelector("[data-kind]");
  f.querySelector(".wrong").textContent = (key ? `fault ${Number(row) + 1}, ${key}: ` : "") + answer.error;
  input?.setAttribute("aria-invalid", "true");
}

async function post(path, body) {
  try {
    const response = await fetch(path, { method: "POST", body: JSON.stringify(body ?? null) });
    if (response.status === 204) return {};
    if (response.headers.get("Content-Type") === "application/json") return await response.json();
    return { error: (await response.text()).trim() };
  } catch {
    return { error: "The lab does not answer." };
  }
}

// --- runs

async function start(which) {
  settings[shown] = readForm();
  writeHash();
  clearTimeout(pending);
  asked++;
  const answer = await post("/api/start", which.map((i) => settings[i]));
  if (answer.error) {
    if (answer.field !== undefined && which[answer.run] !== shown) edit(which[answer.run]);
    asked++;
    complain(answer);
    document.querySelector("[aria-invalid]")?.focus();
    return;
  }
  check(); // which shows the code as well
  if (matchMedia("(max-width: 700px)").matches) $("results").scrollIntoView();
}

async function tell(path, body) {
  const answer = await post(path, body);
  if (answer.error) $("wrong").textContent = answer.error;
}

// --- what is to be seen

const latest = {};

function fill(id, html) {
  if (latest[id] !== html) $(id).innerHTML = latest[id] = html;
}

function show(view) {
  const running = view.phase === "running";
  if ($("status").textContent !== view.status) $("status").textContent = view.status;
  if ($("spoken").textContent !== view.spoken) $("spoken").textContent = view.spoken;
  $("progress").value = view.progress;
  $("progress").hidden = !running;
  fill("verdicts", view.verdicts);
  fill("numbers", view.numbers);
  fill("charts", view.charts);
  $("failure").hidden = !view.failure;
  $("failure").textContent = view.failure ?? "";
  $("exports").hidden = view.numbers === "";
  $("run").disabled = $("compare").disabled = running;
  $("stop").disabled = !running;
  $("live").hidden = !running;
  $("hang").setAttribute("aria-pressed", view.hanging);
  showKills(view.dead ?? []);
  document.body.dataset.phase = view.phase;
}

function showKills(dead) {
  const kills = $("kills");
  if (kills.children.length !== dead.length) {
    kills.replaceChildren(...dead.map((_, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = `Kill ${i}`;
      button.setAttribute("aria-label", `Kill instance ${i}`);
      button.addEventListener("click", () =>
        tell("/api/fault", { kind: "kill", instance: i, on: button.getAttribute("aria-pressed") !== "true" }));
      return button;
    }));
  }
  dead.forEach((is, i) => kills.children[i].setAttribute("aria-pressed", is));
}

let stream, width = 0, retry;

// listen opens the stream, for charts that are as wide as there is room.
function listen() {
  clearTimeout(retry);
  stream?.close();
  width = Math.round(document.querySelector("#charts svg")?.getBoundingClientRect().width || 520);
  const mine = stream = new EventSource(`/api/events?width=${width}`);
  mine.onmessage = (event) => {
    $("lost").hidden = true;
    show(JSON.parse(event.data));
  };
  mine.onerror = () => {
    if (mine !== stream) return;
    $("lost").hidden = false;
    if (mine.readyState === EventSource.CLOSED) retry = setTimeout(listen, 1000);
  };
}

// --- wiring

$("form").addEventListener("input", (event) => {
  if (event.target.name === "which") edit(Number(event.target.value));
  else if (event.target.id !== "preset") changed();
});
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!$("run").disabled) start([shown]);
});
$("load").addEventListener("click", () => {
  settings[shown] = { ...defaults, ...JSON.parse($("preset").value) };
  writeHash();
  edit(shown);
});
$("add").addEventListener("click", () => {
  addFault({}).querySelector("select").focus();
  changed();
});
$("compare").addEventListener("click", () => start([0, 1]));
$("stop").addEventListener("click", () => tell("/api/stop"));
$("hang").addEventListener("click", () => tell("/api/fault", { kind: "hang", on: $("hang").getAttribute("aria-pressed") !== "true" }));
$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText($("code").textContent);
    $("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren($("code"));
    $("copied").textContent = "Selected: press Ctrl+C.";
  }
  setTimeout(() => { $("copied").textContent = ""; }, 3000);
});
addEventListener("hashchange", () => { if (readHash()) edit(shown); });

let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => {
    const now = document.querySelector("#charts svg")?.getBoundingClientRect().width ?? width;
    if (Math.abs(now - width) > 8) listen();
  }, 200);
});

readHash();
edit(0);
listen();
