"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const boxes = [...document.querySelectorAll("#keys input")];
  const isShown = (i) => boxes[i].checked;
  const UNITS = { seconds: " s", accuracy: " %" };
  const unit = (name) => UNITS[name] ?? "";
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const THEMES = ["auto", "light", "dark"];
  let choice = "auto";
  let printing = false;
  const PAPER = 680; // pixels that fit an upright page, A4 or letter

  // -- colours ---------------------------------------------------------------------------------------
  const isDark = () => !printing && (choice === "dark" || (choice === "auto" && system.matches));
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (series) => (isDark() ? series.style.dark : series.style.colour);
  const faded = (hex, alpha) => {
    const part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
  };
  const paint = () => {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
    drawCurves();
    drawRaster();
  };

  // -- the curves ------------------------------------------------------------------------------------
  const column = (rows, name) => (name === "seconds" ? rows.seconds[$("network").value] : rows[name]);
  const percent = (values, y) => (y === "accuracy" ? values.map((v) => (v === null ? null : 100 * v)) : values);
  const narrow = () => window.innerWidth < 600;

  // On a logarithmic axis: powers of ten over many decades, 1 2 5 over a few, Plotly's own choice within one.
  const spacing = (values) => {
    const positive = values.flat().filter((v) => v > 0);
    if (positive.length === 0) return undefined;
    const decades = Math.log10(positive.reduce((a, b) => Math.max(a, b)) / positive.reduce((a, b) => Math.min(a, b)));
    return decades > (narrow() ? 1.5 : 4) ? 1 : decades > 0.8 ? "D2" : undefined;
  };

  // 10k, 1M; but no thousandths: 1m would be read as a minute.
  const counts = (values) => (values.flat().some((v) => v > 0 && v < 1) ? ".3~g" : "~s");

  const axis = (title, log, format, values = []) => ({
    tickformat: format,
    dtick: log ? spacing(values) : undefined,
    title: { text: title, standoff: 8 },
    type: log ? "log" : "linear",
    gridcolor: variable("--line"),
    linecolor: variable("--faint"),
    zeroline: false,
    automargin: true,
    nticks: narrow() ? 5 : 10,
    minor: { showgrid: false },
  });

  const layout = (more) => ({
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: variable("--text"), size: 13, family: getComputedStyle(document.body).fontFamily },
    margin: narrow() ? { l: 48, r: 12, t: 14, b: 44 } : { l: 64, r: 20, t: 18, b: 50 },
    showlegend: false,
    width: printing ? PAPER : undefined,
    hoverlabel: { bgcolor: variable("--panel"), bordercolor: variable("--line"), font: { color: variable("--text") } },
    ...more,
  });
  const CONFIG = { responsive: true, displayModeBar: false };

  const line = (series, more) => ({
    type: "scatter",
    name: series.label,
    line: { color: colour(series), dash: series.style.dash, width: 2 },
    marker: {
      symbol: series.style.marker + (series.style.hollow ? "-open" : ""),
      size: 8,
      color: colour(series),
      maxdisplayed: 8,
      line: { width: series.style.hollow ? 2 : 0, color: colour(series) },
    },
    ...more,
  });

  // A logarithmic axis has no zero: the start, at which nothing was spent yet, is left out there.
  const kept = (trace) => {
    if (!$("xlog").checked) return trace;
    const keep = (values) => values.filter((_, k) => trace.x[k] > 0);
    return { ...trace, x: keep(trace.x), y: keep(trace.y) };
  };

  const traces = (x, y) => {
    const found = [];
    const logY = $("ylog").checked && y === "loss";
    data.series.forEach((series, i) => {
      if (!isShown(i)) return;
      const xs = column(series.mean, x);
      const ys = percent(series.mean[y], y);
      const spread = percent(series.mean[`${y}_spread`], y);
      if ($("band").checked && spread.some((s) => s > 0)) {
        // A logarithmic axis has no place below zero: the band ends at a hundredth of the mean.
        const low = ys.map((v, k) => (logY ? Math.max(v - spread[k], 0.01 * v) : v - spread[k]));
        const high = ys.map((v, k) => v + spread[k]);
        const none = { type: "scatter", mode: "lines", hoverinfo: "skip", line: { width: 0 }, x: xs };
        found.push({ ...none, y: low });
        found.push({ ...none, y: high, fill: "tonexty", fillcolor: faded(colour(series), 0.14) });
      }
      if ($("every").checked) {
        series.seeds.forEach((seed) => {
          found.push({
            type: "scatter",
            mode: "lines",
            name: `${series.label}, seed ${seed.seed}`,
            line: { color: faded(colour(series), 0.55), width: 1 },
            x: column(seed, x),
            y: percent(seed[y], y),
            hovertemplate: hover(x, y),
          });
        });
      }
      found.push(line(series, { mode: "lines+markers", x: xs, y: ys, hovertemplate: hover(x, y), meta: "mean" }));
    });
    return found.map(kept);
  };

  const hover = (x, y) => {
    const number = x === "seconds" ? "%{x:.4~g}" : "%{x:.4~s}";
    return `%{fullData.name}<br>${data.axes[x]} ${number}${unit(x)}<br>${y} %{y:.4~g}${unit(y)}<extra></extra>`;
  };

  const drawCurves = () => {
    const x = $("x").value;
    const y = $("y").value;
    const timed = x === "seconds";
    $("network-label").style.display = timed ? "" : "none";
    $("ylog").disabled = y !== "loss";
    const xTitle = timed ? `simulated seconds (${$("network").value})` : data.axes[x];
    const yTitle = y === "loss" ? "training loss" : "test accuracy (%)";
    const drawn = traces(x, y);
    const all = (key) => drawn.map((trace) => trace[key]);
    const look = {
      xaxis: axis(xTitle, $("xlog").checked, counts(all("x")), all("x")),
      yaxis: axis(yTitle, y === "loss" && $("ylog").checked, ".3~g", all("y")),
      hovermode: "closest",
    };
    if (y === "loss") {
      look.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: data.target, y1: data.target, line: { color: variable("--faint"), width: 1, dash: "dot" } }];
    }
    Plotly.react($("chart"), drawn, layout(look), CONFIG);
    const shown = data.series.filter((_, i) => isShown(i)).length;
    const goal = y === "loss" ? ` The dotted line is loss ${data.target}.` : "";
    $("chart-text").textContent =
      `${yTitle} against ${xTitle}, ${shown} of ${data.series.length} algorithms; a point is the mean over seeds after the same number of rounds, so a curve ends where its first seed ends.${goal}`;
    $("chart").setAttribute("aria-label", `${yTitle} against ${xTitle}`);
  };

  // -- the values, by keyboard ---------------------------------------------------------------------------
  const at = { curve: 0, point: 0 };
  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  const readPoint = (event) => {
    if (!(event.key in STEPS)) return;
    event.preventDefault();
    const drawn = $("chart").data;
    const means = drawn.map((_, i) => i).filter((i) => drawn[i].meta === "mean" && drawn[i].x.length > 0);
    if (means.length === 0) return;
    const [curves, points] = STEPS[event.key];
    at.curve = (at.curve + curves + means.length) % means.length;
    const trace = drawn[means[at.curve]];
    at.point = Math.max(0, Math.min(trace.x.length - 1, at.point + points));
    Plotly.Fx.hover($("chart"), [{ curveNumber: means[at.curve], pointNumber: at.point }]);
    const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
    const x = $("x").value;
    const y = $("y").value;
    $("chart-point").textContent =
      `${trace.name}: ${data.axes[x]} ${number(trace.x[at.point])}${unit(x)}, ${y} ${number(trace.y[at.point])}${unit(y)}`;
  };

  // -- who uploads when --------------------------------------------------------------------------------
  const bytes = new Map();
  const unpacked = (i) => {
    if (!bytes.has(i)) bytes.set(i, Uint8Array.from(atob(data.series[i].raster.bits), (c) => c.charCodeAt(0)));
    return bytes.get(i);
  };

  const drawRaster = () => {
    const i = Number($("raster-series").value);
    const series = data.series[i];
    const raster = series.raster;
    const length = Number($("raster-length").value);
    const most = Math.max(0, raster.rounds - length);
    $("raster-from").max = String(most);
    const from = Math.min(Number($("raster-from").value), most);
    $("raster-at").textContent = String(from);
    const packed = unpacked(i);
    const count = raster.workers.length;
    const xs = [];
    const ys = [];
    const end = Math.min(raster.rounds, from + length);
    for (let k = from; k < end; k += 1) {
      for (let m = 0; m < count; m += 1) {
        const at = k * count + m;
        if (packed[at >> 3] & (128 >> (at & 7))) {
          xs.push(k);
          ys.push(raster.workers[m]);
        }
      }
    }
    const height = Math.max(220, Math.min(560, 14 * count + 90));
    $("raster").style.height = `${height}px`;
    const wide = $("raster").clientWidth / (length + 10);
    const trace = {
      type: "scatter",
      mode: "markers",
      x: xs,
      y: ys,
      marker: { symbol: "square", size: Math.max(2, Math.min(9, 0.8 * wide, 0.7 * ((height - 70) / count))), color: colour(series) },
      hovertemplate: "worker %{y}, round %{x}<extra></extra>",
    };
    const look = {
      height,
      xaxis: { ...axis("round", false, "d"), range: [from - 1, from + length] },
      yaxis: { ...axis("worker", false, "d"), range: [raster.all_workers - 0.4, -0.6], showgrid: false },
      hovermode: "closest",
    };
    Plotly.react($("raster"), [trace], layout(look), CONFIG);
    const possible = (end - from) * count;
    const share = possible ? ((100 * xs.length) / possible).toFixed(1) : "0";
    const some = count < raster.all_workers ? ` ${count} of ${raster.all_workers} workers are shown.` : "";
    const cut = raster.rounds < raster.all_rounds ? ` The first ${raster.rounds} of ${raster.all_rounds} rounds are kept here.` : "";
    $("raster-text").textContent =
      `${series.label}, seed ${raster.seed}, rounds ${from} to ${Math.max(from, end - 1)}: ${xs.length} uploads of ${possible} possible (${share} %). A dot is an upload.${some}${cut}`;
    $("raster").setAttribute("aria-label", `Uploads of ${series.label}: workers against rounds`);
  };

  // -- controls ----------------------------------------------------------------------------------------
  const setAll = (shown) => {
    boxes.forEach((box) => {
      box.checked = shown;
    });
    drawCurves();
  };
  boxes.forEach((box) => box.addEventListener("change", drawCurves));
  $("chart").addEventListener("keydown", readPoint);
  $("chart").addEventListener("blur", () => {
    $("chart-point").textContent = "";
    Plotly.Fx.unhover($("chart"));
  });
  $("all").addEventListener("click", () => setAll(true));
  $("none").addEventListener("click", () => setAll(false));
  ["x", "y", "network", "xlog", "ylog", "band", "every"].forEach((id) => $(id).addEventListener("change", drawCurves));
  $("raster-series").addEventListener("change", () => {
    $("raster-from").value = "0";
    drawRaster();
  });
  $("raster-length").addEventListener("change", drawRaster);
  $("raster-from").addEventListener("input", drawRaster);
  $("theme").addEventListener("click", () => {
    choice = THEMES[(THEMES.indexOf(choice) + 1) % THEMES.length];
    $("theme").textContent = `Colours: ${choice}`;
    $("theme").setAttribute("aria-label", choice === "auto" ? "Colours: as the system has them" : `Colours: ${choice}`);
    paint();
  });
  system.addEventListener("change", paint);
  window.addEventListener("resize", () => {
    drawCurves();
    drawRaster();
  });

  // Paper is white, and has nothing to unfold.
  const opened = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    document.querySelectorAll("section > details:not([open])").forEach((one) => {
      one.open = true;
      opened.push(one);
    });
    paint();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    opened.splice(0).forEach((one) => {
      one.open = false;
    });
    paint();
    // Plotly keeps the width of the paper until it is told to look again.
    [$("chart"), $("raster")].forEach((one) => Plotly.relayout(one, { width: null, autosize: true }));
  });

  if (narrow()) $("raster-length").value = "100";
  paint();
})();
