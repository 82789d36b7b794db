// Keys, the clock, and labels sent without leaving the page. Everything works without this file, too.
(() => {
  "use strict";
  const live = document.getElementById("live");
  const work = () => document.getElementById("work");
  const say = (text) => { live.textContent = ""; setTimeout(() => { live.textContent = text; }, 30); };
  const visible = (node) => node.getClientRects().length > 0 && !node.disabled;

  // The clock runs while the page can be seen.
  let spent = 0, since = performance.now();
  const elapsed = () => spent + (document.hidden ? 0 : performance.now() - since);
  const restart = () => { spent = 0; since = performance.now(); };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) spent += performance.now() - since;
    else since = performance.now();
  });

  // LaTeX source instead of mathematics.
  const showSource = (on) => {
    document.documentElement.classList.toggle("show-source", on);
    document.getElementById("source")?.setAttribute("aria-pressed", String(on));
  };
  const sourceOn = () => document.documentElement.classList.contains("show-source");

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const target = event.target;
    const writing = target.matches('textarea, select, input:not([type="radio"]):not([type="checkbox"])');
    if (event.key === "Escape" && writing) { target.blur(); return; }
    if (writing || (event.key === "Enter" && target.closest("a, button, summary"))) return;
    if (event.key === "j" || event.key === "k") { event.preventDefault(); go(event.key === "j" ? 1 : -1); return; }
    if (event.repeat) return;
    const node = [...document.querySelectorAll("[data-keys]")].find(
      (one) => one.dataset.keys.split(" ").includes(event.key) && visible(one));
    if (!node) return;
    event.preventDefault();
    if (node.matches("details")) {
      node.open = !node.open;
      if (node.open) node.querySelector("textarea, select, input")?.focus();
    } else if (node.matches("textarea, input, select")) node.focus();
    else node.click();
  });

  // j and k go through rows and steps.
  const go = (by) => {
    const all = [...document.querySelectorAll("[data-row]")];
    if (!all.length) return;
    const at = all.findIndex((one) => one.contains(document.activeElement));
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(at + by, all.length - 1))];
    (next.querySelector("a[href]") || next).focus();
    next.scrollIntoView({ block: "nearest" });
  };

  document.addEventListener("click", (event) => {
    const fold = event.target.closest("[data-unfold]");
    if (fold) for (const node of document.querySelectorAll(".tree details")) node.open = fold.dataset.unfold === "all";
    if (event.target.closest("#source")) {
      showSource(!sourceOn());
      try { localStorage.setItem("surefoot-source", sourceOn() ? "1" : ""); } catch { /* storage may be off */ }
    }
  });

  const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));
  const complain = (text) => {
    document.getElementById("complaint")?.remove();
    const note = document.createElement("p");
    note.id = "complaint";
    note.className = "error";
    note.setAttribute("role", "alert");
    note.textContent = text;
    (work()?.querySelector(".dock") ?? work() ?? document.body).prepend(note);
  };

  // The same form is sent again when the network fails: its key keeps the label from being made twice.
  const send = async (to, body) => {
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await fetch(to, { method: "POST", body, headers: { Accept: "text/html" } });
      } catch (error) {
        if (attempt >= 3) throw error;
        await pause(400 * 2 ** attempt);
      }
    }
  };

  let sending = false;
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const clock = form.querySelector('input[name="milliseconds"]');
    if (form.matches("[data-clock]") && clock) clock.value = Math.round(elapsed());
    if (!form.matches("[data-swap]")) return;
    event.preventDefault();
    if (sending) return;
    sending = true;
    work().setAttribute("aria-busy", "true");
    const to = event.submitter?.hasAttribute("formaction") ? event.submitter.formAction : form.action;
    // a flag or comment does not finish the step: the clock keeps running
    const comment = event.submitter?.name === "kind" ? event.submitter.value : null;
    try {
      const answer = await send(to, new URLSearchParams(new FormData(form, event.submitter)));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = page.getElementById("work");
      if (answer.ok && next) {
        work().replaceWith(next);
        history.replaceState(null, "", answer.url);
        document.title = page.title;
        begin(comment !== null);
        say(comment ? `The ${comment} is saved` : next.dataset.announce ?? "");
      } else if (answer.ok) location.assign(answer.url);
      else complain(page.getElementById("error")?.textContent ?? `Rejected with status ${answer.status}.`);
    } catch {
      complain("Not sent: the server cannot be reached. Nothing is lost; press the key again.");
    } finally {
      sending = false;
      work()?.removeAttribute("aria-busy");
    }
  });

  const begin = (goesOn = false) => {
    if (!goesOn) restart();
    const source = document.getElementById("source");
    if (source) source.hidden = false;
    showSource(sourceOn());
    const current = document.getElementById("current");
    if (current) {
      current.focus({ preventScroll: true });
      current.scrollIntoView({ block: "nearest" });
    }
  };
  // A table that is wider than the page is reached and scrolled by keyboard, and has a name.
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth <= box.clientWidth) continue;
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", box.closest("section, form")?.querySelector("h2")?.textContent ?? "Table");
  }
  try { if (localStorage.getItem("surefoot-source")) showSource(true); } catch { /* storage may be off */ }
  for (const field of document.querySelectorAll("[data-link]")) {
    field.value = location.origin + field.value;
    field.select();
  }
  for (const button of document.querySelectorAll("[data-unfold]")) button.hidden = false;
  begin();
})();
