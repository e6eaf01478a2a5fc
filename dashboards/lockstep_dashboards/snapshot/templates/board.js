"use strict";
// Draws the figures of the page by uPlot, follows its legends, and refreshes a page that is served.
(() => {
  const board = document.getElementById("board");
  const root = document.documentElement;
  const plots = new Map();
  const sync = uPlot.sync("board");
  let figures = { panels: {}, events: [] };

  const ink = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(5, 19).replace("T", " ");
  const text = (figure, value) => {
    const [divisor, suffix] = figure.scale;
    const digits = Number((value / divisor).toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
    return digits + suffix;
  };
  const times = (figure) =>
    Array.from({ length: figure.count }, (_, index) => figure.begin + index * figure.step);

  // Where no series has a value there is no stack: an empty time is not a zero.
  const stacked = (figure) => {
    const sums = Array.from({ length: figure.count }, (_, index) =>
      (figure.series.some(({ values }) => values[index] !== null) ? 0 : null));
    return figure.series.map(({ values }) => values.map((value, index) =>
      (sums[index] === null ? null : (sums[index] += value ?? 0))));
  };

  // An event is a line where it begins and a region while it lasts, on every axis of time.
  const eachEvent = (plot, fill) => {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const [begin, end, color] of figures.events) {
      const [left, right] = [begin, end].map((at) =>
        Math.min(Math.max(plot.valToPos(at, "x", true), bbox.left), bbox.left + bbox.width));
      ctx.fillStyle = color;
      fill(ctx, left, right, bbox, color);
    }
    ctx.restore();
  };
  // Events of a colour that overlap are one region: twenty alerts would otherwise cover the series.
  const drawRegions = (plot) => {
    const covered = {};
    eachEvent(plot, (ctx, left, right, bbox, color) => {
      const from = Math.max(left, covered[color] ?? left);
      ctx.globalAlpha = 0.1;
      if (right > from) ctx.fillRect(from, bbox.top, right - from, bbox.height);
      covered[color] = Math.max(right, from);
    });
  };
  const drawBegins = (plot) => eachEvent(plot, (ctx, left, _, bbox) => {
    if (left > bbox.left) ctx.fillRect(left, bbox.top, 1.5 * devicePixelRatio, bbox.height);
  });

  const drawLimits = (plot, figure) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    for (const [limit, color] of figure.limits) {
      const y = plot.valToPos(limit, "y", true);
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      ctx.strokeStyle = color;
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    ctx.restore();
  };

  // Rows of cells: a heat map is more opaque where there is more, a state has its colour.
  const drawCells = (plot, figure) => {
    const { ctx } = plot;
    const cell = (row, first, last, color, alpha) => {
      const [left, right] = [first, last + 1].map((n) =>
        plot.valToPos(figure.begin + (n - 0.5) * figure.step, "x", true));
      const [top, bottom] = [row, row + 1].map((n) => plot.valToPos(n, "y", true));
      ctx.fillStyle = color;
      ctx.globalAlpha = alpha;
      ctx.fillRect(left, top + 1, Math.max(right - left, 1), Math.max(bottom - top - 2, 1));
    };
    ctx.save();
    ctx.beginPath();
    ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    ctx.clip();
    const heat = ink("--heat");
    (figure.bars ?? []).forEach((bars, row) => bars.forEach(([value, first, last]) =>
      cell(row, first, last, figure.states[String(value)][1], 1)));
    (figure.values ?? []).forEach((values, row) => values.forEach((value, index) => {
      if (value === null) return;
      const share = (value - figure.min) / (figure.max - figure.min);
      cell(row, index, index, heat, Math.min(Math.max(share, 0), 1) ** figure.exponent);
    }));
    ctx.restore();
  };

  const tooltip = (figure) => (plot) => {
    const box = plot.over.querySelector(".tip");
    const { idx, left, top } = plot.cursor;
    box.hidden = idx === null || idx === undefined || left < 0;
    if (box.hidden) return;
    const lines = [clock(figure.begin + idx * figure.step)];
    if (figure.kind === "lines") {
      const present = figure.series
        .map((series, index) => [series.name, series.values[idx], plot.series[index + 1].show])
        .filter(([, value, isShown]) => isShown && value !== null)
        .sort((one, other) => other[1] - one[1]);
      lines.push(...present.slice(0, 12).map(([name, value]) => `${name}: ${text(figure, value)}`));
    } else {
      const row = Math.floor(plot.posToVal(top, "y"));
      const state = (figure.bars?.[row] ?? []).find(([, first, last]) => first <= idx && idx <= last);
      const value = figure.values?.[row]?.[idx];
      if (state) lines.push(`${figure.rows[row]}: ${figure.states[String(state[0])][0]}`);
      if (value !== null && value !== undefined) lines.push(`${figure.rows[row]}: ${text(figure, value)}`);
    }
    box.textContent = lines.join("\n");
    box.style.left = left > plot.over.clientWidth / 2 ? "auto" : `${left + 12}px`;
    box.style.right = left > plot.over.clientWidth / 2 ? `${plot.over.clientWidth - left + 12}px` : "auto";
  };

  const range = (figure) => (plot, low, high) => {
    if (low === null) return [0, 1];
    const limits = figure.limits.map(([at]) => at).filter((at) => at <= 2 * high);
    const top = figure.max ?? Math.max(high, ...limits);
    const room = (top - Math.min(low, 0)) * 0.05 || Math.abs(top) * 0.5 || 1;
    const bottom = figure.min ?? (low >= 0 && (low <= 0.5 * top || figure.stacked) ? 0 : low - room);
    return [bottom, figure.max ?? top + room];
  };

  const axes = (figure, width, height) => {
    const common = { stroke: ink("--ink"), grid: { stroke: ink("--grid"), width: 1 }, ticks: { show: false }, font: "12px sans-serif" };
    const isLong = figure.count * figure.step > 90000;
    const label = (at) => (isLong ? clock(at).slice(0, 11) : clock(at).slice(6, 11));
    const time = { ...common, space: 90, values: (_, splits) => splits.map(label) };
    if (figure.kind === "lines") {
      // Ticks are round numbers of the unit that is written.
      const incrs = Array.from({ length: 60 }, (_, n) => [1, 2, 5][n % 3] * 10 ** (Math.floor(n / 3) - 10) * figure.scale[0]);
      return [time, { ...common, size: 74, incrs, values: (_, splits) => splits.map((at) => text(figure, at)) }];
    }
    const longest = Math.max(...figure.rows.map((name) => name.length));
    const every = Math.ceil((14 * figure.rows.length) / Math.max(height - 50, 14));
    return [time, {
      ...common,
      grid: { show: false },
      size: Math.min(7 * longest + 12, width / 3),
      splits: () => figure.rows.map((_, row) => row + 0.5).filter((_, row) => row % every === 0),
      values: (plot, splits) => splits.map((at) => figure.rows[Math.floor(at)].slice(-Math.floor(width / 21))),
    }];
  };

  const series = (figure) => figure.series.map(({ name, color, dash }) => ({
    label: name,
    stroke: color,
    width: figure.stacked ? 0.5 : 1.6,
    fill: figure.stacked ? color : undefined,
    dash: { dash: [8, 4], dot: [2, 3] }[dash],
    points: { show: figure.count < 3 },
  }));

  const make = (box, figure) => {
    const isLines = figure.kind === "lines";
    const rows = figure.rows ?? [];
    const values = isLines ? (figure.stacked ? stacked(figure) : figure.series.map((x) => x.values)) : [times(figure).map(() => null)];
    const options = {
      width: box.clientWidth,
      height: box.clientHeight,
      tzDate: utc,
      legend: { show: false },
      cursor: { sync: { key: sync.key }, y: false, drag: { x: true, y: false } },
      scales: {
        x: { time: true, range: (_, low, high) => [low ?? figure.begin, high ?? figure.begin + figure.step] },
        y: isLines ? { range: range(figure) } : { range: [0, rows.length], dir: -1 },
      },
      series: [{}, ...(isLines ? series(figure) : [{ paths: () => null, points: { show: false } }])],
      bands: isLines && figure.stacked ? figure.series.slice(1).map((_, index) => ({ series: [index + 2, index + 1] })) : undefined,
      axes: axes(figure, box.clientWidth, box.clientHeight),
      hooks: {
        init: [(plot) => {
          const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
          plot.over.append(tip);
        }],
        drawAxes: [drawRegions],
        draw: [(plot) => (isLines ? drawLimits(plot, figure) : drawCells(plot, figure)), drawBegins],
        setCursor: [tooltip(figure)],
      },
    };
    return new uPlot(options, [times(figure), ...values], box);
  };

  const draw = () => {
    plots.forEach((plot) => plot.destroy());
    plots.clear();
    figures = JSON.parse(document.getElementById("figures").textContent);
    for (const box of document.querySelectorAll(".plot")) plots.set(box.id, make(box, figures.panels[box.id]));
    root.dataset.drawn = "yes";
  };

  const fit = () => plots.forEach((plot, id) => {
    const box = document.getElementById(id);
    if (box) plot.setSize({ width: box.clientWidth, height: box.clientHeight });
  });

  // A click hides a series; with Shift or Ctrl it hides all others, or shows them again.
  const hide = (entry, onlyThis) => {
    const legend = entry.closest(".legend");
    const entries = [...legend.querySelectorAll("button")];
    const isLone = entries.every((other) => (other.getAttribute("aria-pressed") === "true") === (other === entry));
    for (const other of entries) {
      const isShown = other.getAttribute("aria-pressed") === "true";
      const next = onlyThis ? isLone || other === entry : other === entry ? !isShown : isShown;
      other.setAttribute("aria-pressed", String(next));
      plots.get(legend.dataset.plot).setSeries(Number(other.dataset.series), { show: next });
    }
  };

  const csv = (article) => {
    const quote = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
    const figure = figures.panels[article.querySelector(".plot")?.id];
    if (figure) {
      const rows = figure.series ?? figure.rows.map((name, row) => ({ name, values: figure.values?.[row] ??
        times(figure).map((_, at) => (figure.bars[row].find((bar) => bar[1] <= at && at <= bar[2]) ?? [""])[0]) }));
      const lines = times(figure).map((at, index) => [new Date(at * 1000).toISOString(), ...rows.map((x) => x.values[index])]);
      return [["time", ...rows.map((x) => x.name)], ...lines].map((line) => line.map(quote).join(",")).join("\n");
    }
    const cells = [...article.querySelectorAll("tr")].map((row) => [...row.children].map((x) => x.textContent));
    const pairs = [...article.querySelectorAll(".bars .label, .stat")].map((x) =>
      x.matches(".stat") ? [...x.children].map((part) => part.textContent) : [x.textContent, x.nextElementSibling.nextElementSibling.textContent]);
    return [...cells, ...pairs].map((line) => line.map(quote).join(",")).join("\n");
  };

  board.addEventListener("click", (event) => {
    const entry = event.target.closest(".legend button");
    if (entry) hide(entry, event.ctrlKey || event.metaKey || event.shiftKey);
    const saving = event.target.closest(".csv");
    if (saving) {
      const content = new Blob([csv(saving.closest("article"))], { type: "text/csv" });
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(content), download: `${saving.dataset.title}.csv` });
      link.click();
      URL.revokeObjectURL(link.href);
    }
  });

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = getComputedStyle(root).colorScheme === "dark" ? "light" : "dark";
    try { localStorage.setItem("lockstep-theme", root.dataset.theme); } catch { /* a file may not */ }
    draw();
  });
  addEventListener("resize", fit);
  addEventListener("beforeprint", fit);
  addEventListener("afterprint", fit);
  matchMedia("print").addEventListener("change", fit);

  const refreshSeconds = Number(document.body.dataset.refresh);
  for (const field of document.querySelectorAll("form.controls select")) {
    field.addEventListener("change", () => {
      // A begin that moves with time needs an end that does.
      if (field.name === "from" && field.value.startsWith("now")) field.form.elements.to.value = "now";
      field.form.submit();
    });
  }
  const refresh = async () => {
    // Whoever reads a panel closely is not interrupted.
    if (!document.hidden && !document.querySelector("article:hover .plot, details[open]")) {
      const address = new URL(location.href);
      address.searchParams.set("part", "panels");
      try {
        const answer = await fetch(address);
        board.innerHTML = await answer.text();
        draw();
        document.title = document.title.replace(/^no answer – /, "");
      } catch {
        document.title = "no answer – " + document.title.replace(/^no answer – /, "");
      }
    }
    setTimeout(refresh, refreshSeconds * 1000);
  };
  if (refreshSeconds > 0) {
    try {
      root.dataset.theme = localStorage.getItem("lockstep-theme") ?? root.dataset.theme;
    } catch { /* storage is turned off */ }
    setTimeout(refresh, refreshSeconds * 1000);
  }
  draw();
})();
