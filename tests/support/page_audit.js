// What is wrong with a page for people who use a keyboard, a screen reader, or their eyes: a list of sentences.
() => {
  const wrong = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const visible = (node) => node.getClientRects().length > 0;
  const short = (node) => node.outerHTML.slice(0, 100);

  if (all("h1").length !== 1) wrong.push(`${all("h1").length} headings of the first level`);
  let level = 1;
  for (const heading of all("h1, h2, h3, h4, h5, h6")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) wrong.push(`a level is left out before: ${short(heading)}`);
    level = next;
  }
  for (const field of all("input:not([type=hidden]), select, textarea"))
    if (!field.labels.length && !field.getAttribute("aria-label")) wrong.push(`no label: ${short(field)}`);
  for (const node of all("a[href], button, summary"))
    if (!(node.getAttribute("aria-label") || node.textContent).trim()) wrong.push(`no name: ${short(node)}`);
  for (const node of all("th:not([scope])")) wrong.push(`no scope: ${short(node)}`);
  for (const node of all("[tabindex]")) if (node.tabIndex > 0) wrong.push(`order of focus: ${short(node)}`);
  const ids = all("[id]").map((node) => node.id);
  for (const id of new Set(ids.filter((one, index) => ids.indexOf(one) !== index))) wrong.push(`id twice: ${id}`);
  for (const link of all('a[href^="#"]'))
    if (!ids.includes(decodeURIComponent(link.hash.slice(1)))) wrong.push(`leads nowhere: ${short(link)}`);
  const keys = all("[data-keys]").filter(visible).flatMap((node) => node.dataset.keys.split(" "));
  for (const key of new Set(keys.filter((one, index) => keys.indexOf(one) !== index))) wrong.push(`key twice: ${key}`);

  // contrast by WCAG 2.2: 4.5 to 1, and 3 to 1 for large text
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  for (const node of all("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !visible(node) || node.closest(":disabled, script, .visually-hidden, .skip-link")) continue;
    const style = getComputedStyle(node);
    const drawn = node instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(parts(drawn)), light(behind(node))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)}: ${short(node)}`);
  }
  return wrong;
}
