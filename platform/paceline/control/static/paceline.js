// What the page cannot do by HTML alone: local times, the connection's state, and charts.
"use strict";

const REFRESH_MS = 5000;
const HOUR_NS = 3600e9;

function localTimes(root) {
  for (const time of root.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    const today = at.toDateString() === new Date().toDateString();
    time.textContent = (today ? "" : at.toLocaleDateString() + " ") + at.toLocaleTimeString([], { hour12: false });
    time.title = at.toISOString();
  }
}

function connection(up) {
  const link = document.getElementById("link");
  if (link && link.classList.contains("down") === up) {
    link.classList.toggle("down", !up);
    link.textContent = up ? "live" : "the server does not answer";
  }
}

document.addEventListener("htmx:beforeRequest", (event) => { if (document.hidden) event.preventDefault(); });
document.addEventListener("htmx:load", (event) => localTimes(event.detail.elt));
document.addEventListener("htmx:sendError", () => connection(false));
document.addEventListener("htmx:responseError", () => connection(false));
document.addEventListener("htmx:afterOnLoad", () => connection(true));

// Charts

const style = () => {
  const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return { ink: read("--dim"), line: read("--line"), colours: ["--accent", "--bad", "--good", "--lost", "--warn"].map(read) };
};

const hms = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

function chart(box, title, labels, xTime, unit, range) {
  const look = style();
  const frame = document.createElement("div");
  frame.className = "chart";
  const head = document.createElement("h3");
  head.textContent = title;
  frame.append(head);
  box.append(frame);
  const roomy = (plot, low, high) => { const room = Math.max((high - low) * 0.1, Math.abs(high) * 0.05, 1e-9); return [low - room, high + room]; };
  const axis = { stroke: look.ink, grid: { stroke: look.line, width: 1 }, ticks: { stroke: look.line, width: 1 } };
  const said = (plot, value) => (value == null ? "–" : (Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(4)) + unit);
  const series = labels.map((label, i) => ({ label, stroke: look.colours[i % look.colours.length], width: 1.5, spanGaps: false, points: { show: !xTime, size: 5 }, value: said }));
  const options = {
    width: frame.clientWidth - 24, height: xTime ? 130 : 240, scales: { x: { time: xTime }, y: { range: range ?? roomy } }, cursor: { sync: { key: xTime ? "samples" : title } },
    axes: [xTime ? { ...axis, values: (plot, splits) => splits.map(hms), space: 90 } : axis, { ...axis, size: 56 }],
    series: [xTime ? { label: "time", value: (plot, at) => (at == null ? "–" : hms(at)) } : { label: "step" }, ...series],
  };
  const plot = new uPlot(options, [[], ...labels.map(() => [])], frame);
  new ResizeObserver(() => plot.setSize({ width: frame.clientWidth - 24, height: options.height })).observe(frame);
  return plot;
}

async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(path + " answered " + answer.status);
  return answer.json();
}

const READINGS = [
  ["SM clock", " MHz", "sm_clock_mhz", "clock_avg_mhz", null], ["Power", " W", "power_w", "power_avg_w", null],
  ["Temperature", " °C", "temperature_c", "temperature_avg_c", [20, 100]], ["Utilisation", " %", "utilisation_pct", "utilisation_avg_pct", [0, 100]],
];

async function deviceCharts(box) {
  let plots = null;
  const draw = async () => {
    const since = Math.round(Date.now() * 1e6 - HOUR_NS);
    const found = await ask(box.dataset.samples + "?since_ns=" + since);
    if (!found.raw.length && !found.minutes.length) return;
    plots ??= READINGS.map(([name, unit, , , range]) => chart(box, name, [name], true, unit, range));
    const times = [...found.minutes.map((m) => m.minute_ns / 1e9), ...found.raw.map((s) => s.at_ns / 1e9)];
    READINGS.forEach(([, , raw, rolled], i) => plots[i].setData([times, [...found.minutes.map((m) => m[rolled]), ...found.raw.map((s) => s[raw])]]));
  };
  await again(draw);
}

function curves(checkpoints, metric) {
  const attempts = [...new Set(checkpoints.map((c) => c.attempt_id))];
  const steps = [...new Set(checkpoints.map((c) => c.step))].sort((a, b) => a - b);
  const rows = attempts.map((attempt) => {
    const own = new Map(checkpoints.filter((c) => c.attempt_id === attempt).map((c) => [c.step, c.metrics[metric] ?? null]));
    return steps.map((step) => own.get(step));
  });
  return { labels: attempts.map((a) => "attempt " + a.split("/").pop()), data: [steps, ...rows] };
}

async function jobCharts(box) {
  let plot = null, drawn = "";
  const draw = async () => {
    const { checkpoints } = await ask(box.dataset.checkpoints);
    const names = [...new Set(checkpoints.flatMap((c) => Object.keys(c.metrics)))];
    const metric = names.find((n) => n === "loss") ?? names.find((n) => n.includes("loss")) ?? names[0];
    if (!metric) return;
    const { labels, data } = curves(checkpoints, metric);
    if (drawn !== metric + labels) {
      box.replaceChildren();
      plot = chart(box, metric + " at each checkpoint", labels, false, "");
      drawn = metric + labels;
    }
    plot.setData(data);
  };
  await again(draw);
}

async function again(draw) {
  const turn = async () => {
    if (!document.hidden) {
      try { await draw(); } catch (error) { console.warn(error); connection(false); }
    }
    setTimeout(turn, REFRESH_MS);
  };
  await turn();
}

document.addEventListener("DOMContentLoaded", () => {
  localTimes(document);
  const box = document.getElementById("charts");
  if (box?.dataset.samples) deviceCharts(box);
  if (box?.dataset.checkpoints) jobCharts(box);
});
