"use strict";

// Draws the page from the data in it. No text of the data is ever taken for HTML: all of it goes
// through textContent and attributes.

const UNITS = { s: [1e9, 4], ms: [1e6, 4], us: [1e3, 3], ns: [1, 1] };
const UNKNOWN = "unknown";
const ROW_HEIGHT = 27;
const CODE_HEIGHT = 21;
const LEVEL_HEIGHT = 24;

// Boxes that are narrower, in pixels, are put together to one that is no narrower than the other.
const LEAST_WIDTH = 5;
const BUNDLE_WIDTH = 40;

// Rows that are drawn above and below those in sight; at most; and on paper.
const MARGIN_ROWS = 12;
const MOST_ROWS = 200;
const MOST_PRINTED = 300;

const printed = [];

// Elements

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  setProperties(element, properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function makeSvg(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setProperties(element, properties);
  element.append(...children);
  return element;
}

function setProperties(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
}

// Figures as text

function unitFor(ns) {
  return Object.keys(UNITS).find((unit) => Math.abs(ns) >= UNITS[unit][0]) || "ns";
}

function timeText(ns, unit) {
  if (ns === null || ns === undefined) return UNKNOWN;
  const [size, decimals] = UNITS[unit || unitFor(ns)];
  const text = (ns / size).toFixed(decimals);
  return unit ? text : `${text} ${unitFor(ns)}`;
}

function numberText(value, decimals = 2) {
  if (value === null || value === undefined) return UNKNOWN;
  return Number.isInteger(value)
    ? value.toLocaleString("en")
    : value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function largest(values) {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

function counted(number, noun) {
  return `${numberText(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function percentText(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(2)} %` : UNKNOWN;
}

// The columns of a part

function readColumn(column) {
  if ("same" in column) column.at = () => column.same;
  else if (column.places) column.at = (row) => column.texts[column.places[row]];
  else column.at = (row) => column.values[row];
}

function cellText(column, row, unit) {
  const value = column.at(row);
  if (value === null) return UNKNOWN;
  if (value === "") return "";
  const text = valueText(column, value, unit);
  const bound = column.bounds && column.bounds[row];
  return bound ? `${bound} ${text}` : text;
}

function valueText(column, value, unit) {
  switch (column.kind) {
    case "time":
      return timeText(value, unit);
    case "interval":
      return unit
        ? value.map((end) => timeText(end, unit)).join(" to ")
        : value.map((end) => timeText(end)).join(" to ");
    case "numbers":
      return value.map((end) => numberText(end)).join(" to ");
    case "number":
      return numberText(value, column.key === "p_value" ? 4 : 2);
    default:
      return value;
  }
}

function sortValue(column, row) {
  const value = column.at(row);
  if (value === null || value === "") return null;
  return Array.isArray(value) ? value[0] : value;
}

// Compare two values, what is not known last in either direction.
function compareValues(one, other, direction) {
  if (one === null || other === null) return (one === null) - (other === null);
  const order = typeof one === "string" ? (one < other ? -1 : one > other ? 1 : 0) : one - other;
  return direction * order;
}

// A part: what its table, its charts and the panel of the selected row share

class Part {
  constructor(data, kind) {
    this.data = data;
    this.kind = kind;
    this.columns = data.columns;
    this.columns.forEach(readColumn);
    this.byKey = Object.fromEntries(this.columns.map((column) => [column.key, column]));
    this.numRows = data.depths.length;
    this.untimed = new Set(data.untimed || []);
    this.selected = -1;
    this.listeners = [];
  }

  text(key, row) {
    const column = this.byKey[key];
    return column && row >= 0 ? cellText(column, row) : "";
  }

  value(key, row) {
    const column = this.byKey[key];
    return column && row >= 0 ? column.at(row) : null;
  }

  hasRowsBelow(row) {
    return row + 1 < this.numRows && this.data.depths[row + 1] > this.data.depths[row];
  }

  select(row, source) {
    if (row < 0) return;
    this.selected = row;
    for (const listener of this.listeners) listener(row, source);
  }
}

// Rows of a table of which only those in sight are in the document

class RowsInSight {
  constructor(scroller, body, rowHeight, drawRow) {
    this.scroller = scroller;
    this.body = body;
    this.rowHeight = rowHeight;
    this.drawRow = drawRow;
    this.items = [];
    this.isWhole = false;
    this.first = -1;
    this.last = -1;
    scroller.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(scroller);
    printed.push(this);
  }

  show(items) {
    this.items = items;
    this.draw(true);
  }

  draw(isForced = false) {
    const { scroller, rowHeight, items } = this;
    let first = Math.max(Math.floor(scroller.scrollTop / rowHeight) - MARGIN_ROWS, 0);
    const numRows = Math.ceil((scroller.clientHeight || 400) / rowHeight) + 2 * MARGIN_ROWS;
    let last = Math.min(first + Math.min(numRows, MOST_ROWS), items.length);
    if (this.isWhole) [first, last] = [0, Math.min(items.length, MOST_PRINTED)];
    first = Math.min(first, last);
    if (!isForced && first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    const rows = items.slice(first, last).map((item, place) => this.drawRow(item, first + place));
    const below = this.isWhole ? 0 : items.length - last;
    this.body.replaceChildren(this.spacer(first), ...rows, this.spacer(below));
    if (this.isWhole && last < items.length) {
      const text = `${counted(items.length - last, "more row")} are in the page, not on paper.`;
      this.body.append(make("tr", {}, make("td", { class: "text", colspan: 4, text })));
    }
  }

  spacer(numRows) {
    const row = make("tr", { class: "spacer", "aria-hidden": "true", role: "presentation" });
    const cell = make("td");
    cell.style.height = `${numRows * this.rowHeight}px`;
    row.append(cell);
    return row;
  }

  // Scroll so far that the row at a place is in sight, below the head of the table.
  reveal(place, headHeight) {
    const top = place * this.rowHeight;
    const { scroller } = this;
    const height = scroller.clientHeight - headHeight;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + this.rowHeight > scroller.scrollTop + height) {
      scroller.scrollTop = top + this.rowHeight - height;
    }
    this.draw();
  }
}

window.addEventListener("beforeprint", () => {
  for (const rows of printed) {
    rows.isWhole = true;
    rows.draw(true);
  }
});
window.addEventListener("afterprint", () => {
  for (const rows of printed) {
    rows.isWhole = false;
    rows.draw(true);
  }
});

// The table of rows

const HEAD_HEIGHT = 31;
const UP = "\u25b2";
const DOWN = "\u25bc";
const VERDICT_SIGNS = { slower: `${UP} `, faster: `${DOWN} ` };

class RowTable {
  constructor(part, element) {
    this.part = part;
    this.unit = part.data.unit;
    this.table = element.querySelector(".grid");
    this.head = this.table.querySelector("thead");
    this.widths = this.table.querySelector("colgroup");
    this.count = element.querySelector(".count");
    this.id = `row-${RowTable.number++}`;
    this.sorted = null;
    this.direction = 1;
    this.words = [];
    this.verdict = "";
    this.isTree = part.data.depths.some((depth) => depth > 0);
    this.below = null;
    const scroller = element.querySelector(".scroller");
    this.rows = new RowsInSight(scroller, this.table.tBodies[0], ROW_HEIGHT, (row, place) =>
      this.drawRow(row, place),
    );
    this.listen(element);
    this.drawChoices(element.querySelector(".choices"));
    this.drawHead();
    this.update();
    part.listeners.push((row) => this.showSelected(row));
  }

  listen(element) {
    const search = element.querySelector(".search");
    search.addEventListener("input", () => {
      this.words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      this.update();
    });
    const treeTool = element.querySelector(".tree-tool");
    treeTool.hidden = !this.isTree;
    treeTool.firstElementChild.addEventListener("change", (event) => {
      this.isTree = event.target.checked;
      this.update();
    });
    if (this.part.byKey.verdict) this.offerVerdicts(element);
    this.table.addEventListener("keydown", (event) => this.onKey(event));
    this.table.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-row]");
      if (row) this.part.select(Number(row.dataset.row), "table");
    });
  }

  offerVerdicts(element) {
    const select = element.querySelector(".verdict");
    const { at } = this.part.byKey.verdict;
    const counts = new Map();
    for (let row = 0; row < this.part.numRows; row++) {
      counts.set(at(row), (counts.get(at(row)) || 0) + 1);
    }
    select.append(make("option", { value: "", text: "all" }));
    for (const [verdict, number] of counts) {
      select.append(make("option", { value: verdict, text: `${verdict} (${number})` }));
    }
    select.addEventListener("change", () => {
      this.verdict = select.value;
      this.update();
    });
    element.querySelector(".verdict-tool").hidden = false;
  }

  get shown() {
    return this.part.columns.filter((column) => column.shown);
  }

  drawChoices(element) {
    for (const column of this.part.columns) {
      const box = make("input", { type: "checkbox", value: column.key });
      box.checked = column.shown;
      box.disabled = column.key === "name";
      box.addEventListener("change", () => {
        column.shown = box.checked;
        this.drawHead();
        this.rows.draw(true);
      });
      const lacks = "same" in column && column.same === null ? ` (${UNKNOWN})` : "";
      element.append(make("label", {}, box, ` ${column.header}${lacks}`));
    }
  }

  header(column) {
    const hasUnit = column.kind === "time" || column.kind === "interval";
    return hasUnit ? `${column.header} (${this.unit})` : column.header;
  }

  drawHead() {
    const cells = this.shown.map((column) => {
      const sign = this.sorted === column ? (this.direction > 0 ? ` ${UP}` : ` ${DOWN}`) : "";
      const text = `${this.header(column)}${sign}`;
      const sort = this.direction > 0 ? "ascending" : "descending";
      return make(
        "th",
        {
          scope: "col",
          class: classesOf(column),
          "data-key": column.key,
          "aria-sort": this.sorted === column ? sort : null,
        },
        make("button", { type: "button", text, title: text, onclick: () => this.sortBy(column) }),
      );
    });
    this.head.replaceChildren(make("tr", { "aria-rowindex": 1 }, ...cells));
    let total = 0;
    const widths = this.shown.map((column) => {
      const width = this.widthOf(column);
      total += width;
      const element = make("col");
      element.style.width = `${width}ch`;
      return element;
    });
    this.widths.replaceChildren(...widths);
    this.table.style.width = `${total}ch`;
    // What gets the focus is not to lie behind what stays in its place.
    const { width, height } = this.head.querySelector("th").getBoundingClientRect();
    this.rows.scroller.style.scrollPadding = `${height}px 0 0 ${width}px`;
    this.table.setAttribute("aria-colcount", this.shown.length);
  }

  widthOf(column) {
    if (!column.width) {
      let most = 0;
      const { numRows, data } = this.part;
      // The longest of very many rows is found well enough among some.
      const step = Math.max(1, Math.floor(numRows / 2000));
      for (let row = 0; row < numRows; row += step) {
        const indent = column.key === "name" ? 2 * data.depths[row] : 0;
        most = Math.max(most, this.textIn(column, row).length + indent);
      }
      const isNarrow = window.innerWidth < 640;
      const limit = column.key !== "name" ? 30 : isNarrow ? 18 : 34;
      const least = this.header(column).length + 2;
      column.width = Math.max(Math.min(most, limit), least) + 2;
    }
    return column.width;
  }

  // First the larger figures or the first texts, then the other way, then the order of execution.
  sortBy(column) {
    const first = column.kind === "text" ? 1 : -1;
    if (this.sorted !== column) [this.sorted, this.direction] = [column, first];
    else if (this.direction === first) this.direction = -first;
    else this.sorted = null;
    this.drawHead();
    this.update();
    const { key } = column;
    const cells = [...this.head.querySelectorAll("th")];
    cells.find((cell) => cell.dataset.key === key)?.firstElementChild.focus();
  }

  update() {
    const found = this.order().filter((row) => this.fits(row));
    this.rows.scroller.scrollTop = 0;
    this.places = null;
    this.rows.show(found);
    const { numRows } = this.part;
    this.table.setAttribute("aria-rowcount", found.length + 1);
    this.count.textContent =
      found.length === numRows ? counted(numRows, "row") : `${numberText(found.length)} of ${counted(numRows, "row")}`;
    this.point();
  }

  order() {
    const rows = Array.from({ length: this.part.numRows }, (_, row) => row);
    const column = this.sorted;
    if (!column) return rows;
    const values = rows.map((row) => sortValue(column, row));
    const compare = (one, other) =>
      compareValues(values[one], values[other], this.direction) || one - other;
    if (!this.isTree) return rows.sort(compare);
    const { roots, below } = this.tree();
    const found = [];
    const waiting = [...roots].sort(compare).reverse();
    while (waiting.length) {
      const row = waiting.pop();
      found.push(row);
      if (below.has(row)) waiting.push(...[...below.get(row)].sort(compare).reverse());
    }
    return found;
  }

  tree() {
    if (!this.below) {
      const below = new Map();
      const roots = [];
      const above = [];
      this.part.data.depths.forEach((depth, row) => {
        above.length = Math.min(above.length, depth);
        const parent = above[above.length - 1];
        above.push(row);
        if (parent === undefined) roots.push(row);
        else if (below.has(parent)) below.get(parent).push(row);
        else below.set(parent, [row]);
      });
      this.below = { roots, below };
    }
    return this.below;
  }

  fits(row) {
    if (this.verdict && this.part.value("verdict", row) !== this.verdict) return false;
    if (!this.words.length) return true;
    if (!this.texts) this.texts = Array(this.part.numRows);
    this.texts[row] ??= this.part.columns
      .filter((column) => column.kind === "text")
      .map((column) => column.at(row) ?? "")
      .join("\n")
      .toLowerCase();
    return this.words.every((word) => this.texts[row].includes(word));
  }

  drawRow(row, place) {
    const { part } = this;
    const cells = this.shown.map((column) => this.drawCell(column, row));
    return make(
      "tr",
      {
        id: `${this.id}-${row}`,
        "data-row": row,
        "aria-rowindex": place + 2,
        "aria-selected": row === part.selected ? "true" : "false",
      },
      ...cells,
    );
  }

  textIn(column, row) {
    const text = cellText(column, row, this.unit);
    // What tells classes from one another is at the end.
    return column.key === "class" ? text.split(".").pop() : text;
  }

  drawCell(column, row) {
    const text = this.textIn(column, row);
    const title = column.key === "class" ? cellText(column, row) : text;
    const cell = make("td", { class: classesOf(column), text, title: title.length > 20 ? title : null });
    if (column.at(row) === null) cell.classList.add("unknown");
    if (column.key === "name") {
      const depth = this.sorted && !this.isTree ? 0 : this.part.data.depths[row];
      cell.style.paddingLeft = `${0.55 + 1.1 * depth}rem`;
      cell.title = text;
    } else if (column.key === "percent" && column.at(row) !== null) {
      cell.classList.add("share");
      cell.style.setProperty("--share", `${(100 * Math.max(column.at(row), 0)) / this.most(column)}%`);
    } else if (column.key === "verdict") {
      cell.classList.add(`verdict-${text.replace(/\W+/g, "-")}`);
      cell.textContent = `${VERDICT_SIGNS[text] || ""}${text}`;
    }
    return cell;
  }

  most(column) {
    if (!column.most) {
      column.most = 0;
      for (let row = 0; row < this.part.numRows; row++) {
        column.most = Math.max(column.most, column.at(row) || 0);
      }
    }
    return column.most || 1;
  }

  placeOf(row) {
    this.places ??= new Map(this.rows.items.map((item, place) => [item, place]));
    return this.places.get(row);
  }

  onKey(event) {
    if (event.target !== this.table || event.altKey || event.ctrlKey || event.metaKey) return;
    const { items } = this.rows;
    const at = this.placeOf(this.part.selected) ?? -1;
    const page = Math.max(Math.floor(this.rows.scroller.clientHeight / ROW_HEIGHT) - 2, 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    let place = at;
    if (event.key in steps) place = at < 0 ? 0 : at + steps[event.key];
    else if (event.key === "Home") place = 0;
    else if (event.key === "End") place = items.length - 1;
    else if (event.key === "Enter" || event.key === " ") place = Math.max(at, 0);
    else return;
    event.preventDefault();
    if (items.length) {
      this.part.select(items[Math.min(Math.max(place, 0), items.length - 1)], "table");
    }
  }

  showSelected(row) {
    const place = this.placeOf(row);
    if (place !== undefined) this.rows.reveal(place, HEAD_HEIGHT);
    for (const element of this.table.tBodies[0].querySelectorAll("[aria-selected]")) {
      element.setAttribute("aria-selected", Number(element.dataset.row) === row ? "true" : "false");
    }
    this.point();
  }

  // Say which row has the focus of the table.
  point() {
    const id = `${this.id}-${this.part.selected}`;
    if (document.getElementById(id)) this.table.setAttribute("aria-activedescendant", id);
    else this.table.removeAttribute("aria-activedescendant");
  }
}
RowTable.number = 0;

function classesOf(column) {
  return [column.kind === "text" ? "text" : "", column.key === "name" ? "name" : ""].join(" ").trim();
}

// Boxes that lie in one another: the icicle of the modules, and the timeline

const tip = make("div", { id: "tip", role: "presentation", hidden: "" });

class Chart {
  // options: title, label, describe(node), kindOf(node), linked: charts on the same scale
  constructor(part, root, options) {
    this.part = part;
    this.root = root;
    this.options = options;
    this.focus = root;
    this.current = root;
    this.levels = [];
    this.linked = options.linked || [];
    this.linked.push(this);
    this.id = `chart-${Chart.number++}`;
    this.area = make("div", {
      class: "chart",
      role: "tree",
      tabindex: 0,
      "aria-label": options.label,
    });
    this.info = make("p", { class: "info" });
    this.out = make("button", { type: "button", class: "zoom-out", text: "Zoom out" });
    this.out.addEventListener("click", () => this.zoomOut());
    this.legend = make("ul", { class: "legend", "aria-label": "Colours" });
    this.element = make(
      "div",
      { class: "chart-view" },
      options.title ? make("p", { class: "chart-title", text: options.title }) : null,
      make("div", { class: "chart-tools" }, this.out, this.legend),
      this.area,
      this.info,
    );
    this.listen();
    part.listeners.push((row, source) => this.showSelected(row, source));
    new ResizeObserver(() => {
      if (this.area.clientWidth !== this.width) this.draw();
    }).observe(this.area);
  }

  listen() {
    const { area } = this;
    const nodeAt = (event) => this.nodes?.get(event.target.closest(".box"));
    area.addEventListener("click", (event) => {
      const node = nodeAt(event);
      if (node) this.activate(node);
    });
    area.addEventListener("mousemove", (event) => {
      const node = nodeAt(event);
      if (node) showTip(this.options.describe(node), event);
      else tip.hidden = true;
    });
    area.addEventListener("mouseleave", () => (tip.hidden = true));
    area.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const level = this.levels[this.levelOf.get(this.current)] || [];
    const place = level.indexOf(this.current);
    const inside = () => this.levels.flat().find((node) => aboveOf(node) === this.current);
    const moves = {
      ArrowRight: () => level[place + 1],
      ArrowLeft: () => level[place - 1],
      ArrowDown: inside,
      ArrowUp: () => aboveOf(this.current),
      Home: () => level[0],
      End: () => level[level.length - 1],
    };
    if (event.key in moves) {
      const found = moves[event.key]();
      if (found) this.setCurrent(found);
    } else if (event.key === "Enter" || event.key === " ") this.activate(this.current);
    else if (event.key === "Escape") this.zoomOut();
    else return;
    event.preventDefault();
  }

  activate(node) {
    tip.hidden = true;
    this.current = node;
    if (node.row >= 0) this.part.select(node.row, this);
    if (node.children.length && node !== this.focus) this.zoom(node);
    else this.setCurrent(node);
  }

  zoomOut() {
    const above = aboveOf(this.focus);
    if (!above) return;
    this.current = this.focus;
    this.zoom(above);
  }

  // Show a node in the whole width. A chart that is linked shows the node of the same name.
  zoom(node) {
    const path = namesOf(node);
    for (const chart of this.linked) {
      chart.focus = chart === this ? node : chart.find(path);
      if (chart !== this) chart.current = chart.focus;
    }
    for (const chart of this.linked) chart.draw();
  }

  // Return the node with these names, or the nearest one above it that there is.
  find(path) {
    let node = this.root;
    for (const name of path.slice(1)) {
      const found = node.children.find((child) => child.name === name);
      if (!found) break;
      node = found;
    }
    return node;
  }

  setCurrent(node) {
    this.current = node;
    this.area.querySelector(".current")?.classList.remove("current");
    const box = this.boxes.get(node);
    if (box) {
      box.classList.add("current");
      this.area.setAttribute("aria-activedescendant", box.id);
      const top = this.levelOf.get(node) * LEVEL_HEIGHT;
      if (top < this.area.scrollTop) this.area.scrollTop = top;
      else if (top + LEVEL_HEIGHT > this.area.scrollTop + this.area.clientHeight) {
        this.area.scrollTop = top + LEVEL_HEIGHT - this.area.clientHeight;
      }
    }
    this.info.textContent = this.options.describe(node).replaceAll("\n", "; ");
  }

  showSelected(row, source) {
    this.markSelected(row);
    const node = this.nodesOf(row)[0];
    if (source === this || !node) return;
    if (this.boxes.has(node)) this.setCurrent(node);
    else this.info.textContent = this.options.describe(node).replaceAll("\n", "; ");
  }

  markSelected(row) {
    for (const box of this.area.querySelectorAll(".selected")) {
      box.classList.remove("selected");
      box.removeAttribute("aria-selected");
    }
    for (const node of this.nodesOf(row)) {
      const shown = this.boxes.get(node) || this.boxes.get(this.bundles.get(node));
      shown?.classList.add("selected");
      shown?.setAttribute("aria-selected", "true");
    }
  }

  nodesOf(row) {
    if (!this.byRow) {
      this.byRow = new Map();
      const waiting = [this.root];
      while (waiting.length) {
        const node = waiting.pop();
        if (this.byRow.has(node.row)) this.byRow.get(node.row).push(node);
        else this.byRow.set(node.row, [node]);
        for (const child of node.children) waiting.push(child);
      }
      for (const nodes of this.byRow.values()) nodes.reverse();
    }
    return (row >= 0 && this.byRow.get(row)) || [];
  }

  draw() {
    this.width = this.area.clientWidth;
    this.levels = [];
    this.levelOf = new Map();
    this.boxes = new Map();
    this.nodes = new Map();
    this.bundles = new Map();
    const all = [];
    const above = pathTo(this.focus);
    // Where two share a scale, the longer one takes the whole width.
    const span = Math.max(...this.linked.map((chart) => lengthOf(chart.focus))) || 1;
    const scale = this.width / span;
    const own = lengthOf(this.focus) * scale || this.width;
    above.forEach((node, level) => all.push(this.place(node, level, 0, own)));
    let nodes = [this.focus];
    for (let level = above.length; nodes.length; level++) {
      const next = [];
      for (const node of nodes) {
        for (const [child, left, right] of this.boxesIn(node, scale)) {
          all.push(this.place(child, level, left, right));
          if (!child.isBundle) next.push(child);
        }
      }
      nodes = next;
    }
    for (const box of all) box.firstElementChild?.setAttribute("aria-hidden", "true");
    this.area.replaceChildren(...all);
    const height = Math.max(this.levels.length, 1) * LEVEL_HEIGHT;
    // What holds the height of boxes that have a place of their own.
    const filler = make("div", { "aria-hidden": "true" });
    filler.style.height = `${height}px`;
    this.area.append(filler);
    this.out.disabled = !aboveOf(this.focus);
    this.drawLegend();
    this.markSelected(this.part.selected);
    this.setCurrent(this.boxes.has(this.current) ? this.current : this.focus);
  }

  // Return what is drawn of the children of a node: each with its left and right edge.
  boxesIn(node, scale) {
    const found = [];
    const origin = this.focus.start;
    let bundle = [];
    const edges = (first, last) => [(first.start - origin) * scale, (last.end - origin) * scale];
    const flush = () => {
      if (!bundle.length) return;
      const [left, right] = edges(bundle[0], bundle[bundle.length - 1]);
      if (right - left >= 0.5) found.push([bundleOf(bundle, node), left, right]);
      bundle = [];
    };
    for (const child of node.children) {
      const [left, right] = edges(child, child);
      if (right - left >= LEAST_WIDTH) {
        flush();
        found.push([child, left, right]);
      } else if (right > left) {
        bundle.push(child);
        if (right - edges(bundle[0], child)[0] >= BUNDLE_WIDTH) flush();
      }
    }
    flush();
    return found;
  }

  place(node, level, left, right) {
    const box = make("div", {
      id: `${this.id}-${this.boxes.size}`,
      class: `box k-${this.options.kindOf(node)}`,
      role: "treeitem",
      "aria-level": level + 1,
      "aria-label": this.options.describe(node),
      "data-name": node.name,
    });
    if (right - left > (node.isBundle ? 34 : 22)) box.append(make("span", { text: node.name }));
    else box.classList.add("narrow");
    if (node.isBundle) {
      box.classList.add("bundle");
      for (const child of node.children) this.bundles.set(child, node);
    }
    if (node.hasUnknownStart) box.classList.add("unknown-start");
    if (node.children.length) box.setAttribute("aria-expanded", node.isBundle ? "false" : "true");
    box.style.left = `${left}px`;
    box.style.width = `${Math.max(right - left, 1)}px`;
    box.style.top = `${level * LEVEL_HEIGHT}px`;
    (this.levels[level] ??= []).push(node);
    this.levelOf.set(node, level);
    this.boxes.set(node, box);
    this.nodes.set(box, node);
    return box;
  }

  drawLegend() {
    const kinds = new Set([...this.boxes.keys()].map((node) => this.options.kindOf(node)));
    const items = Object.keys(KINDS).filter((kind) => kinds.has(kind));
    this.legend.replaceChildren(
      ...items.map((kind) => make("li", { class: `k-${kind}`, text: KINDS[kind] })),
    );
  }
}
Chart.number = 0;

// A row that the table does not have is one below.
const NO_ROW = -1;

const KINDS = {
  module: "module",
  call_module: "call_module",
  call_function: "call_function",
  call_method: "call_method",
  get_attr: "get_attr",
  frame: "frame",
  slower: "slower",
  faster: "faster",
  only: "only in this one",
  same: "within noise",
  unsure: "not known whether noise",
  bundle: "narrow ones together",
  other: "other",
};

function lengthOf(node) {
  return node.end - node.start;
}

// Return the node around another, a bundle that was zoomed into among them.
function aboveOf(node) {
  return node.bundle || node.parent;
}

function pathTo(node) {
  const path = [];
  for (let at = node; at; at = aboveOf(at)) path.unshift(at);
  return path;
}

function namesOf(node) {
  return pathTo(node)
    .filter((step) => !step.isBundle)
    .map((step) => step.name);
}

// Return a node that stands for neighbours that are too narrow; one alone stands for itself.
function bundleOf(nodes, parent) {
  if (nodes.length === 1) return nodes[0];
  return {
    name: `${nodes.length}`,
    row: -1,
    isBundle: true,
    parent,
    children: nodes,
    start: nodes[0].start,
    end: nodes[nodes.length - 1].end,
  };
}

function showTip(text, event) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - width - 6);
  const isLow = event.clientY + 18 + height > window.innerHeight;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${isLow ? event.clientY - height - 8 : event.clientY + 18}px`;
}

function kindOfRow(part, row) {
  if (part.kind === "comparison") {
    const verdict = part.value("verdict", row);
    if (verdict === "slower" || verdict === "faster") return verdict;
    if (verdict === UNKNOWN) return "unsure";
    return verdict.startsWith("only") ? "only" : "same";
  }
  if (part.hasRowsBelow(row)) return "frame";
  const op = part.value("op", row);
  return Object.hasOwn(KINDS, op) ? op : "other";
}

function kindOfNode(part, node) {
  if (node.isBundle) return "bundle";
  if (node.row === NO_ROW) return "module";
  return node.row < 0 ? "other" : kindOfRow(part, node.row);
}

// The icicle

function icicleRoot(tree) {
  const nodes = tree.names.map((name, place) => ({
    name,
    row: tree.rows[place],
    self: tree.self[place],
    time: tree.self[place],
    parent: null,
    children: [],
    start: 0,
    end: 0,
    numRows: 0,
  }));
  for (let place = nodes.length - 1; place > 0; place--) {
    const above = nodes[tree.parents[place]];
    above.time += nodes[place].time;
    above.numRows += nodes[place].numRows + (nodes[place].row >= 0);
  }
  const ends = new Map();
  nodes.forEach((node, place) => {
    if (place > 0) {
      node.parent = nodes[tree.parents[place]];
      node.parent.children.push(node);
      node.start = ends.get(node.parent);
      ends.set(node.parent, node.start + node.time);
    }
    node.end = node.start + node.time;
    ends.set(node, node.start);
  });
  return nodes[0];
}

function describeIcicle(part, tree, node) {
  if (node.isBundle) {
    const time = node.children.reduce((sum, child) => sum + child.time, 0);
    return [
      `${counted(node.children.length, "narrow box").replace("boxs", "boxes")} side by side`,
      `${timeText(time)} a run, ${percentText(time, tree.run_ns)} of a run`,
    ].join("\n");
  }
  const lines = [
    `${node.name}${node.row >= 0 ? ` (${part.text("op", node.row)})` : ""}`,
    `${timeText(node.time)} a run, ${percentText(node.time, tree.run_ns)} of a run`,
  ];
  if (node.row >= 0 && node.children.length) lines.push(`${timeText(node.self)} in its own statements`);
  if (node.row < 0) lines.push(counted(node.numRows, "row"));
  for (const key of ["class", "shape", "verdict"]) {
    const value = part.value(key, node.row);
    if (value) lines.push(`${key}: ${value}`);
  }
  return lines.join("\n");
}

function drawIcicles(part, element) {
  const section = element.querySelector(".icicles");
  const area = section.querySelector(".charts");
  const linked = [];
  for (const tree of part.data.trees) {
    const root = icicleRoot(tree);
    if (!root.time) {
      const text = tree.run_ns === null ? "There are no runs." : "The runs took no time.";
      area.append(make("p", { class: "note", text: `${tree.title} ${text}`.trim() }));
      continue;
    }
    const title = tree.title ? `${tree.title}: ${timeText(root.time)} a run` : "";
    const chart = new Chart(part, root, {
      title,
      label: `Modules ${tree.title}`.trim(),
      linked,
      describe: (node) => describeIcicle(part, tree, node),
      kindOf: (node) => kindOfNode(part, node),
    });
    area.append(chart.element);
    if (tree.is_cut) {
      const text = "Times that the cost of readings brought below 0 have no width.";
      area.append(make("p", { class: "note", text }));
    }
  }
  for (const chart of linked) chart.draw();
}

// The timeline

function timelineRoot(timeline) {
  const root = {
    name: `run ${timeline.run}`,
    row: -1,
    parent: null,
    children: [],
    start: 0,
    end: timeline.total_ns,
  };
  const above = [root];
  timeline.labels.forEach((label, place) => {
    above.length = timeline.depths[place] + 1;
    const parent = above[above.length - 1];
    const row = timeline.rows[label];
    const node = {
      name: timeline.names[label],
      row,
      hasUnknownStart: row >= 0 && row in timeline.unknown,
      parent,
      children: [],
      start: timeline.starts[place],
      end: timeline.starts[place] + timeline.times[place],
    };
    root.end = Math.max(root.end, node.end);
    parent.children.push(node);
    above.push(node);
  });
  return root;
}

function describeSlice(part, node) {
  if (node.isBundle) {
    const time = node.children.reduce((sum, child) => sum + lengthOf(child), 0);
    return `${counted(node.children.length, "short slice")} one after the other\n${timeText(time)} in all`;
  }
  const op = node.row >= 0 ? ` (${part.text("op", node.row)})` : "";
  const began = node.hasUnknownStart
    ? "when it began is not known, or not for all calls: drawn where it fits"
    : `began at ${timeText(node.start)}`;
  return `${node.name}${op}\n${began}\ntook ${timeText(lengthOf(node))}`;
}

function drawTimeline(part, element) {
  const section = element.querySelector(".timeline");
  const hint = section.querySelector(".hint");
  const { timeline } = part.data;
  if (part.kind === "comparison") {
    section.remove();
    return;
  }
  if (!timeline) {
    hint.textContent = "Single runs were not kept, only a sketch of them: when each row ran is not known.";
    return;
  }
  const texts = [
    `Run ${timeline.run} of 0 to ${part.data.num_runs - 1}, the median by its time: ${timeText(timeline.total_ns)}.`,
  ];
  if (timeline.num_slices > timeline.labels.length) {
    texts.push(
      `It has ${counted(timeline.num_slices, "slice")}; the longest ${numberText(timeline.labels.length)} are drawn.`,
    );
  }
  const numUnknown = Object.values(timeline.unknown).reduce((sum, number) => sum + number, 0);
  if (numUnknown) {
    texts.push(
      `When ${counted(numUnknown, "call")} of frames began is not known: a dotted edge, drawn where they fit.`,
    );
  }
  hint.textContent = texts.join(" ");
  const root = timelineRoot(timeline);
  if (!root.end) return;
  const chart = new Chart(part, root, {
    label: "Timeline of the median run",
    describe: (node) => describeSlice(part, node),
    kindOf: (node) => kindOfNode(part, node),
  });
  section.querySelector(".charts").append(chart.element);
  chart.draw();
}

// The selected row: its histogram and what is known of it

const WIDTH = 360;
const HEIGHT = 150;
const BASE = 122;

// Return the edges of each bin: whole steps of runs, growing ones of a sketch.
function edgesOf(histogram) {
  const { low, counts } = histogram;
  if (histogram.ratio) return Array.from({ length: counts.length + 1 }, (_, i) => low * histogram.ratio ** i);
  return Array.from({ length: counts.length + 1 }, (_, i) => low + i * histogram.width);
}

function numRunsOf(histogram) {
  const sum = histogram.counts.reduce((total, count) => total + count, 0);
  return sum + (histogram.above || 0) + (histogram.zeros || 0);
}

// Return from where to where histograms reach.
function rangeOf(histograms) {
  const edges = histograms.map(edgesOf);
  return [
    Math.min(...edges.map((each) => each[0])),
    Math.max(...edges.map((each) => each[each.length - 1])),
  ];
}

function histogramFigure(histogram, marks, title, range = rangeOf([histogram])) {
  const edges = edgesOf(histogram);
  const isLog = Boolean(histogram.ratio);
  const scale = isLog ? Math.log : (value) => value;
  const [first, last] = range.map(scale);
  const hasAbove = histogram.above > 0;
  const [left, right] = [8, hasAbove ? WIDTH - 46 : WIDTH - 8];
  const x = (value) => left + ((scale(value) - first) / (last - first || 1)) * (right - left);
  const most = Math.max(...histogram.counts, histogram.above || 0, 1);
  const height = (count) => (count / most) * (BASE - 14);
  const bar = (count, from, to, text, kind) => {
    const tall = Math.max(height(count), count ? 1 : 0);
    const title = makeSvg("title", { text });
    return makeSvg(
      "rect",
      {
        class: kind,
        "data-count": count,
        x: from,
        y: BASE - tall,
        width: Math.max(to - from - 0.6, 0.6),
        height: tall,
      },
      title,
    );
  };
  const shapes = histogram.counts.map((count, i) => {
    const text = `${counted(count, "run")} from ${timeText(edges[i])} to ${timeText(edges[i + 1])}`;
    return bar(count, x(edges[i]), x(edges[i + 1]), text, "bar");
  });
  if (hasAbove) {
    const text = `${counted(histogram.above, "run")} far above, up to ${timeText(histogram.high)}`;
    shapes.push(bar(histogram.above, WIDTH - 32, WIDTH - 8, text, "bar above"));
    shapes.push(makeSvg("text", { x: WIDTH - 20, y: BASE + 14, "text-anchor": "middle", text: "above" }));
  }
  shapes.push(makeSvg("line", { class: "axis", x1: left, x2: right, y1: BASE, y2: BASE }));
  for (const [name, value] of marks) {
    if (value === null || (isLog && value <= 0)) continue;
    const place = Math.min(Math.max(x(value), left), hasAbove ? WIDTH - 39 : right);
    shapes.push(
      makeSvg("line", { class: `mark mark-${name}`, x1: place, x2: place, y1: 4, y2: BASE }),
    );
  }
  shapes.push(makeSvg("text", { x: left, y: BASE + 14, text: timeText(range[0]) }));
  shapes.push(
    makeSvg("text", { x: right, y: BASE + 14, "text-anchor": "end", text: timeText(range[1]) }),
  );
  shapes.push(makeSvg("text", { x: left, y: 12, text: `${numberText(most)}` }));
  const caption = [`${title}${counted(numRunsOf(histogram), "run")}`];
  if (isLog) caption.push("a logarithmic axis");
  else caption.push(`${counted(histogram.counts.length, "bin")} of ${timeText(histogram.width)}`);
  if (histogram.zeros) caption.push(`${numberText(histogram.zeros)} of no time at all`);
  if (hasAbove) caption.push(`${numberText(histogram.above)} far above, up to ${timeText(histogram.high)}`);
  const label = `Histogram: ${caption.join(", ")}`;
  return make(
    "figure",
    { class: "histogram" },
    makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...shapes),
    make("figcaption", { text: `${caption.join(", ")}.` }),
    marks.length ? markList(marks) : null,
  );
}

function markList(marks) {
  const items = marks.map(([name, value]) => {
    const line = makeSvg("line", { class: `mark mark-${name}`, x1: 0, x2: 22, y1: 4, y2: 4 });
    const swatch = makeSvg("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, line);
    return make("li", { "data-mark": name }, swatch, `${name} ${timeText(value)}`);
  });
  return make("ul", { class: "marks" }, ...items);
}

function drawDetail(part, element) {
  const detail = element.querySelector(".detail");
  detail.append(make("p", { class: "hint", text: "Select a row to see its runs and its facts." }));
  part.listeners.push((row) => {
    detail.replaceChildren(
      make("h4", { text: part.text("name", row) }),
      make("p", { class: "op", text: part.text("op", row) }),
      ...histogramsOf(part, row),
      definitionList(part, row, (column) => !column.is_fact),
      ...factsOf(part, row),
    );
    detail.scrollTop = 0;
  });
}

function histogramsOf(part, row) {
  if (part.kind === "comparison") {
    const both = part.data.histograms.map((side) => side[row]);
    const range = rangeOf(both.filter(Boolean));
    return ["Before", "After"].map((title, side) => {
      const mean = part.value(title.toLowerCase(), row);
      if (both[side]) return histogramFigure(both[side], [["mean", mean]], `${title}: `, range);
      const text = mean === "" ? "there is no such row." : "no time of its own in compiled code, or no run.";
      return make("p", { class: "note", text: `${title}: ${text}` });
    });
  }
  const histogram = part.data.histograms[0][row];
  if (!histogram) {
    const text = part.untimed.has(row)
      ? "It takes no time of its own in compiled code."
      : "It was part of no run.";
    return [make("p", { class: "note", text })];
  }
  const marks = ["mean", "median", "p95"].map((key) => [key, part.value(key, row)]);
  const figures = [histogramFigure(histogram, part.data.is_uncorrected ? [] : marks, "")];
  if (part.data.kept) figures.push(make("p", { class: "kept", text: part.data.kept }));
  return figures;
}

function factsOf(part, row) {
  const facts = part.columns.filter((column) => column.is_fact);
  if (!facts.length) return [];
  const unknown = facts.filter((column) => column.at(row) === null);
  const list = definitionList(part, row, (column) => column.is_fact && column.at(row) !== null);
  const found = [make("h4", { text: "Facts" }), list];
  if (unknown.length) {
    const names = unknown.map((column) => column.header).join(", ");
    found.push(make("p", { class: "unknown", text: `${UNKNOWN}: ${names}` }));
  }
  return found;
}

function definitionList(part, row, isShown) {
  const items = part.columns
    .filter((column) => isShown(column) && !["name", "op"].includes(column.key))
    .flatMap((column) => {
      const text = cellText(column, row);
      if (text === "" && column.key !== "module") return [];
      const value = text === "" ? "the model itself" : text;
      const term = make("dt", { text: column.header });
      const kind = column.at(row) === null ? "unknown" : null;
      return [term, make("dd", { "data-key": column.key, class: kind, text: value })];
    });
  return make("dl", {}, ...items);
}

// Code, with what each line took beside it

function codeTable(section) {
  const scroller = make("div", {
    class: "code-scroller",
    tabindex: 0,
    role: "region",
    "aria-label": section.title,
  });
  const body = make("tbody");
  const longest = section.texts.reduce((most, text) => Math.max(most, text.length), 10);
  const times = Object.values(section.figures).map(([mean]) => mean || 0);
  const unit = unitFor(largest(times));
  section.most = largest(Object.values(section.figures).map((figures) => figures[1] || 0)) || 1;
  const heads = [`Mean (${unit})`, "%", "Calls", "Line", ""];
  const widths = [13, 8, 11, 8, Math.min(longest, 400) * 1.05 + 3];
  const table = make(
    "table",
    { class: "code" },
    // The code itself takes what is left.
    make("colgroup", {}, ...widths.slice(0, -1).map((width) => {
      const column = make("col");
      column.style.width = `${width}ch`;
      return column;
    })),
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text })))),
    body,
  );
  table.style.width = `${widths.reduce((sum, width) => sum + width, 0)}ch`;
  scroller.append(table);
  const rows = new RowsInSight(scroller, body, CODE_HEIGHT, (place) => codeLine(section, place, unit));
  const places = section.texts.map((_, place) => place);
  rows.show(places);
  return scroller;
}

function codeLine(section, place, unit) {
  const figures = section.figures[place];
  const isAfterGap = place > 0 && section.numbers[place] !== section.numbers[place - 1] + 1;
  const texts = figures
    ? [
        timeText(figures[0], unit),
        figures[1] === null ? UNKNOWN : (100 * figures[1]).toFixed(2),
        numberText(figures[2]),
      ]
    : ["", "", ""];
  const cells = texts.map((text) => make("td", { text }));
  if (figures && figures[1] !== null) {
    cells[1].classList.add("share");
    cells[1].style.setProperty("--share", `${(100 * Math.max(figures[1], 0)) / section.most}%`);
  }
  return make(
    "tr",
    { class: figures ? "timed" : null },
    ...cells,
    make("td", { class: "number", text: `${isAfterGap ? "\u2026 " : ""}${section.numbers[place]}` }),
    make("td", { class: "text", text: section.texts[place] }),
  );
}

function drawCode(main, code) {
  const parts = code.filter((part) => part.sections.length || part.notes.length);
  if (!parts.length) return;
  const section = make("section", { class: "code-part" }, make("h2", { text: "Code" }));
  for (const part of parts) {
    section.append(make("h3", { text: part.title }));
    for (const lines of part.sections) {
      const details = make("details", {}, make("summary", { text: lines.title }));
      details.addEventListener("toggle", () => {
        if (details.open && details.children.length === 1) details.append(codeTable(lines));
      });
      section.append(details);
    }
    for (const note of part.notes) section.append(make("p", { class: "note", text: note }));
  }
  main.append(section);
}

// What stayed closed, and the graphs

function factTable(kind, heads, rows) {
  const line = (tag, texts) =>
    make("tr", {}, ...texts.map((text) => make(tag, { class: "text", text })));
  return make(
    "div",
    { class: "facts-scroller" },
    make(
      "table",
      { class: `facts ${kind}` },
      make("thead", {}, line("th", heads)),
      make("tbody", {}, ...rows.map((texts) => line("td", texts))),
    ),
  );
}

function drawClosed(main, closed) {
  if (!closed.length) return;
  const rows = closed.map((frame) => [
    `${frame.module || "the model"} (${frame.class})`,
    frame.reason,
    frame.place || UNKNOWN,
    frame.advice,
  ]);
  main.append(
    make(
      "section",
      { class: "closed-part" },
      make("h2", { text: "What stayed closed" }),
      make("p", {
        class: "hint",
        text: "These modules run as the Python that they are; what they call is timed within them.",
      }),
      factTable("closed", ["Module", "Reason", "Place", "What to change"], rows),
    ),
  );
}

function drawVariants(main, variants) {
  if (!variants.length) return;
  const rows = variants.map((variant) => [
    variant.module || "the model",
    variant.guard || "all",
    numberText(variant.nodes),
    numberText(variant.runs),
  ]);
  main.append(
    make(
      "section",
      { class: "variants-part" },
      make("h2", { text: "Graphs" }),
      factTable("variants", ["Module", "For calls with", "Nodes", "Runs"], rows),
    ),
  );
}

// The page

function drawPart(main, data, kind, hasSeveral) {
  const element = document.getElementById("part").content.firstElementChild.cloneNode(true);
  const part = new Part(data, kind);
  const heading = element.querySelector(".part-name");
  if (hasSeveral || data.name) heading.textContent = `${data.name || "forward"}()`;
  else heading.remove();
  for (const line of data.head || []) element.querySelector(".part-head").append(make("p", { text: line }));
  main.append(element);
  new RowTable(part, element);
  drawDetail(part, element);
  drawIcicles(part, element);
  drawTimeline(part, element);
  for (const note of data.notes) element.querySelector(".notes").append(make("p", { text: note }));
}

function drawPage() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const main = document.getElementById("main");
  document.body.append(tip);
  for (const part of data.parts) drawPart(main, part, data.kind, data.parts.length > 1);
  drawCode(main, data.code);
  drawClosed(main, data.closed);
  drawVariants(main, data.variants);
}

drawPage();
