// Curves of the monitor from the JSON of its page: every value is drawn, and dragging zooms.
(() => {
  "use strict";
  const box = document.getElementById("curves");
  if (!box) return;
  const plots = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const draw = async () => {
    // on a network error or a sign-in page the old curves stay until the next swap
    const answer = await fetch(`${location.pathname}.json`).then((response) => response.json()).catch(() => null);
    if (!answer?.state) return;
    const { state } = answer;
    for (const [name, { values, limit }] of Object.entries(state.curves)) {
      const data = [values.map((_, at) => at + 1 - values.length), values, ...(limit === null ? [] : [values.map(() => limit)])];
      if (plots.has(name)) { plots.get(name).setData(data); continue; }
      const axis = { stroke: colour("--ink"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
      plots.set(name, new uPlot({
        width: box.clientWidth - 32, height: 200, title: name, legend: { show: false }, cursor: { sync: { key: "monitor" } },
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
