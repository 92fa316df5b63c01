// SPDX-License-Identifier: Apache-2.0
// Draws the figures of the page as SVG from the JSON in #data, each with a sentence and a table of the same numbers.
"use strict";
(() => {
  const { runs, windows, scales, first } = JSON.parse(document.getElementById("data").textContent);
  const [fp16] = windows;
  const element = (name) => document.getElementById(name);
  const colour = (i) => "var(--c" + (i % 6) + ")";
  const named = (run, text) => (runs.length > 1 ? run.name + (text ? ": " + text : "") : text);
  const part = (count, whole) => (whole ? (100 * count) / whole : 0);
  const percent = (x) => (x === 0 || x === 100 ? String(x) : x < 0.01 ? "< 0.01" : x > 99.99 ? "> 99.99" : x.toPrecision(3)) + " %";
  const lifted = (text) => String(text).replace(/./g, (c) => ({ "-": "\u207b", 0: "\u2070", 1: "\u00b9", 2: "\u00b2", 3: "\u00b3", 4: "\u2074",
    5: "\u2075", 6: "\u2076", 7: "\u2077", 8: "\u2078", 9: "\u2079" })[c] || c);
  const power = (k) => "2" + lifted(k);
  const short = (x) => (x === null ? "not finite" : Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? x.toExponential(2) : String(+x.toPrecision(4)));

  // ---- elements ----

  const make = (tag, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...children);
    return made;
  };
  const html = (tag, ...children) => {
    const made = document.createElement(tag);
    made.append(...children);
    return made;
  };
  const title = (text) => make("title", {}, text);

  const table = (head, rows) => {
    const made = html("table", html("thead", html("tr", ...head.map((name) => html("th", name)))), html("tbody"));
    rows.forEach((row) => made.lastChild.append(html("tr", ...row.map((cell) => html("td", String(cell))))));
    prepare(made);
    return made;
  };
  // On a narrow page a row becomes a list: each cell with its name, and the roles of a table stay.
  const prepare = (of) => {
    const names = [...of.querySelectorAll("th")].map((th) => th.textContent);
    const role = (each, name) => each.setAttribute("role", name);
    role(of, "table");
    of.querySelectorAll("thead, tbody").forEach((each) => role(each, "rowgroup"));
    of.querySelectorAll("th").forEach((th) => role(th, "columnheader"));
    of.querySelectorAll("tr").forEach((tr) => role(tr, "row"));
    of.querySelectorAll("td").forEach((td) => { role(td, "cell"); td.dataset.head = names[td.cellIndex] || ""; });
  };

  // Fills a <figure>: a legend, the drawing, the table. What was open stays open.
  const fill = (name, { svg, legend, head, rows, words }) => {
    const figure = element(name), open = figure.querySelector("details")?.open;
    figure.querySelectorAll("svg, .legend, details").forEach((each) => each.remove());
    const told = figure.querySelector("p");
    if (words) told.textContent = words;
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", told.textContent);
    const keys = legend.map(([text, i]) => {
      const mark = html("i");
      mark.style.background = colour(i);
      return html("span", mark, text);
    });
    const shown = html("div", ...keys);
    shown.className = "legend";
    if (keys.length > 1 || words) told.before(shown);
    told.before(svg);
    const numbers = html("details", html("summary", "The numbers"), table(head, rows));
    numbers.open = Boolean(open);
    figure.append(numbers);
  };

  // ---- axes ----

  const steps = (from, to, most) => {
    const rough = (to - from) / most, base = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= rough) || 1, at = [];
    for (let k = Math.ceil(from / step); k * step <= to + 1e-9 * step; k++) at.push(k * step);
    return at;
  };
  const powers = (from, to, most) => {
    const step = [1, 2, 4, 8, 16, 32, 64, 128].find((s) => (to - from) / s <= most) || 256, at = [];
    for (let k = Math.ceil(from / step) * step; k <= to; k += step) at.push(k);
    return at;
  };

  // x and y: { from, to, at: ticks, text: of a tick, name }
  const frame = (name, x, y, height) => {
    const width = Math.max(element(name).clientWidth, 240), left = 58, right = 18, top = 8, bottom = 40;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height });
    const px = (v) => left + ((v - x.from) / (x.to - x.from || 1)) * (width - left - right);
    const py = (v) => height - bottom - ((v - y.from) / (y.to - y.from || 1)) * (height - top - bottom);
    const line = (x1, y1, x2, y2, stroke) => make("line", { x1, y1, x2, y2, stroke });
    const text = (tx, ty, anchor, what) => make("text", { x: tx, y: ty, "text-anchor": anchor, fill: "var(--soft)" }, what);
    y.at(6).forEach((v) => svg.append(line(left, py(v), width - right, py(v), "var(--line)"), text(left - 6, py(v) + 4, "end", y.text(v))));
    x.at(Math.floor(width / 80)).forEach((v) => svg.append(line(px(v), height - bottom, px(v), height - bottom + 4, "var(--soft)"),
      text(px(v), height - bottom + 17, "middle", x.text(v))));
    svg.append(line(left, height - bottom, width - right, height - bottom, "var(--soft)"), text((left + width - right) / 2, height - 6, "middle", x.name));
    svg.append(make("text", { transform: `translate(13 ${(height - bottom + top) / 2}) rotate(-90)`, "text-anchor": "middle", fill: "var(--soft)" }, y.name));
    return { svg, px, py, top, bottom: height - bottom, left, right: width - right };
  };
  const path = (points, i, dash) => make("path", { d: points.map((p, k) => (k ? "L" : "M") + p.map((v) => v.toFixed(1)).join(" ")).join(""),
    fill: "none", stroke: colour(i), "stroke-width": 2, "stroke-dasharray": dash || "none", "stroke-linejoin": "round" });
  const cross = (x, y, text) => make("path", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`, stroke: "var(--bad)", "stroke-width": 2 }, title(text));

  // ---- the loss and its scale ----

  const losses = runs.flatMap((run, i) => run.scale.map((loss) => ({ run, loss, i: i + loss.loss * runs.length,
    name: named(run, run.scale.length > 1 ? "loss " + loss.loss : "") })));
  const last = Math.max(1, ...losses.flatMap(({ loss }) => [...loss.n, ...loss.values.map((v) => v[0])]));
  const overSteps = { from: 1, to: Math.max(last, 2), at: (most) => steps(1, last, most).filter(Number.isInteger), text: String, name: "step" };

  const drawScale = () => {
    const heights = losses.flatMap(({ loss }) => loss.scale.map(Math.log2));
    const low = Math.min(...heights) - 1, high = Math.max(...heights) + 1;
    const at = frame("scale", overSteps, { from: low, to: high, at: (most) => powers(low, high, most), text: power, name: "loss scale" }, 260);
    losses.forEach(({ loss, i, name }) => {
      const points = loss.n.flatMap((n, k) => (k ? [[at.px(n), at.py(Math.log2(loss.scale[k - 1]))]] : []).concat([[at.px(n), at.py(Math.log2(loss.scale[k]))]]));
      at.svg.append(path(points, i));
      loss.skips.forEach(([n, scale, who]) => at.svg.append(cross(at.px(n), at.py(Math.log2(scale)), `${name} step ${n}: skipped${who ? ", " + who : ""}`)));
    });
    const rows = losses.flatMap(({ loss, name }) => loss.n.map((n, k) => [n, short(loss.scale[k]), "changed", "", name])
      .concat(loss.skips.map(([n, scale, who]) => [n, short(scale), "skipped", who || "", name]))).sort((a, b) => a[0] - b[0]).slice(0, 200);
    fill("scale", { svg: at.svg, legend: losses.map(({ name, i }) => [name || "loss scale", i]), head: ["step", "scale", "event", "first gradient", ""].slice(0, runs.length > 1 ? 5 : 4),
      rows: runs.length > 1 ? rows : rows.map((row) => row.slice(0, 4)) });
  };

  const drawLoss = () => {
    const finite = losses.flatMap(({ loss }) => loss.values.map((v) => v[1]).filter((v) => v !== null));
    const low = Math.min(0, ...finite), high = finite.length ? Math.max(...finite, low + 1e-30) : 1;
    const ticks = (most) => (finite.length ? steps(low, high, most) : []);
    const at = frame("loss", overSteps, { from: low, to: high, at: ticks, text: short, name: "loss" }, 260);
    losses.forEach(({ loss, i, name }) => {
      let points = [];
      loss.values.concat([[0, null]]).forEach(([n, value]) => {
        if (value !== null) { points.push([at.px(n), at.py(value)]); return; }
        if (points.length) at.svg.append(path(points, i));
        points = [];
        if (n) at.svg.append(cross(at.px(n), at.top + 6, `${name} step ${n}: not finite`));
      });
    });
    const rows = losses.flatMap(({ loss, name }) => loss.values.map(([n, value]) => [n, short(value), name])).slice(0, 200);
    fill("loss", { svg: at.svg, legend: losses.map(({ name, i }) => [name || "loss", i]), head: runs.length > 1 ? ["step", "loss", ""] : ["step", "loss"],
      rows: runs.length > 1 ? rows : rows.map((row) => row.slice(0, 2)) });
  };

  // ---- exponents ----

  const subjects = new Map(); // of all runs, by key
  runs.forEach((run, i) => run.subjects.forEach((s) => {
    if (!subjects.has(s.key)) subjects.set(s.key, { label: s.label, line: s.line, what: s.what, back: s.back, of: [] });
    subjects.get(s.key).of.push({ run, i, subject: s });
  }));
  const groups = [["gradient", "Gradients"], ["scaled", "Gradients, scaled"], ["input", "Inputs of ops"], ["output", "Outputs of ops"],
                  ["weight", "Weights"], ["master", "FP32 masters"], ["update", "Updates"]];
  const shiftOf = (what) => (what === "gradient" ? Math.round(Math.max(...runs.map((run) => run.last))) : 0);

  const drawExponents = (chosen, when) => {
    const shift = shiftOf(chosen.what), shots = chosen.of.map(({ run, i, subject }) => ({ run, i,
      shot: when === "" ? subject.all : subject.shots.find((s) => String(s[0]) === when) || [0, 0, [], 0, 0, 0] }));
    const ends = shots.filter(({ shot }) => shot[2].length).flatMap(({ shot }) => [shot[1], shot[1] + shot[2].length - 1]);
    const low = Math.min(...ends, fp16.least - shift) - 1, high = Math.max(...ends, fp16.end - shift) + 1;
    const most = Math.max(1e-9, ...shots.flatMap(({ shot }) => shot[2].map((count) => part(count, shot[3]))));
    const at = frame("exponents", { from: low - 0.5, to: high + 0.5, at: (n) => powers(low, high, n), text: power, name: "magnitude" },
      { from: 0, to: most * 1.12, at: (n) => steps(0, most, n), text: (v) => +v.toPrecision(3) + " %", name: "elements" }, 300);
    const box = (from, to, opacity) => {
      const [a, b] = [Math.max(from, low) - 0.5, Math.min(to, high + 1) - 0.5];
      if (b > a) at.svg.prepend(make("rect", { x: at.px(a), y: at.top, width: at.px(b) - at.px(a), height: at.bottom - at.top, fill: "var(--shade)", "fill-opacity": opacity }));
      return (a + b) / 2;
    };
    box(fp16.least - shift, fp16.normal - shift, 0.1);
    const middle = box(fp16.normal - shift, fp16.end - shift, 0.2);
    at.svg.append(make("text", { x: at.px(middle), y: at.top + 14, "text-anchor": "middle", fill: "var(--good)" }, "fp16" + (shift ? " at scale " + power(shift) : "")));
    const wide = (at.px(1) - at.px(0)) * 0.84 / shots.length;
    shots.forEach(({ run, i, shot }, k) => shot[2].forEach((count, j) => {
      if (!count) return;
      const x = at.px(shot[1] + j) - (wide * shots.length) / 2 + k * wide, y = Math.min(at.py(part(count, shot[3])), at.bottom - 1);
      at.svg.append(make("rect", { x, y, width: Math.max(wide, 1), height: at.bottom - y, fill: colour(i) },
        title(named(run, `${power(shot[1] + j)}: ${percent(part(count, shot[3]))}`))));
    }));
    const says = ({ run, shot }) => named(run, `${shot[3]} elements, ${percent(part(shot[4], shot[3]))} are 0` + (shot[5] ? `, ${shot[5]} inf or NaN` : ""));
    const spans = ends.length ? ` Others are from ${power(Math.min(...ends))} to ${power(Math.max(...ends) + 1)}.` : "";
    const rows = shots.flatMap(({ run, shot }) => shot[2].map((count, j) => [power(shot[1] + j), count, percent(part(count, shot[3])), run.name]).filter((row) => row[1]));
    fill("exponents", { svg: at.svg, legend: shots.map((s) => [says(s), s.i]), words: `${chosen.label}${chosen.line ? ", " + chosen.line : ""}: ${shots.map(says).join("; ")}.${spans}`,
      head: ["from", "elements", "share", "run"].slice(0, runs.length > 1 ? 4 : 3), rows: runs.length > 1 ? rows : rows.map((row) => row.slice(0, 3)) });
  };

  const drawTime = (chosen) => {
    const { subject, run } = chosen.of[chosen.of.length - 1];
    const shots = subject.shots.filter((s) => s[2].length);
    element("time").style.display = shots.length > 1 ? "" : "none";
    if (shots.length < 2) return;
    const low = Math.min(...shots.map((s) => s[1])), high = Math.max(...shots.map((s) => s[1] + s[2].length - 1));
    const at = frame("time", { from: -0.5, to: shots.length - 0.5, at: (most) => steps(0, shots.length - 1, most).filter(Number.isInteger), text: (k) => String(shots[k][0]), name: named(run, "step") },
      { from: low - 0.5, to: high + 0.5, at: (most) => powers(low, high, most), text: power, name: "magnitude" }, 260);
    const wide = at.px(1) - at.px(0), tall = at.py(0) - at.py(1);
    shots.forEach((shot, k) => shot[2].forEach((count, j) => {
      const share = part(count, shot[3]);
      if (share) at.svg.append(make("rect", { x: at.px(k - 0.5), y: at.py(shot[1] + j + 0.5), width: wide + 0.3, height: tall + 0.3, fill: "var(--c0)",
        "fill-opacity": Math.max(0.06, Math.min(1, (Math.log10(share) + 3) / 4.6)).toFixed(2) }, title(`step ${shot[0]}, ${power(shot[1] + j)}: ${percent(share)}`)));
    }));
    [fp16.normal, fp16.end].map((k) => k - shiftOf(chosen.what)).filter((k) => k > low && k <= high).forEach((k) => at.svg.append(
      make("line", { x1: at.left, x2: at.right, y1: at.py(k - 0.5), y2: at.py(k - 0.5), stroke: "var(--bad)", "stroke-dasharray": "4 3" }, title("the end of fp16's normal numbers"))));
    const range = (s) => [s[0], power(s[1]), power(s[1] + s[2].length), percent(part(s[4], s[3])), s[5]];
    const [one, two] = [shots[0], shots[shots.length - 1]];
    fill("time", { svg: at.svg, legend: [], head: ["step", "from", "below", "zeros", "inf, NaN"], rows: shots.map(range),
      words: `Over time, darker is more: in step ${one[0]} from ${range(one)[1]} to ${range(one)[2]}, in step ${two[0]} from ${range(two)[1]} to ${range(two)[2]}.` });
  };

  const option = (value, text) => {
    const made = html("option", text);
    made.value = value;
    return made;
  };
  let redraw = () => {};
  const choose = () => {
    const pick = element("subject"), when = element("when");
    if (!pick || !subjects.size) return;
    groups.forEach(([what, name]) => {
      const group = document.createElement("optgroup");
      group.label = name;
      subjects.forEach((s, key) => { if (s.what === what) group.append(option(key, s.label)); });
      if (group.children.length) pick.append(group);
    });
    if (first && subjects.has(first)) pick.value = first;
    const show = () => drawExponents(subjects.get(pick.value), when.value);
    const changed = () => {
      const chosen = subjects.get(pick.value);
      const known = new Set(chosen.of.flatMap(({ subject }) => subject.shots.map((s) => s[0])));
      when.replaceChildren(option("", "all that were observed"), ...[...known].sort((a, b) => a - b).map((n) => option(String(n), "step " + n)));
      show();
      drawTime(chosen);
    };
    pick.addEventListener("change", changed);
    when.addEventListener("change", show);
    changed();
    redraw = () => { show(); drawTime(subjects.get(pick.value)); };
  };

  // ---- gradients and the scale ----

  const drawByScale = () => {
    const kinds = [["zeros", "to 0"], ["subnormals", "subnormal", "2 3"], ["infinities", "infinite", "7 4"]];
    const shown = runs.map((run, i) => [run, i]).filter(([run]) => run.byScale);
    const lines = shown.flatMap(([run, i]) => kinds.map(([name, text, dash], k) => ({ run, text, dash, i: runs.length > 1 ? i : k,
      values: run.byScale[name].map((n) => part(n, run.byScale.numbers)) })));
    const most = Math.max(1, ...lines.flatMap((line) => line.values));
    const at = frame("byscale", { from: scales[0], to: scales[scales.length - 1], at: (n) => powers(scales[0], scales[scales.length - 1], n), text: power, name: "loss scale" },
      { from: 0, to: most, at: (n) => steps(0, most, n), text: (v) => +v.toPrecision(3) + " %", name: "gradients" }, 260);
    lines.forEach((line) => at.svg.append(path(line.values.map((v, k) => [at.px(scales[k]), at.py(v)]), line.i, line.dash)));
    shown.forEach(([run, i]) => { if (run.last >= scales[0]) at.svg.append(make("line", { x1: at.px(run.last), x2: at.px(run.last), y1: at.top, y2: at.bottom, stroke: colour(i), "stroke-opacity": 0.5 },
      title(named(run, "the last scale: " + power(Math.round(run.last)))))); });
    fill("byscale", { svg: at.svg, legend: lines.map((line) => [named(line.run, line.text), line.i]), head: ["scale", ...lines.map((line) => named(line.run, line.text))],
      rows: scales.map((k, j) => [power(k), ...lines.map((line) => percent(line.values[j]))]) });
  };

  const all = () => {
    if (element("scale")) drawScale();
    if (element("loss")) drawLoss();
    if (element("byscale")) drawByScale();
  };
  document.querySelectorAll("table").forEach(prepare);
  all();
  choose();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    all();
    redraw();
  });
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
