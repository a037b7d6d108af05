"use strict";
// Draws the state of a run every two seconds. Texts of the run are inserted as plain text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
let marked = null; // the member under the pointer

const at = (id) => document.getElementById(id);
// Width of a drawing in pixels, so that its texts keep their size on any screen.
const widthOf = (id) => Math.max(280, at(id).clientWidth);
const finite = (x) => typeof x === "number" && Number.isFinite(x);

function node(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) made[key] = value;
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function short(x) {
  if (!finite(x)) return "-";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (Math.abs(x) >= size) return `${Number((x / size).toPrecision(3))}${unit}`;
  return `${Number(x.toPrecision(3))}`;
}

function value(x) {
  if (typeof x === "string") return x;
  if (!finite(x)) return "-";
  if (x > 0.9 && x < 1) return `${Number(x.toFixed(5))}`;
  return x !== 0 && Math.abs(x) < 0.001 ? x.toExponential(2).replace(/\.?0+e/, "e") : `${Number(x.toPrecision(3))}`;
}

function clock(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const two = (x) => String(x).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

const colour = (member) => `hsl(${(member * 137.5 + 210) % 360} 62% 50%)`;

function scaleColour(x, low, high) {
  if (!finite(x)) return "#c9ced6";
  const share = high > low ? Math.min(1, Math.max(0, (x - low) / (high - low))) : 1;
  return VIRIDIS[Math.round(share * (VIRIDIS.length - 1))];
}

// -- axes

// Not Math.min(...numbers): a call takes about ten thousand arguments, and a thousand members have more points.
const range = (numbers) => numbers.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);

function steps(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) found.push(x);
  return found;
}

function powers(low, high) {
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
    for (const m of [1, 2, 5]) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) found.push(m * 10 ** p);
  const decades = found.filter((x) => Math.abs(Math.log10(x) % 1) < 1e-9);
  return decades.length >= 3 ? decades : found.length >= 2 ? found : [low, high];
}

// names: labels of the values 0, 1, ... on the y axis, if the value is a choice.
function chart(width, height, xs, ys, log, names) {
  const box = { left: 52, right: 26, top: 8, bottom: 24 };
  let [x0, x1] = [0, Math.max(1, range(xs)[1])];
  let [y0, y1] = range(ys);
  if (y0 === y1) [y0, y1] = log ? [y0 / 1.5, y1 * 1.5] : [y0 - (Math.abs(y0) || 1) * 0.1, y1 + (Math.abs(y1) || 1) * 0.1];
  if (names) [y0, y1] = [-0.5, names.length - 0.5];
  const f = log ? Math.log : (v) => v;
  const x = (v) => box.left + ((v - x0) / (x1 - x0)) * (width - box.left - box.right);
  const y = (v) => height - box.bottom - ((f(v) - f(y0)) / (f(y1) - f(y0))) * (height - box.top - box.bottom);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const tick of names ? names.keys() : log ? powers(y0, y1) : steps(y0, y1, 5)) {
    svg.append(shape("line", { class: "grid", x1: box.left, x2: width - box.right, y1: y(tick), y2: y(tick) }));
    svg.append(shape("text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, names ? names[tick].slice(0, 8) : log ? value(tick) : short(tick)));
  }
  for (const tick of steps(x0, x1, width / 90))
    svg.append(shape("text", { x: x(tick), y: height - 6, "text-anchor": "middle" }, short(tick)));
  return { svg, x, y };
}

function path(points, x, y, stepped) {
  let text = "", down = false, before = 0;
  for (const [px, py] of points) {
    if (!finite(py)) { down = false; continue; }
    if (down && stepped) text += `L${x(px).toFixed(1)} ${y(before).toFixed(1)}`;
    // A single point is drawn as a dot: a line of length 0 with round ends.
    text += down ? `L${x(px).toFixed(1)} ${y(py).toFixed(1)}` : `M${x(px).toFixed(1)} ${y(py).toFixed(1)}h0`;
    [down, before] = [true, py];
  }
  return text;
}

// Member numbers at the ends of the curves, moved apart where they would overlap.
function labelEnds(svg, ends) {
  const placed = [];
  for (const { member, x, y } of ends.sort((a, b) => a.y - b.y || a.x - b.x)) {
    const at = { x: x + 4, y: y + 4 };
    for (const other of placed) if (Math.abs(other.x - at.x) < 14 && at.y < other.y + 11) at.y = other.y + 11;
    placed.push(at);
    const label = shape("text", { x: at.x, y: at.y }, member);
    label.style.fill = colour(member);
    svg.append(label);
  }
}

const controlsOf = (s) => new Set(s.members.filter((m) => m.status === "control").map((m) => m.member));

// Segments that bridge the gaps of a curve: from the last point before a gap to the first one after it.
function bridges(points) {
  const found = [];
  let last = null, gap = false;
  for (const point of points) {
    if (!finite(point[1])) { gap = last !== null; continue; }
    if (gap) found.push(last, point, [point[0], null]);
    [last, gap] = [point, false];
  }
  return found;
}

function memberLine(member, d, best, control, dashes = control ? "5 4" : "") {
  const strong = member === marked || (marked === null && best);
  const line = shape("path", { class: "member", d, stroke: colour(member), "stroke-width": strong ? 2.6 : 1.1,
    "stroke-opacity": strong || marked === null ? 0.9 : 0.25 });
  line.setAttribute("stroke-dasharray", dashes);
  line.append(shape("title", {}, control ? `member ${member}, control` : `member ${member}`));
  return line;
}

const nothing = (text) => node("p", { className: "none", textContent: text });

// -- parts of the page

function drawHead(s) {
  document.title = `${s.name} · ${s.env}`;
  at("title").textContent = `${s.name}: ${s.env}`;
  const age = Math.max(0, Date.now() / 1000 - s.changed);
  const quiet = age > 120 ? `, last record ${clock(age)} ago` : "";
  at("status").textContent = s.running ? `running${quiet}` : s.ended ? `ended: ${s.ended}` : "not running: killed or interrupted";
  at("status").className = s.running ? "good" : s.ended ? "" : "bad";
  for (const one of document.querySelectorAll(".unit")) one.textContent = s.unit;
  at("episodes-caption").hidden = s.unit === "steps";
  const controls = s.members.length - s.population;
  at("kind").textContent = `${s.controller}, ${s.population} ${s.population > 1 ? "members" : "member"}` +
    (controls ? ` and ${controls} ${controls > 1 ? "controls" : "control"}` : "") + `, seed ${s.seed}`;
  drawScore(s);
  drawTime(s);
  const facts = Object.entries(s.counts).map(([name, n]) => `${n} ${n === 1 ? name.replace(/s$/, "") : name}`);
  if (s.running && s.stalled) facts.push(s.stalled);
  else if (s.running) facts.push(`${short(s.frames_per_second)} ${s.unit}/s over all members`);
  if (s.actor_restarts) facts.push(`${s.actor_restarts} actor restarts`);
  at("facts").textContent = facts.join(" · ");
}

// Until a member of the population has a score, the best mean so far, marked with ~.
function drawScore(s) {
  const [number, text] = at("score").children;
  const young = s.members.filter((m) => finite(m.early) && m.status !== "control").sort((a, b) => b.early - a.early)[0];
  const best = s.members.find((m) => m.member === s.best);
  if (best) {
    number.textContent = (finite(best.final) || best.complete ? "" : "~") + short(s.score);
    text.textContent = `best: member ${s.best}, ${finite(best.final) ? `${s.final_episodes} evaluation episodes` : "in training"}` +
      (finite(s.random_play) ? `; random policy ${short(s.random_play)}` : "");
  } else {
    number.textContent = young ? `~${short(young.early)}` : "-";
    text.textContent = young ? `so far: member ${young.member}, ${young.ended} environments` : "no episode has ended";
  }
}

// The same times as in the terminal: those of the last record, plus the time since then.
function drawTime(s) {
  const [bar, text] = at("time").children;
  const on = s.running ? Math.min(s.since, s.seconds_left ?? Infinity) : 0, passed = s.seconds + on;
  const left = s.running && finite(s.seconds_left) ? Math.max(0, s.seconds_left - on) : null;
  const share = left !== null ? passed / Math.max(1, passed + left) : s.budget_frames ? s.frames / s.budget_frames : s.ended ? 1 : 0;
  bar.value = Math.min(1, s.ended ? 1 : share);
  text.textContent = [clock(passed), ...(left !== null ? [`${clock(left)} left`] : []),
    `${short(s.frames)}${s.budget_frames ? ` of ${short(s.budget_frames)}` : ""} ${s.unit} of each member`].join(" · ");
}

function row(cells, options = {}) {
  return node("tr", options, ...cells.map(([text, kind]) => node("td", { textContent: text, className: kind ?? "number" })));
}

function heads(names, left) {
  return node("tr", {}, ...names.map((name) => node("th", { textContent: name, className: left.includes(name) ? "" : "number" })));
}

function drawMembers(s) {
  const anyStatus = s.members.some((m) => m.status), anyReturn = s.members.some((m) => finite(m.return));
  const anyYoung = s.members.some((m) => m.ended && (!m.complete || !finite(m.objective)));
  at("young").hidden = !anyYoung;
  const rows = s.members.map((m) => {
    const young = !m.complete || !finite(m.objective), so_far = finite(m.objective) ? m.objective : m.early;
    const objective = finite(so_far) ? (young ? "~" : "") + short(so_far) : "-";
    const values = m.values.map(([then, now]) => [value(then) === value(now) ? value(now) : `${value(then)} → ${value(now)}`]);
    const status = anyStatus ? [[m.status, ""]] : [], final = s.final_episodes ? [[finite(m.final) ? short(m.final) : "-"]] : [];
    const made = row([[m.member], ...final, [objective], ...(anyYoung ? [[young ? m.ended : ""]] : []),
      ...(anyReturn ? [[short(m.return)], [short(m.length)]] : []), [short(m.episodes)], [m.generation], [short(m.frames)],
      ...status, [m.founder], ...values]);
    made.className = [m.status, m.member === s.best ? "best" : "", m.member === marked ? "marked" : ""].join(" ").trim();
    made.firstChild.prepend(node("span", { className: "dot" }));
    made.querySelector(".dot").style.background = colour(m.member);
    made.onmouseenter = () => mark(m.member);
    made.onmouseleave = () => mark(null);
    return made;
  });
  const names = ["member", ...(s.final_episodes ? ["final"] : []), "objective", ...(anyYoung ? ["environments"] : []),
    ...(anyReturn ? ["return", "length"] : []), s.unit === "steps" ? "evaluations" : "episodes", "generation", s.unit,
    ...(anyStatus ? ["status"] : []), "founder", ...s.varied];
  at("members").replaceChildren(heads(names, ["status"]), ...rows);
}

function drawCurves(s) {
  const known = Object.entries(s.curves).map(([m, points]) => [Number(m), points]).filter(([, points]) => points.some((p) => finite(p[1])));
  if (!known.length) return at("curves").replaceChildren(nothing("No window of episodes is complete yet."));
  const all = known.flatMap(([, points]) => points.filter((p) => finite(p[1])));
  const { svg, x, y } = chart(widthOf("curves"), 300, all.map((p) => p[0]), all.map((p) => p[1]), false);
  const controls = controlsOf(s);
  known.sort(([a], [b]) => (a === marked || a === s.best) - (b === marked || b === s.best));
  for (const [member, points] of known) {
    const [best, control] = [member === s.best, controls.has(member)];
    svg.append(memberLine(member, path(bridges(points), x, y), best, control, "1 4"));
    svg.append(memberLine(member, path(points, x, y), best, control));
  }
  labelEnds(svg, known.map(([member, points]) => {
    const last = points.findLast((p) => finite(p[1]));
    return { member, x: x(last[0]), y: y(last[1]) };
  }));
  at("controls-caption").hidden = !controls.size;
  at("curves").replaceChildren(svg);
}

function drawEvaluations(s) {
  at("evaluations-section").hidden = !s.evaluations.length;
  if (!s.evaluations.length) return;
  const shown = s.evaluations.map(([frames, mean, error, episodes, member]) => {
    return { frames, mean, low: mean - 2 * error, high: mean + 2 * error, text: `member ${member}: ${short(mean)} in ${episodes} evaluation episodes` };
  });
  const { svg, x, y } = chart(widthOf("evaluations"), 300, shown.map((e) => e.frames), shown.flatMap((e) => [e.low, e.high]), false);
  const edge = [...shown.map((e) => [e.frames, e.high]), ...shown.map((e) => [e.frames, e.low]).reverse()];
  svg.append(shape("path", { class: "band", d: `${path(edge, x, y)}Z` }));
  svg.append(shape("path", { class: "mean", d: path(shown.map((e) => [e.frames, e.mean]), x, y) }));
  for (const e of shown) {
    const dot = shape("circle", { class: "mean", cx: x(e.frames), cy: y(e.mean), r: 3 });
    dot.append(shape("title", {}, e.text));
    svg.append(dot);
  }
  at("evaluations").replaceChildren(svg);
}

function drawForest(s) {
  const { height, nodes, labels } = s.forest;
  if (!nodes.length) return at("forest").replaceChildren(nothing("No member has started."));
  const known = nodes.map((n) => n.objective).filter(finite).sort((a, b) => a - b);
  const [low, high] = [known[Math.floor(known.length * 0.02)], known[known.length - 1]];
  const tall = Math.min(560, Math.max(160, height * 22 + 40));
  const { svg, x } = chart(widthOf("forest"), tall, nodes.map((n) => n.to), [0, 1], false);
  svg.querySelectorAll(".grid, text[text-anchor=end]").forEach((one) => one.remove());
  const y = (lane) => 8 + (lane / Math.max(height, 1)) * (tall - 36);
  const thick = Math.min(5, Math.max(1, (0.35 * (tall - 36)) / Math.max(height, 1)));
  for (const n of nodes) {
    const stroke = scaleColour(n.objective, low, high);
    const part = (from, to, width) => {
      if (to < from) return;
      const line = shape("line", { x1: x(from), x2: Math.max(x(to), x(from) + 0.5), y1: y(n.y), y2: y(n.y), stroke, "stroke-width": width });
      line.append(shape("title", {}, `${n.text}: ${short(n.objective)}`));
      svg.append(line);
    };
    if (n.parent_y !== null && n.parent_y !== n.y)
      svg.append(shape("line", { x1: x(n.from), x2: x(n.from), y1: y(n.parent_y), y2: y(n.y), stroke, "stroke-width": 0.8 }));
    if (n.until !== null) part(n.from, n.until, thick);
    part(n.until ?? n.from, n.to, 0.5 * thick);
  }
  for (const [end, lane, member] of labels) svg.append(shape("text", { x: x(end) + 4, y: y(lane) + 4 }, member));
  at("forest").replaceChildren(svg);
}

function drawSchedules(s) {
  at("schedules-section").hidden = !s.schedules.length;
  const controls = controlsOf(s);
  const wide = widthOf("schedules"), columns = Math.max(1, Math.min(s.schedules.length, Math.floor(wide / 280)));
  at("schedules").style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  at("schedules").replaceChildren(...s.schedules.map(({ name, lines }) => {
    const ys = lines.flatMap((l) => l.points.map((p) => p[1]));
    const names = s.choices[name], [low, high] = range(ys), log = !names && low > 0 && high > 10 * low;
    const { svg, x, y } = chart(Math.min(wide / columns - 12, 420), 170, lines.flatMap((l) => l.points.map((p) => p[0])), ys, log, names);
    lines.sort((a, b) => (a.member === marked || a.member === s.best) - (b.member === marked || b.member === s.best));
    for (const { member, points } of lines)
      svg.append(memberLine(member, path(points, x, y, true), member === s.best, controls.has(member)));
    return node("div", {}, node("strong", { textContent: name }), svg);
  }));
}

function drawDecisions(s) {
  const kinds = { replace: "copies", mutate: "mutates", restart: "restarts", stop: "stopped" };
  const rows = s.decisions.map((d) => row([[clock(d.seconds)], [short(d.frames)], [d.member],
    [(kinds[d.decision] ?? d.decision) + (d.donor === null ? "" : ` ${d.donor}`), ""], [short(d.objective)], [d.reason, "text"]]));
  if (!rows.length) return at("decisions").replaceChildren(node("tr", {}, node("td", { className: "none", textContent: "No member was changed or stopped yet." })));
  at("decisions").replaceChildren(heads(["time", s.unit, "member", "decision", "objective", "reason"], ["decision", "reason"]), ...rows);
}

function drawRemarks(s) {
  at("remarks").hidden = !s.remarks.length;
  at("remarks").replaceChildren(...s.remarks.map((text) => node("li", { textContent: text })));
}

// -- the loop

let shown = null;

function draw() {
  for (const part of [drawHead, drawMembers, drawCurves, drawEvaluations, drawForest, drawSchedules, drawDecisions, drawRemarks]) part(shown);
}

function mark(member) {
  if (member === marked) return;
  marked = member;
  drawCurves(shown);
  drawSchedules(shown);
}

window.addEventListener("resize", () => shown && draw());

async function follow() {
  let pause = 2000;
  try {
    const answer = await fetch("state.json", { cache: "no-store" });
    const state = await answer.json();
    if (!answer.ok) throw new Error(state.error ?? answer.statusText);
    shown = state;
    draw();
    if (!state.running) pause = 10000;
  } catch (error) {
    at("status").textContent = `no update: ${error.message}`;
    at("status").className = "bad";
  }
  setTimeout(follow, pause);
}

follow();
