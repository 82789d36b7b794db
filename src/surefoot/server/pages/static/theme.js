// Runs before the page is drawn, so that a chosen theme does not flash.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const names = { auto: "System", light: "Light", dark: "Dark" };
  let stored = null;
  try { stored = localStorage.getItem("surefoot-theme"); } catch { /* storage may be off */ }
  let theme = stored in names ? stored : "auto";
  const apply = () => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    const name = () => {
      button.textContent = names[theme];
      button.setAttribute("aria-label", `Theme: ${names[theme]}`);
    };
    name();
    button.addEventListener("click", () => {
      const all = Object.keys(names);
      theme = all[(all.indexOf(theme) + 1) % all.length];
      try { localStorage.setItem("surefoot-theme", theme); } catch { /* storage may be off */ }
      name();
      apply();
    });
  });
})();
