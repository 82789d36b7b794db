// Keys, the clock, the panel of a step, and forms that htmx sends. Everything works without this file, too.
(() => {
  "use strict";
  const live = document.getElementById("live");
  const work = () => document.getElementById("work");
  const say = (text) => { live.textContent = ""; setTimeout(() => { live.textContent = text; }, 30); };
  const PAPER = 540; // width of a step on a sheet of A4 in pixels
  const visible = (node) => node.getClientRects().length > 0 && !node.disabled;

  // The clock runs while the page can be seen.
  let spent = 0, since = performance.now();
  const elapsed = () => spent + (document.hidden ? 0 : performance.now() - since);
  const restart = () => { spent = 0; since = performance.now(); };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) spent += performance.now() - since;
    else since = performance.now();
  });

  document.addEventListener("keydown", (event) => {
    if (event.key === "k" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); palette(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector(".palette")) return;
    const target = event.target;
    const writing = target.matches('textarea, select, input:not([type="radio"]):not([type="checkbox"])');
    if (event.key === "Escape" && writing) { target.blur(); return; }
    if (writing || (event.key === "Enter" && target.closest("a, button, summary"))) return;
    if (event.key === "j" || event.key === "k") { event.preventDefault(); go(event.key === "j" ? 1 : -1); return; }
    if (event.repeat) return;
    if (event.key === "?") { event.preventDefault(); palette(); return; }
    const node = [...document.querySelectorAll("[data-keys]")].find(
      (one) => one.dataset.keys.split(" ").includes(event.key) && visible(one));
    if (!node) return;
    event.preventDefault();
    press(node);
  });
  const press = (node) => {
    if (node.matches("details")) {
      node.open = !node.open;
      if (node.open) node.querySelector("textarea, select, input")?.focus();
    } else if (node.matches("textarea, input, select")) node.focus();
    else node.click();
  };

  // ? and Ctrl-K: pages, the keys of this page, and runs and reports whose titles or ids have what is typed.
  const root = document.querySelector(".mark")?.getAttribute("href").slice(0, -1) ?? "";
  const linkTo = (end) => document.querySelector(`#rail a[href$="${end}"]`);
  const entry = (text, hint, act) => ({ text: text.trim().replace(/\s+/g, " "), hint, act });
  const named = (one) => [...one.childNodes].filter((part) => part.nodeName !== "KBD").map((part) => part.textContent).join(" ");
  const here = () => [
    ...[...document.querySelectorAll("[data-keys]")].filter(visible).map((one) => entry(
      one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent ?? named(one.querySelector("summary") ?? one),
      one.dataset.keys.replaceAll(" ", " or "), () => press(one))),
    ...[...document.querySelectorAll("#rail li a, #rail .switch, .tabs a")].map((one) => entry(
      one.matches(".switch") ? "Other projects" : one.firstChild.textContent, "page", () => location.assign(one.href))),
  ];
  const found = async (text) => {
    const lists = [["runs", "/runs", "run"], ["reports", "/reports", "report"]].filter(([, end]) => linkTo(end));
    const words = new URLSearchParams({ text: `"${text.replaceAll('"', "")}"` });
    return (await Promise.all(lists.map(([name, end, kind]) => fetch(`${linkTo(end).href}.json?${words}`)
      .then((answer) => answer.json())
      .then((page) => page[name].slice(0, 6).map((row) => entry(row.title, `${kind} ${row.id}`, () => location.assign(root + row.link))))
      .catch(() => [])))).flat();
  };
  const palette = () => {
    if (document.querySelector(".palette")) return;
    const box = document.body.appendChild(document.createElement("dialog"));
    box.className = "palette";
    box.innerHTML = `<input type="search" role="combobox" aria-expanded="true" aria-controls="hits" aria-label="Go to a page, run, report or action"
      placeholder="Go to a page, run, report or action" autocomplete="off" maxlength="200"><ul id="hits" role="listbox" aria-label="Results"></ul>
      <p class="dim" role="status"></p>`;
    const field = box.querySelector("input"), list = box.querySelector("ul"), all = here();
    let shown = [], at = 0, turn = 0;
    const mark = (to) => {
      at = shown.length ? (to + shown.length) % shown.length : 0;
      list.childNodes.forEach((one, number) => one.setAttribute("aria-selected", number === at));
      field.setAttribute("aria-activedescendant", shown.length ? `hit-${at}` : "");
      list.childNodes[at]?.scrollIntoView({ block: "nearest" });
    };
    const take = (number) => { box.close(); shown[number]?.act(); };
    const show = (rows) => {
      shown = rows;
      list.replaceChildren(...rows.map((row, number) => {
        const one = document.createElement("li"), hint = document.createElement("span");
        one.id = `hit-${number}`;
        one.setAttribute("role", "option");
        one.dir = "auto";
        hint.className = "dim";
        hint.textContent = row.hint;
        one.append(row.text, " ", hint);
        one.addEventListener("click", () => take(number));
        return one;
      }));
      box.querySelector("p").textContent = `${rows.length} result${rows.length === 1 ? "" : "s"}${field.value ? "" : "; j and k go through rows or steps"}`;
      mark(0);
    };
    const search = async () => {
      const text = field.value.trim().toLowerCase(), mine = turn += 1;
      const known = all.filter((row) => row.text.toLowerCase().includes(text));
      show(known);
      if (text.length < 2) return;
      await new Promise((wake) => setTimeout(wake, 200));
      const more = mine === turn ? await found(text) : [];
      if (mine === turn) show([...known, ...more]);
    };
    field.addEventListener("input", search);
    field.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by) mark(at + by);
      else if (event.key === "Enter") take(at);
      else return;
      event.preventDefault();
    });
    box.addEventListener("close", () => box.remove());
    box.showModal();
    search();
  };
  document.querySelector("#go")?.removeAttribute("hidden");
  document.querySelector("#go")?.addEventListener("click", palette);

  // j and k go through rows and steps.
  const go = (by) => {
    const all = [...document.querySelectorAll("[data-row]")];
    if (!all.length) return;
    const at = all.findIndex((one) => one.matches(".selected") || one.contains(document.activeElement));
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(at + by, all.length - 1))];
    select(next.closest(".step"), true);
    next.querySelector("input[type=radio]")?.click();
    (next.querySelector("a[href]") || next).focus();
    next.scrollIntoView({ block: "nearest" });
  };

  // What is known of the selected step stands in the panel; without scripts it stands beside the step.
  const select = (step, chosen) => {
    const panel = document.getElementById("chosen");
    if (!step || !panel) return;
    if (!step.matches(".selected")) {
      const last = document.querySelector(".step.selected");
      last?.append(panel.querySelector(".notes"));
      last?.classList.remove("selected");
      step.classList.add("selected");
      panel.querySelector("h2").textContent = step.dataset.name;
      panel.append(step.querySelector(".notes"));
      panel.hidden = false;
    }
    panel.classList.toggle("open", chosen);
    if (!chosen) return;
    history.replaceState(null, "", `#${step.id}`);
    const radio = step.querySelector("input[type=radio]");
    if (radio) radio.checked = true;
  };
  const linked = () => document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest(".step");
  addEventListener("hashchange", () => select(linked(), true));

  document.addEventListener("click", (event) => {
    if (event.target.closest("#close")) document.getElementById("chosen").classList.remove("open");
    else if (!event.target.closest("a, summary, .notes")) select(event.target.closest(".step"), true);
  });

  const complain = (text) => {
    document.getElementById("complaint")?.remove();
    const note = document.createElement("p");
    note.id = "complaint";
    note.className = "error";
    note.setAttribute("role", "alert");
    note.textContent = text;
    (work()?.querySelector(".dock, #chosen:not([hidden])") ?? work() ?? document.body).prepend(note);
  };

  // The same request is sent again when the network fails: its key keeps the label from being made twice.
  const send = async (to, options) => {
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await fetch(to, options);
      } catch (error) {
        if (attempt >= 3) throw error;
        await new Promise((wake) => setTimeout(wake, 400 * 2 ** attempt));
      }
    }
  };
  const ofWork = ({ detail: { ctx } }) => ctx?.target?.id === "work";
  document.addEventListener("submit", (event) => {
    const clock = event.target.querySelector('input[name="milliseconds"]');
    if (clock) clock.value = Math.round(elapsed());
    const selected = event.target.closest("#dock") && document.querySelector(".step.selected");
    if (selected) history.replaceState(null, "", `#${selected.id}`);
  }, true);
  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    if (ofWork(event)) ctx.fetch = send;
    // a list is not replaced under somebody's hands
    else if (document.hidden || ctx.target.contains(document.activeElement)) event.preventDefault();
  });
  document.addEventListener("htmx:after:request", (event) => {
    if (!ofWork(event)) return;
    const { text, response: { raw } } = event.detail.ctx;
    const page = new DOMParser().parseFromString(text, "text/html");
    if (raw.ok && page.getElementById("work")) return;
    event.preventDefault();
    if (raw.ok) location.assign(raw.url);
    else complain(page.getElementById("error")?.textContent ?? `Rejected with status ${raw.status}.`);
  });
  document.addEventListener("htmx:error", (event) => {
    if (ofWork(event)) complain("Not sent: the server cannot be reached. Nothing is lost; press the key again.");
  });
  document.addEventListener("htmx:after:swap", (event) => {
    if (!ofWork(event)) return;
    begin();
    say(work().dataset.announce ?? "");
  });

  const begin = () => {
    restart();
    const current = document.getElementById("current");
    if (current) {
      current.focus({ preventScroll: true });
      const show = () => document.activeElement === current && current.scrollIntoView({ block: "nearest" });
      show();
      // an image above the step that loads later would push it off the screen
      for (const image of document.querySelectorAll("img.shown")) image.addEventListener("load", show, { once: true });
    }
    const named = document.querySelector(".verdict a[href*='#step-']")?.hash.slice(1);
    const first = document.querySelector(".step.current") ?? linked() ?? document.querySelector(".step.wrong")
      ?? document.getElementById(named ?? "") ?? document.querySelector(".step");
    select(first, first === linked());
  };
  // A table or formula that is wider than its box is reached and scrolled by keyboard, and has a name.
  for (const box of document.querySelectorAll(".scroll, .formula, pre, .text, .text table")) {
    if (box.scrollWidth <= box.clientWidth) continue;
    box.tabIndex = 0;
    if (!box.matches("table")) box.setAttribute("role", "region");
    box.setAttribute("aria-label", box.closest("section, form")?.querySelector("h2")?.textContent ?? "Wide content");
  }
  // On paper nothing scrolls: a formula that is wider than its box becomes smaller.
  addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll(".formula"))
      box.style.zoom = Math.min(1, Math.min(box.clientWidth, PAPER) / box.scrollWidth) || 1;
  });
  addEventListener("afterprint", () => { for (const box of document.querySelectorAll(".formula")) box.style.zoom = ""; });
  // A personal link has its token behind '#', which reaches the server only in the form.
  const enter = () => {
    const field = document.querySelector(".sign-in input[name=link]");
    if (!field || location.hash.length < 2) return;
    // with '?next=' it is of the page that asked to sign in: browsers keep it through redirects
    if (location.search) field.form.elements.next.value += location.hash;
    else field.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname + location.search);
    field.focus(); // browsers skip autofocus at an address with '#'
  };
  addEventListener("hashchange", enter);
  enter();
  for (const field of document.querySelectorAll("[data-link]")) {
    field.value = location.origin + field.value;
    field.select();
  }
  begin();
})();
