"use strict";
// Draws the figures of the page, follows clicks in legends, and refreshes a page that is served.
(() => {
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
  const board = document.getElementById("board");
  const plots = () => [...document.querySelectorAll(".plot")];
  let isZooming = false;

  // One crosshair and one range of time over all panels, as on a board of Grafana.
  const followZoom = (changed, event) => {
    const isReset = Boolean(event["xaxis.autorange"]);
    if (isZooming || !(isReset || "xaxis.range[0]" in event)) return;
    const range = [event["xaxis.range[0]"], event["xaxis.range[1]"]];
    isZooming = true;
    Promise.all(plots().filter((plot) => plot.layout && (isReset || plot !== changed)).map((plot) =>
      Plotly.relayout(plot, { "xaxis.range": isReset ? plot.wholeRange : range })))
      .finally(() => { isZooming = false; });
  };

  const draw = async () => {
    const figures = JSON.parse(document.getElementById("figures").textContent);
    for (const plot of plots()) {
      const figure = figures[plot.dataset.panel];
      plot.wholeRange = [...figure.layout.xaxis.range];
      await Plotly.newPlot(plot, figure.data, figure.layout, CONFIG);
      plot.on("plotly_relayout", (event) => followZoom(plot, event));
    }
    document.documentElement.dataset.drawn = "yes";
  };

  // A click hides a series, a double click all others.
  const hide = (entry, onlyThis) => {
    const legend = entry.closest(".legend");
    const plot = document.querySelector(`.plot[data-panel="${CSS.escape(legend.dataset.panel)}"]`);
    const entries = [...legend.children];
    const isLone = entries.every((other) => other.classList.contains("off") === (other !== entry));
    for (const other of entries) {
      if (onlyThis) other.classList.toggle("off", !isLone && other !== entry);
    }
    if (!onlyThis) entry.classList.toggle("off");
    const visible = entries.map((other) => (other.classList.contains("off") ? "legendonly" : true));
    Plotly.restyle(plot, { visible }, entries.map((other) => Number(other.dataset.trace)));
  };
  board.addEventListener("click", (event) => {
    const entry = event.target.closest(".legend li");
    if (entry) hide(entry, event.ctrlKey || event.metaKey || event.shiftKey);
  });

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = getComputedStyle(root).colorScheme === "dark";
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("lockstep-theme", root.dataset.theme); } catch { /* a file may not */ }
  });

  const refreshSeconds = Number(document.body.dataset.refresh || 0);
  if (refreshSeconds > 0) {
    try {
      const theme = localStorage.getItem("lockstep-theme");
      if (theme) document.documentElement.dataset.theme = theme;
    } catch { /* storage is turned off */ }
    for (const field of document.querySelectorAll("form.controls select")) {
      field.addEventListener("change", () => {
        // A begin that moves with time needs an end that does.
        if (field.name === "from" && field.value.startsWith("now")) field.form.elements.to.value = "now";
        field.form.submit();
      });
    }
    const refresh = async () => {
      // Whoever reads a panel closely is not interrupted.
      if (!document.hidden && !document.querySelector("article:hover .plot")) {
        const address = new URL(location.href);
        address.searchParams.set("part", "panels");
        try {
          const answer = await fetch(address);
          const text = await answer.text();
          plots().forEach((plot) => Plotly.purge(plot));
          board.innerHTML = text;
          await draw();
        } catch {
          document.title = "no answer – " + document.title.replace(/^no answer – /, "");
        }
      }
      setTimeout(refresh, refreshSeconds * 1000);
    };
    setTimeout(refresh, refreshSeconds * 1000);
  }
  draw();
})();
