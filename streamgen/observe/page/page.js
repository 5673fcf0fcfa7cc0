"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  for (const select of document.querySelectorAll("[data-choice]"))
    select.addEventListener("change", () => {
      document.querySelectorAll(`[data-of="${select.dataset.choice}"]`).forEach((part, number) => {
        part.hidden = String(number) !== select.value;
      });
    });

  const narrow = matchMedia("(max-width: 700px)");
  const element = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const table = (heads, rows) => {
    const made = element("table");
    const head = made.createTHead().insertRow();
    for (const text of heads) { const cell = element("th", text); cell.scope = "col"; head.append(cell); }
    const body = made.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((value, column) => {
        const text = typeof value === "number" ? value.toLocaleString("en") : value === null ? "" : value;
        const cell = element(column ? "td" : "th", text);
        if (!column) cell.scope = "row";
        line.append(cell);
      });
    }
    const around = element("div", undefined, "scroll");
    around.tabIndex = 0;
    around.setAttribute("role", "region");
    around.setAttribute("aria-label", "Figures");
    around.append(made);
    return around;
  };

  for (const canvas of document.querySelectorAll("[data-canvas]")) graph(canvas);

  function graph(canvas) {
    const id = canvas.dataset.canvas, details = data[id];
    const of = (what) => document.querySelector(`[data-${what}="${id}"]`);
    const panel = of("panel"), search = of("search"), count = of("count"), full = of("full");
    const drawings = [...canvas.querySelectorAll(".drawing")];
    const views = new Map();
    let svg;

    const whole = (one) => one.dataset.whole.split(" ").map(Number);
    const show = (view) => { views.set(svg, view); svg.setAttribute("viewBox", view.map((v) => v.toFixed(2)).join(" ")); };
    const use = (number) => {
      drawings.forEach((part, k) => { part.hidden = k !== number; });
      svg = drawings[number].querySelector("svg");
      if (!svg.dataset.whole) {
        svg.dataset.whole = svg.getAttribute("viewBox");
        svg.removeAttribute("width");
        svg.removeAttribute("height");
        for (const box of svg.querySelectorAll(".box")) {
          const about = details.boxes[box.id];
          box.setAttribute("role", "button");
          box.setAttribute("tabindex", "-1");
          box.setAttribute("aria-label", `${about.title}, ${about.kind}`);
          box.querySelector("title").textContent = `${about.title}\n${about.kind}`;
        }
        for (const wire of svg.querySelectorAll(".wire")) {
          const about = details.wires[wire.id], title = wire.querySelector("title");
          title.textContent = about ? about.rows[0][0] + (about.rows.length > 1 ? ` and ${about.rows.length - 1} more` : "") : "memory";
        }
        begin();
      }
      find();
    };
    // A wide screen shows the whole graph. On a narrow one text can be read, and the graph begins at its top.
    const begin = () => {
      const [x, y, w, h] = whole(svg), width = canvas.clientWidth;
      if (!width) return;
      if (!narrow.matches) {
        canvas.style.height = `${Math.max(220, h * Math.min(width / w, 1.3, 1600 / h))}px`;
        return show([x, y, w, h]);
      }
      const high = Math.min(h, innerHeight * 0.7), tops = [...svg.querySelectorAll(".box")];
      canvas.style.height = `${high}px`;
      show([x, y, w, h]);
      const top = tops.map((box) => box.getBoundingClientRect()).reduce((a, b) => (b.top < a.top ? b : a));
      const rect = canvas.getBoundingClientRect(), scale = Math.max(w / rect.width, h / rect.height);
      const middle = x + w / 2 + (top.left + top.width / 2 - rect.left - rect.width / 2) * scale;
      show([middle - width / 2, y, width, high]);
    };
    const zoom = (by, px, py) => {
      if (!by) return show(whole(svg));
      const [x, y, w, h] = views.get(svg), rect = canvas.getBoundingClientRect();
      const scale = Math.max(w / rect.width, h / rect.height);
      const fx = px === undefined ? 0.5 : 0.5 + (px - rect.left - rect.width / 2) * scale / w;
      const fy = py === undefined ? 0.5 : 0.5 + (py - rect.top - rect.height / 2) * scale / h;
      const most = whole(svg)[2] * 3;
      const wide = Math.min(most, Math.max(60, w / by)), high = h * wide / w;
      show([x + (w - wide) * fx, y + (h - high) * fy, wide, high]);
    };
    const pan = (dx, dy) => {
      const [x, y, w, h] = views.get(svg), rect = canvas.getBoundingClientRect();
      const scale = Math.max(w / rect.width, h / rect.height);
      show([x + dx * scale, y + dy * scale, w, h]);
    };
    const centre = (part) => {
      const rect = canvas.getBoundingClientRect(), box = part.getBoundingClientRect();
      const inside = box.left >= rect.left && box.right <= rect.right && box.top >= rect.top && box.bottom <= rect.bottom;
      if (!inside) pan(box.left + box.width / 2 - rect.left - rect.width / 2, box.top + box.height / 2 - rect.top - rect.height / 2);
    };

    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.15 : 0.87, event.clientX, event.clientY);
    }, { passive: false });
    let held = null, moved = false;
    canvas.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; moved = false; });
    window.addEventListener("pointermove", (event) => {
      if (!held) return;
      const [x, y] = held;
      if (!moved && Math.hypot(event.clientX - x, event.clientY - y) < 4) return;
      moved = true;
      canvas.classList.add("held");
      pan(x - event.clientX, y - event.clientY);
      held = [event.clientX, event.clientY];
    });
    window.addEventListener("pointerup", () => { held = null; canvas.classList.remove("held"); });
    canvas.addEventListener("dblclick", (event) => zoom(1.6, event.clientX, event.clientY));
    canvas.addEventListener("click", (event) => {
      const part = event.target.closest(".box, .wire");
      if (part && !moved) choose(part);
    });
    for (const button of document.querySelectorAll(`[data-zoom="${id}"]`))
      button.addEventListener("click", () => zoom(Number(button.dataset.by)));

    const wires = () => [...svg.querySelectorAll(".wire")].map((wire) => details.wires[wire.id]).filter(Boolean);
    const middle = (box) => { const r = box.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; };
    const step = (from, key) => {
      const forward = key === "ArrowRight";
      if (forward || key === "ArrowLeft") {
        const next = wires().filter((w) => !w.back && (forward ? w.source : w.target) === from.id);
        return next.length ? document.getElementById(forward ? next[0].target : next[0].source) : null;
      }
      const [x, y] = middle(from), down = key === "ArrowDown";
      let best = null, least = Infinity;
      for (const box of svg.querySelectorAll(".box")) {
        const [bx, by] = middle(box), far = 2 * Math.abs(bx - x) + Math.abs(by - y);
        if (box !== from && (down ? by > y + 1 : by < y - 1) && far < least) { best = box; least = far; }
      }
      return best;
    };
    canvas.addEventListener("keydown", (event) => {
      const box = event.target.closest(".box"), key = event.key;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (key === "+" || key === "=") zoom(1.3);
      else if (key === "-") zoom(0.77);
      else if (key === "0") zoom(0);
      else if (key.startsWith("Arrow")) {
        const next = box ? step(box, key) : svg.querySelector(".box.chosen") || svg.querySelector(".box");
        if (next) { next.focus({ preventScroll: true }); centre(next); }
      } else if ((key === "Enter" || key === " ") && box) choose(box);
      else if (key === "Escape") canvas.focus();
      else return;
      event.preventDefault();
    });

    const link = (target, text) => {
      const made = element("button", text, "link");
      made.type = "button";
      made.addEventListener("click", () => { const part = document.getElementById(target); choose(part); centre(part); });
      return made;
    };
    const define = (list, term, ...parts) => {
      list.append(element("dt", term));
      for (const part of parts) { const made = element("dd"); made.append(part); list.append(made); }
    };
    function choose(part) {
      svg.querySelectorAll(".chosen, .near").forEach((one) => one.classList.remove("chosen", "near"));
      part.classList.add("chosen");
      const close = element("button", "Close", "close");
      close.type = "button";
      close.addEventListener("click", () => { panel.hidden = true; canvas.focus(); });
      panel.replaceChildren(close);
      panel.hidden = false;
      panel.scrollTop = 0;
      const box = details.boxes[part.id], wire = details.wires[part.id], list = element("dl");
      if (box) {
        panel.append(element("h3", box.title), element("p", box.kind, "hint"), list);
        for (const other of svg.querySelectorAll(".wire")) {
          const about = details.wires[other.id];
          if (about && (about.source === part.id || about.target === part.id)) {
            other.classList.add("near");
            const out = about.source === part.id, end = details.boxes[out ? about.target : about.source];
            define(list, out ? "sends to" : "reads from", link(other.id, `${end.title}: ${other.querySelector("text")?.textContent ?? ""}`));
          }
        }
        if (box.rows.length) {
          const heads = ["kernel", "kind", "SLR", "LUT", "DSP", "BRAM", "URAM", ...(details.run ? ["busy", "stalled", "idle"] : [])];
          panel.append(element("h3", box.rows.length > 1 ? `${box.rows.length} kernels` : "Figures"), table(heads, box.rows));
        }
      } else if (wire) {
        panel.append(element("h3", wire.rows.length > 1 ? `${wire.rows.length} streams` : "Stream"), list);
        define(list, "from", link(wire.source, details.boxes[wire.source].title));
        define(list, "to", link(wire.target, details.boxes[wire.target].title));
        for (const [phases, text] of wire.itensors) define(list, phases, element("code", text));
        panel.append(element("h3", "FIFOs"), table(["FIFO", "bits", "depth", "greatest"], wire.rows));
      }
    }

    function find() {
      const text = search.value.trim().toLowerCase();
      svg.classList.toggle("searched", text !== "");
      svg.querySelectorAll(".found").forEach((one) => one.classList.remove("found"));
      count.textContent = "";
      if (!text) return [];
      const has = (value) => String(value).toLowerCase().includes(text);
      const found = [];
      for (const box of svg.querySelectorAll(".box")) {
        const about = details.boxes[box.id];
        if (has(about.title) || has(about.kind) || about.rows.some((row) => has(row[0]))) found.push(box);
      }
      const boxes = found.length;
      for (const wire of svg.querySelectorAll(".wire")) {
        const about = details.wires[wire.id];
        if (about && (about.rows.some((row) => has(row[0])) || about.itensors.some((one) => has(one[1])))) found.push(wire);
      }
      found.forEach((part) => part.classList.add("found"));
      count.textContent = `${boxes} boxes, ${found.length - boxes} arrows`;
      return found;
    }
    let turn = 0;
    search.addEventListener("input", () => { turn = 0; const found = find(); if (found.length) centre(found[0]); });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const found = find();
      if (found.length) { const part = found[turn++ % found.length]; choose(part); centre(part); }
    });
    of("draw").addEventListener("click", (event) => {
      const shown = of("split").classList.toggle("shown");
      event.target.textContent = shown ? "Hide the drawing" : "Show the drawing";
      if (shown) begin();
    });
    narrow.addEventListener("change", begin);
    canvas.closest("section").querySelector(".items").open = narrow.matches;
    if (full) full.addEventListener("change", () => use(full.checked ? 1 : 0));
    use(0);
  }
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
