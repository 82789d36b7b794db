// Open the entry of the API reference that the address names.
function openEntry() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const entry = target && target.closest("details.entry");
  if (entry && !entry.open) {
    entry.open = true;
    target.scrollIntoView();
  }
}
window.addEventListener("hashchange", openEntry);
window.addEventListener("DOMContentLoaded", openEntry);
