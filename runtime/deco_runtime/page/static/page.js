"use strict";
// Names of classes are text and nothing else: everything is put in by textContent.
const $ = (id) => document.getElementById(id);
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const node = (tag, text, name) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
};
const nothing = "unknown";
let state = null;
let shown = -1;

function colour(name, names) {
  if (name === null) return "gray";
  return `hsl(${Math.round((names.indexOf(name) * 137.5) % 360)} 60% 52%)`;
}

function say(words, bad) {
  const status = $("status");
  status.textContent = words;
  status.className = bad ? "bad" : "";
  status.dataset.until = String(Date.now() + 6000);
}

async function change(what, asked) {
  say("working …");
  try {
    const answer = await fetch(`do/${what}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Deco": "page" },
      body: JSON.stringify(asked),
    });
    const told = answer.headers.get("content-type").startsWith("application/json")
      ? await answer.json() : { error: await answer.text() };
    say(told.error || told.words, Boolean(told.error || told.refused));
    return !told.error && !told.refused;
  } catch {
    say("the device does not answer", true);
    return false;
  }
}

function figures(now) {
  const facts = [
    ["frames per second", now.fps],
    ["frame age", now.frame_age_ms ? `${now.frame_age_ms} ms` : null],
    ["frames", now.frames],
    ["dropped frames", now.live ? now.dropped_frames ?? 0 : null],
    ["segments", now.segment ?? 0],
    ["accuracy on the stream", now.accuracy == null ? null : percent(now.accuracy)],
    ["on test images", now.test ? `${percent(now.test.after ?? now.test.during ?? now.test.before)} (never updated ${percent(now.test.never_updated)})` : null],
    ["judged by people", now.judged.of ? `${now.judged.right} of ${now.judged.of} right` : null],
    ["learning", now.guard_pause ? `the guard has it pause for ${now.guard_pause} segments` : now.learning],
    ["doing", now.doing],
    ["camera", now.camera],
    ["memory", now.memory_mb === null ? null : `${now.memory_mb} MB`],
    ["temperature", now.temperature === null ? null : `${now.temperature.toFixed(0)} °C`],
    ["written", now.written === undefined ? null : `${(now.written / 1e6).toFixed(1)} MB` +
      (now.per_day ? `, ${(now.per_day / 1e6).toFixed(0)} MB a day` : "")],
    ["recipe", now.recipe],
    ["fleet", now.fleet && (now.fleet.frames ? `${now.fleet.frames} frames in its sums` : "its images") +
      (now.fleet.merged ? `, last merged ${new Date(1000 * now.fleet.merged).toLocaleTimeString()}` : "") +
      (now.fleet.refused ? `, refused because the model ${now.fleet.refused}` : "")],
  ];
  $("figures").replaceChildren(...facts.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => {
      const box = node("div");
      box.append(node("dt", name), node("dd", String(value)));
      return box;
    }));
}

function segments(now) {
  const seen = new Set();
  $("segments").replaceChildren(...now.segments.map((segment) => {
    const column = node("div");
    const votes = Object.entries(segment.votes);
    const all = votes.reduce((sum, [, count]) => sum + count, 0) || 1;
    column.title = `segment ${segment.number}: ` + votes.map(([name, count]) => `${name} ${percent(count / all)}`).join(", ");
    for (const [name, count] of votes) {
      const bar = node("div");
      bar.style.height = `${(100 * count) / all}%`;
      bar.style.background = colour(name, now.classes);
      column.append(bar);
      seen.add(name);
    }
    return column;
  }));
  $("legend").replaceChildren(...[...seen].map((name) => {
    const item = node("li");
    const mark = node("i");
    mark.style.background = colour(name, now.classes);
    item.append(mark, name);
    return item;
  }));
}

function known(now) {
  $("known").tBodies[0].replaceChildren(...now.known.map((each, index) => {
    const row = node("tr");
    const name = each.class + (index >= now.bundle_classes ? " (taught)" : "");
    row.append(node("td", name), node("td", each.frames === undefined ? "–" : Math.round(each.frames)),
      node("td", percent(each.share)), node("td", percent(each.held_out)));
    return row;
  }));
  $("buffer").hidden = !now.buffer;
  if (now.buffer) $("kept").textContent = "But what you teach is: this recipe learns from pixels, and keeps those frames, as small as its network takes them, until the teaching is undone.";
  if (now.buffer) $("buffer").src = `buffer.jpg?${now.segment ?? 0}.${now.updates ?? 0}`;
}

function lists(now) {
  $("guard").replaceChildren(...now.guard.slice().reverse().map((each) => {
    const words = each.accepted ? "accepted" : `rejected: it ${each.reason}`;
    const scores = each.accuracy === undefined ? "" : `; held out ${percent(each.accuracy)}, at first ${percent(each.frozen_accuracy)}`;
    return node("li", `update ${each.update}: ${words}${scores}`, each.accepted ? "good" : "bad");
  }));
  $("news").replaceChildren(...now.news.slice().reverse().map((each) =>
    node("li", `${new Date(1000 * each.time).toLocaleTimeString()}: ${each.words}`)));
}

function show(now) {
  state = now;
  document.title = $("title").textContent = `${now.title}`;
  const answer = now.answer;
  $("answer").textContent = answer === null ? "–" : answer.label ?? nothing;
  $("answer").className = answer !== null && answer.label === null ? "unknown" : "";
  $("sure").value = answer === null ? 0 : answer.confidence;
  $("confidence").textContent = answer === null ? "" : percent(answer.confidence) + (answer.stream ? ` · ${answer.stream}` : "");
  figures(now);
  $("hold").textContent = now.held ? "Go on learning" : "Pause learning";
  if (Date.now() > Number($("status").dataset.until ?? 0)) {
    $("status").textContent = now.seconds_since_frame > 5 ? `no frame for ${Math.round(now.seconds_since_frame)} s` : "";
    $("status").className = "";
  }
  if (now.version === shown) return;
  shown = now.version;
  segments(now);
  known(now);
  lists(now);
  $("names").replaceChildren(...[...now.classes, "none"].map((name) => {
    const option = node("option");
    option.value = name;
    return option;
  }));
}

function group(each) {
  const item = node("li");
  const name = each.label ?? nothing;
  const strip = node("div", undefined, "strip");
  const few = each.numbers.filter((_, index) => index % Math.ceil(each.numbers.length / 8) === 0);
  for (const number of few) {
    const picture = node("img");
    picture.loading = "lazy";
    picture.alt = name;
    picture.src = `thumb/${number}.jpg`;
    strip.append(picture);
  }
  const form = node("form");
  const words = node("span", `${name}, ${percent(each.confidence)}, ${each.numbers.length} frame${each.numbers.length > 1 ? "s" : ""}`);
  const input = node("input");
  input.setAttribute("list", "names");
  input.placeholder = "a class, new or known";
  input.setAttribute("aria-label", `what the group answered as ${name} shows`);
  input.maxLength = 100;
  const teach = async (label) => {
    if (!label.trim()) { say("type what it shows", true); return; }
    if (await change("teach", { class: label, numbers: each.numbers })) item.remove();
  };
  const judged = (right) => change("judge", { answer: each.label, right, frames: each.numbers.length });
  const button = (text, act) => {
    const made = node("button", text);
    made.type = "button";
    made.addEventListener("click", act);
    return made;
  };
  const right = button("Right", async () => { await judged(true); await teach(each.label ?? "none"); });
  const wrong = button("Wrong", async () => { await judged(false); input.focus(); say("noted; what is it?"); });
  const none = button("None of the classes", async () => { await judged(each.label === null); await teach("none"); });
  const set = node("button", "Teach");
  set.type = "submit";
  form.addEventListener("submit", (event) => { event.preventDefault(); teach(input.value); });
  form.append(words, right, wrong, none, input, set);
  item.append(strip, form);
  return item;
}

const inUse = () => $("teach").matches(":hover, :focus-within");  // nothing moves under somebody's hands

async function refresh(asked) {
  const answer = await fetch("recent.json");
  if (!answer.ok) return;
  const { groups } = await answer.json();
  if (asked || !inUse()) $("groups").replaceChildren(...groups.slice(0, 40).map(group));
}

$("hold").addEventListener("click", () => change("hold", { held: !(state && state.held) }));
$("save").addEventListener("click", () => change("save", {}));
$("undo").addEventListener("click", () => change("undo", {}));
$("back").addEventListener("click", () => {
  if (window.confirm("Go back? What was learned since is lost; what people taught stays.")) change("back", { to: $("to").value });
});
$("refresh").addEventListener("click", () => refresh(true));
refresh(true);
setInterval(() => { if (!document.hidden && !inUse()) refresh(false); }, 5000);

const events = new EventSource("events");
events.onmessage = (event) => show(JSON.parse(event.data));
events.onerror = () => say("the device does not answer; waiting for it", true);
let lost = false;
events.addEventListener("open", () => {
  if (lost) $("frame").src = `live.mjpg?${Date.now()}`;
  lost = false;
});
events.addEventListener("error", () => { lost = true; });
