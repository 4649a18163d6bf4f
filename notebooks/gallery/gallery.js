"use strict";
// What the page cannot do without a script: filter, sort, copy, and show the fit that a link names.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const say = (words) => { document.getElementById("page-said").textContent = words; };

// Filter: cards and lines that have every word.
const filter = document.getElementById("page-filter");
const cards = all(".card");
const lines = all("#page-table tbody tr");

function narrow() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (text) => words.every((word) => text.includes(word));
  let fits = 0;
  const kept = new Set();
  for (const line of lines) {
    line.hidden = !has(line.dataset.words);
    if (!line.hidden) { fits += 1; kept.add(line.cells[0].dataset.value); }
  }
  let functions = 0;
  for (const card of cards) {
    card.hidden = !has(card.dataset.words) && !kept.has(card.id);
    functions += !card.hidden;
  }
  for (const link of all(".jumps a:not(.all), .index a")) {
    (link.closest("li") ?? link).hidden = document.getElementById(link.hash.slice(1)).hidden;
  }
  document.querySelector(".nothing").hidden = functions > 0;
  document.getElementById("page-found").textContent = words.length ? `${functions} of ${cards.length}, ${fits} fits` : "";
}
filter.addEventListener("input", narrow);
filter.form.addEventListener("submit", (event) => { event.preventDefault(); });
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    filter.focus();
  }
});

// Sort: a button in each heading; cells without a value come last either way.
const body = document.querySelector("#page-table tbody");
const collator = new Intl.Collator("en", { numeric: true });

function sortBy(heading) {
  const column = heading.cellIndex;
  const up = heading.getAttribute("aria-sort") !== "ascending";
  const value = (line) => line.cells[column].dataset.value;
  const isNumber = heading.classList.contains("number");
  const compare = (a, b) => (isNumber ? Number(a) - Number(b) : collator.compare(a, b));
  const sorted = [...body.rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    return up ? compare(x, y) : compare(y, x);
  });
  for (const other of all("#page-table thead th")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...sorted);
}
for (const heading of all("#page-table thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...heading.childNodes);
  button.addEventListener("click", () => sortBy(heading));
  heading.append(button);
}

// Copy: by the clipboard where there is one, else as old browsers do.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
for (const button of all("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    const done = await copy(source.textContent);
    button.focus();
    if (!done) source.closest("details").open = true;
    button.textContent = done ? "Copied" : "Select below";
    say(done ? `${button.getAttribute("aria-label").replace("Copy the", "Copied the")}` : "Could not copy");
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
}

// A link to a fit chooses it and leads to its card; one to a card that the filter hides ends the filter.
function follow() {
  const place = document.querySelector(":target");
  if (!place) return;
  const card = place.closest(".card");
  const fit = place.closest(".panel");
  if (fit) document.getElementById(`${fit.id}-choice`).checked = true;
  if (card?.hidden) {
    filter.value = "";
    narrow();
  }
  (place === fit ? card : place).scrollIntoView();
}
window.addEventListener("hashchange", follow);
window.addEventListener("load", follow);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link && link.hash === location.hash) setTimeout(follow);  // which is no change of it
});

for (const part of all(".search, .needs-script")) part.hidden = false;
filter.value = "";
for (const choice of all(".chooser input")) choice.checked = choice.defaultChecked;
