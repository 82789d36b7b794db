// j and k go through rows and steps; trees fold. Everything works without this file, too.
(() => {
  "use strict";
  const rows = () => [...document.querySelectorAll("[data-row]")];
  const go = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((one) => one.contains(document.activeElement));
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(at + by, all.length - 1))];
    (next.querySelector(":scope > p > a[href], :scope > a[href]") || next).focus();
    next.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.matches("textarea, select, input")) return;
    if (event.key === "j" || event.key === "k") {
      event.preventDefault();
      go(event.key === "j" ? 1 : -1);
    }
  });
  for (const button of document.querySelectorAll("[data-unfold]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      for (const node of document.querySelectorAll(".tree details")) node.open = button.dataset.unfold === "all";
    });
  }
})();
