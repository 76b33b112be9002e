// Draws the charts of the page from the compressed JSON beside it. Everything shown is set as text, never as markup.
const unpacked = (base64) => {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
};

const report = await unpacked(document.getElementById("report-data").textContent).json();
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const picks = document.querySelector("form.picks");
const drawn = new Map();

// A row is an array; in worded columns its values are indices into the page's words.
const rowsOf = (name) => {
  const { columns, worded, rows } = report.data[name];
  const words = columns.map((column) => worded.includes(column));
  const value = (row, index) => (words[index] && row[index] !== null ? report.words[row[index]] : row[index]);
  return rows.map((row) => Object.fromEntries(columns.map((column, index) => [column, value(row, index)])));
};

const datasetsOf = (spec) => {
  const names = new Set();
  const visit = (node) => {
    if (node?.data?.name && node.data.name in report.data) names.add(node.data.name);
    for (const part of [...(node.layer ?? []), ...(node.vconcat ?? [])]) visit(part);
  };
  visit(spec);
  return [...names];
};

const picksOf = (spec) =>
  (spec.params ?? []).filter((param) => param.name.startsWith("pick_")).map((param) => param.name.slice(5));

const choices = () => {
  const chosen = {};
  if (!picks) return chosen;
  for (const [name, value] of new FormData(picks)) {
    chosen[name] = picks.elements[name].dataset?.number === "yes" ? Number(value) : value;
  }
  return chosen;
};

const kept = (spec) => {
  const chosen = choices();
  const by = picksOf(spec).filter((column) => column in chosen);
  return rowsOf(datasetsOf(spec)[0]).filter((row) => by.every((column) => row[column] === chosen[column]));
};

// A chart whose height is a step a value of y; Vega-Lite's own steps cannot be had together with a fitted width.
const stepped = (spec) => {
  const column = (spec.layer?.[0] ?? spec).encoding.y.field;
  return spec.height.step * Math.max(1, new Set(kept(spec).map((row) => row[column])).size);
};

const fitted = (spec, width) => {
  const copy = structuredClone(spec);
  copy.datasets = Object.fromEntries(datasetsOf(spec).map((name) => [name, rowsOf(name)]));
  const chosen = choices();
  for (const param of copy.params ?? []) {
    const column = param.name.replace("pick_", "");
    if (param.name.startsWith("pick_") && column in chosen) param.value = chosen[column];
  }
  if (spec.height?.step) copy.height = stepped(spec);
  if (copy.vconcat) {
    for (const part of copy.vconcat) part.width = width - 90;
  } else {
    copy.width = width;
    copy.autosize = { type: "fit-x", contains: "padding" };
  }
  return copy;
};

const themed = (width) => {
  const theme = structuredClone(dark.matches ? report.themes.dark : report.themes.light);
  theme.legend.columns = Math.max(2, Math.floor(width / 128));
  return theme;
};

const pin = (figure, tooltip) => {
  const output = figure.querySelector(".pinned");
  output.replaceChildren();
  if (tooltip && typeof tooltip === "object") {
    const list = document.createElement("dl");
    for (const [name, value] of Object.entries(tooltip)) {
      const term = document.createElement("dt");
      const text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      list.append(term, text);
    }
    output.append(list);
  }
  output.hidden = !output.hasChildNodes();
};

// Says so where a choice has no row, and shows no empty axes.
const empty = (figure, spec) => {
  const nothing = kept(spec).length === 0;
  figure.querySelector(".empty").hidden = !nothing;
  figure.querySelector(".plot").hidden = nothing;
  return nothing;
};

const draw = async (figure) => {
  const name = figure.dataset.chart;
  const spec = report.charts[name];
  const plot = figure.querySelector(".plot");
  drawn.get(name)?.finalize();
  drawn.delete(name);
  if (empty(figure, spec)) return;
  const room = Math.floor(plot.clientWidth);
  const width = Math.max(room, spec.usermeta?.least ?? 0);
  const embedded = await window.vegaEmbed(plot, fitted(spec, width), {
    ast: true, // expressions are interpreted, so the policy can forbid eval
    renderer: "svg",
    logLevel: 1, // errors alone: a layer without rows, such as a roof that a regime lacks, warns of an infinite extent
    config: themed(width),
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
    downloadFileName: name,
  });
  embedded.room = room;
  embedded.view.addEventListener("click", (event, item) => pin(figure, item?.tooltip));
  drawn.set(name, embedded);
};

const figures = [...document.querySelectorAll("figure[data-chart]")];
const drawAll = async () => {
  for (const figure of figures) {
    await draw(figure);
    document.documentElement.dataset.first ??= String(performance.now());
  }
  document.documentElement.dataset.drawn = String(drawn.size);
};

const table = (rows) => {
  const made = document.createElement("table");
  made.className = "small";
  const columns = rows.length ? Object.keys(rows[0]) : [];
  const head = made.createTHead().insertRow();
  for (const column of columns) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = column;
    head.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const column of columns) line.insertCell().textContent = row[column] ?? "–";
  }
  return made;
};

const fillTable = (figure) => {
  const details = figure.querySelector("details.rows");
  const place = details.querySelector("div");
  place.replaceChildren();
  if (details.open) place.append(table(kept(report.charts[figure.dataset.chart])));
};

const follow = async () => {
  const chosen = choices();
  for (const figure of figures) {
    const spec = report.charts[figure.dataset.chart];
    const columns = picksOf(spec).filter((column) => column in chosen);
    if (!columns.length) continue;
    const view = drawn.get(figure.dataset.chart)?.view;
    if (!view || spec.height?.step || empty(figure, spec)) {
      await draw(figure);
    } else {
      for (const column of columns) view.signal(`pick_${column}`, chosen[column]);
      await view.runAsync();
    }
    pin(figure, null);
    fillTable(figure);
  }
};

// One choice after the other: a second one while charts are drawn would find half of the first.
let following = Promise.resolve();
const choose = () => {
  document.documentElement.dataset.settled = "no";
  following = following.then(follow);
  const last = following;
  last.then(() => {
    if (last === following) document.documentElement.dataset.settled = "yes";
  });
};

let settle;
const redrawWhenWidthChanges = () => {
  clearTimeout(settle);
  settle = setTimeout(() => {
    const moved = (figure) => drawn.get(figure.dataset.chart)?.room !== Math.floor(figure.querySelector(".plot").clientWidth);
    for (const figure of figures.filter(moved)) draw(figure);
  }, 200);
};

for (const figure of figures) {
  figure.querySelector("details.rows").addEventListener("toggle", () => fillTable(figure));
}

// Compressed files are handed out unpacked where there is a script to do it.
const handOut = async (link) => {
  const blob = await unpacked(link.href.slice(link.href.indexOf(",") + 1)).blob();
  const plain = document.createElement("a");
  plain.download = link.dataset.plain;
  plain.href = URL.createObjectURL(blob);
  plain.click();
  setTimeout(() => URL.revokeObjectURL(plain.href), 60_000);
};

for (const link of document.querySelectorAll("a[data-plain]")) {
  link.textContent = link.dataset.plain;
  link.addEventListener("click", (event) => {
    event.preventDefault();
    handOut(link);
  });
}
picks?.addEventListener("change", choose);
picks?.addEventListener("submit", (event) => event.preventDefault());
dark.addEventListener("change", drawAll);
window.addEventListener("resize", redrawWhenWidthChanges);
await drawAll();
