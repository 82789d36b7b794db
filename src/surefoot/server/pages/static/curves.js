// Curves of the monitor from the JSON of its page: every value is drawn, and dragging zooms.
(() => {
  "use strict";
  const box = document.getElementById("curves");
  if (!box) return;
  const plots = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const draw = async () => {
    const response = await fetch(`${location.pathname}.json`).catch(() => null);
    if (!response?.ok) return;  // the server restarts: what was drawn stays until the next swap
    const { state } = await response.json();
    for (const [name, { values, limit }] of Object.entries(state.curves)) {
      const data = [values.map((_, at) => at + 1 - values.length), values, ...(limit === null ? [] : [values.map(() => limit)])];
      if (plots.has(name)) { plots.get(name).setData(data); continue; }
      const axis = { stroke: colour("--ink"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
      plots.set(name, new uPlot({
        width: box.clientWidth - 32, height: 200, title: limit === null ? name : `${name}; alarm from the broken line`, legend: { show: false }, cursor: { sync: { key: "monitor" } },
        scales: { x: { time: false } }, axes: [axis, axis],
        series: [{}, { stroke: colour("--accent"), points: { show: false } },
          { stroke: colour("--wrong"), dash: [4, 4], points: { show: false } }].slice(0, data.length),
      }, data, box));
    }
  };
  addEventListener("resize", () => { for (const plot of plots.values()) plot.setSize({ width: box.clientWidth - 32, height: 200 }); });
  document.addEventListener("htmx:after:swap", draw);
  draw();
})();
