// SPDX-License-Identifier: Apache-2.0
// Draws the figures of the page from the JSON in #data, by Plotly.
"use strict";
(() => {
  const { runs, windows, scales } = JSON.parse(document.getElementById("data").textContent);
  const [fp16] = windows;
  const colours = ["#1f5fa8", "#c2571a", "#2e7d4f", "#7a4fa3", "#8a6d1f", "#b3261e"];
  const narrow = () => window.innerWidth < 640;
  const element = (name) => document.getElementById(name);
  // Plotly reads some HTML in its texts; what comes from the trace is none.
  const plain = (text) => String(text).replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
  const named = (run, text) => (runs.length > 1 ? plain(run.name) + (text ? ": " + text : "") : text);
  const power = (k) => "2<sup>" + k + "</sup>";
  const percent = (part, whole) => (whole ? (100 * part) / whole : 0);

  const draw = (name, traces, layout) => {
    const common = {
      margin: { l: 56, r: 12, t: 8, b: 44 }, height: narrow() ? 300 : 360, autosize: true, hovermode: "closest",
      font: { family: 'system-ui, "DejaVu Sans", sans-serif', size: narrow() ? 11 : 13, color: "#1c2733" },
      paper_bgcolor: "#fff", plot_bgcolor: "#fff", showlegend: traces.length > 1, bargap: 0.08, barmode: "group",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    };
    [layout.xaxis, layout.yaxis].forEach((axis) => Object.assign(axis, { ticks: "outside", ticklen: 5, zeroline: false }));
    Plotly.react(element(name), traces, { ...common, ...layout }, { responsive: true, displaylogo: false, displayModeBar: false });
  };

  // Ticks of exponents, as many as there is room for.
  const powers = (from, to) => {
    const step = [1, 2, 4, 8, 16, 32, 64].find((s) => (to - from) / s <= (narrow() ? 8 : 16)) || 128;
    const at = [];
    for (let k = Math.ceil(from / step) * step; k <= to; k += step) at.push(k);
    return { tickmode: "array", tickvals: at, ticktext: at.map(power) };
  };

  const drawScale = () => {
    const traces = [], heights = [];
    runs.forEach((run, i) => run.scale.forEach((loss) => {
      const colour = colours[(i + loss.loss * runs.length) % colours.length];
      const title = named(run, run.scale.length > 1 ? "loss " + loss.loss : runs.length > 1 ? "" : "loss scale");
      heights.push(...loss.scale.map(Math.log2));
      traces.push({ x: loss.n, y: loss.scale.map(Math.log2), mode: "lines", line: { shape: "hv", color: colour }, name: title,
                    customdata: loss.scale, hovertemplate: "bracket %{x}: %{customdata}<extra></extra>" });
      if (loss.skips.length) {
        traces.push({ x: loss.skips.map((s) => s[0]), y: loss.skips.map((s) => Math.log2(s[1])), mode: "markers",
                      marker: { symbol: "x", color: "#b3261e", size: narrow() ? 6 : 8 },
                      name: named(run, loss.skips.length + " skipped"),
                      text: loss.skips.map((s) => (s[2] ? plain(s[2]) : "")),
                      hovertemplate: "skipped: bracket %{x} %{text}<extra></extra>" });
      }
    }));
    const [low, high] = [Math.min(...heights) - 1, Math.max(...heights) + 1];
    draw("scale", traces, { xaxis: { title: { text: "bracket" } }, yaxis: { range: [low, high], ...powers(low, high) } });
  };

  // ---- exponents ----

  const subjects = new Map(); // of all runs, by key
  runs.forEach((run, i) => run.subjects.forEach((s) => {
    if (!subjects.has(s.key)) subjects.set(s.key, { label: s.label, what: s.what, of: [] });
    subjects.get(s.key).of.push({ run, i, subject: s });
  }));
  const groups = [["gradient", "Gradients"], ["scaled", "Gradients, scaled"], ["input", "Inputs of ops"], ["output", "Outputs of ops"],
                  ["weight", "Weights"], ["master", "FP32 masters"], ["update", "Updates"]];

  const sum = (shots) => {
    const total = new Map();
    let elements = 0, zeros = 0, bad = 0;
    shots.forEach(([, first, binades, n, z, b]) => {
      elements += n; zeros += z; bad += b;
      binades.forEach((count, k) => total.set(first + k, (total.get(first + k) || 0) + count));
    });
    return { total, elements, zeros, bad };
  };

  // The windows as shapes, moved down by the scale that a gradient will have had.
  const shapes = (what, low, high, shift) => {
    const drawn = [], notes = [];
    const box = (from, to, colour) => drawn.push({ type: "rect", xref: "x", yref: "paper", x0: Math.max(from, low) - 0.5,
      x1: Math.min(to, high + 1) - 0.5, y0: 0, y1: 1, fillcolor: colour, line: { width: 0 }, layer: "below" });
    box(fp16.least - shift, fp16.normal - shift, "rgba(46,125,79,.10)");
    box(fp16.normal - shift, fp16.end - shift, "rgba(46,125,79,.22)");
    notes.push({ x: (Math.max(fp16.normal - shift, low) + Math.min(fp16.end - shift, high + 1)) / 2 - 0.5, y: 1, yref: "paper",
                 yanchor: "top", showarrow: false, font: { color: "#2e7d4f" },
                 text: shift ? "fp16 at scale " + power(shift) : "fp16" });
    if (shift) {
      [fp16.least, fp16.end].forEach((k) => drawn.push({ type: "line", xref: "x", yref: "paper", x0: k - 0.5, x1: k - 0.5, y0: 0,
        y1: 1, line: { color: "#2e7d4f", dash: "dot", width: 1 } }));
      notes.push({ x: fp16.end - 0.5, y: 0.9, yref: "paper", xanchor: "right", showarrow: false, text: "fp16 unscaled",
                   font: { color: "#2e7d4f" } });
    }
    return { shapes: drawn, annotations: notes.filter((note) => note.x >= low && note.x <= high + 1) };
  };

  const shiftOf = (what) => (what === "gradient" ? Math.round(Math.max(...runs.map((run) => run.last))) : 0);

  const drawExponents = (chosen, when) => {
    const traces = [], all = [];
    chosen.of.forEach(({ run, i, subject }) => {
      const shots = when === "" ? subject.shots : subject.shots.filter((s) => String(s[0]) === when);
      const { total, elements, zeros, bad } = sum(shots);
      const at = [...total.keys()].filter((k) => total.get(k)).sort((a, b) => a - b);
      all.push(...at);
      traces.push({ type: "bar", x: at, y: at.map((k) => percent(total.get(k), elements)), marker: { color: colours[i % 6] },
        name: named(run, percent(zeros, elements).toPrecision(3) + " % are 0" + (bad ? ", " + bad + " inf or NaN" : "")),
        hovertemplate: "2<sup>%{x}</sup>: %{y:.3g} %<extra></extra>" });
    });
    const shift = shiftOf(chosen.what);
    const low = Math.min(...all, fp16.least - shift) - 1, high = Math.max(...all, fp16.end) + 1;
    draw("exponents", traces, { ...shapes(chosen.what, low, high, shift), showlegend: true,
      xaxis: { range: [low - 0.5, high + 0.5], title: { text: "exponent" }, ...powers(low, high) },
      yaxis: { title: { text: "% of elements" }, rangemode: "tozero" } });
  };

  const drawTime = (chosen) => {
    const { subject, run } = chosen.of[chosen.of.length - 1];
    const element_ = element("time");
    element_.style.display = subject.shots.length > 1 ? "" : "none";
    if (subject.shots.length < 2) return;
    const low = Math.min(...subject.shots.filter((s) => s[2].length).map((s) => s[1]));
    const high = Math.max(...subject.shots.map((s) => s[1] + s[2].length - 1));
    const rows = [];
    for (let k = low; k <= high; k++) rows.push(k);
    const z = rows.map((k) => subject.shots.map(([, first, binades, n]) => {
      const part = percent(binades[k - first] || 0, n);
      return part ? Math.log10(part) : null;
    }));
    const ends = [-3, -2, -1, 0, 1, 2];
    draw("time", [{ type: "heatmap", x: subject.shots.map((s) => "" + s[0]), y: rows, z, colorscale: "Viridis", zmin: -3, zmax: 2,
      colorbar: { title: { text: "%" }, tickvals: ends, ticktext: ends.map((k) => "" + 10 ** k), thickness: 12 },
      hovertemplate: "bracket %{x}, 2<sup>%{y}</sup><extra></extra>" }],
      { xaxis: { type: "category", nticks: narrow() ? 5 : 12, title: { text: named(run, "bracket") } },
        yaxis: { range: [low - 0.5, high + 0.5], ...powers(low, high) },
        shapes: [fp16.normal, fp16.end].map((k) => k - shiftOf(chosen.what)).filter((k) => k > low && k <= high).map((k) => (
          { type: "line", xref: "paper", x0: 0, x1: 1, y0: k - 0.5, y1: k - 0.5, line: { color: "#b3261e", dash: "dot", width: 1.5 } })) });
  };

  const option = (value, text) => {
    const made = document.createElement("option");
    made.value = value;
    made.textContent = text;
    return made;
  };

  const choose = () => {
    const pick = element("subject"), when = element("when");
    if (!pick || !subjects.size) return;
    groups.forEach(([what, title]) => {
      const group = document.createElement("optgroup");
      group.label = title;
      subjects.forEach((s, key) => { if (s.what === what) group.append(option(key, s.label)); });
      if (group.children.length) pick.append(group);
    });
    const show = () => drawExponents(subjects.get(pick.value), when.value);
    const changed = () => {
      const chosen = subjects.get(pick.value);
      const brackets = new Set(chosen.of.flatMap(({ subject }) => subject.shots.map((s) => s[0])));
      when.replaceChildren(option("", "all that were observed"),
        ...[...brackets].sort((a, b) => a - b).map((n) => option(String(n), "bracket " + n)));
      show();
      drawTime(chosen);
    };
    pick.addEventListener("change", changed);
    when.addEventListener("change", show);
    changed();
  };

  const drawByScale = () => {
    const traces = [];
    runs.forEach((run, i) => {
      const by = run.byScale;
      if (!by) return;
      [["zeros", "to 0", "solid"], ["subnormals", "subnormal", "dot"], ["infinities", "infinite", "dash"]].forEach(([name, title, dash], k) =>
        traces.push({ x: scales, y: by[name].map((n) => percent(n, by.numbers)), mode: "lines", name: named(run, title),
          line: { dash, color: colours[runs.length > 1 ? i : k] }, hovertemplate: "scale 2<sup>%{x}</sup>: %{y:.3g} %<extra></extra>" }));
    });
    draw("byscale", traces, { xaxis: { title: { text: "loss scale" }, ...powers(0, 24) },
      yaxis: { title: { text: "% of gradients" }, rangemode: "tozero" } });
  };

  const all = () => {
    if (element("scale")) drawScale();
    if (element("byscale")) drawByScale();
  };
  all();
  choose();
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
